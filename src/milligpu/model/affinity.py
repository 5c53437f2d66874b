"""Labels that pull pods together on a GPU or keep them apart, and gangs that start together or not at all."""

import re
from dataclasses import dataclass

from milligpu.model.errors import BadRequest
from milligpu.model.units import parse_whole

# Kubernetes' own form of a label value, so that every label can also be a pod label.
_LABEL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
# One gang is one job; Kubernetes supports 5,000 nodes.
GANG_MAX = 5000


def parse_label(field: str, value: object) -> str:
    """Read a label."""
    if not (isinstance(value, str) and _LABEL.fullmatch(value)):
        raise BadRequest(field, value, "1 to 63 of A-Z a-z 0-9 - _ . with a letter or digit at both ends")
    return value


@dataclass(frozen=True, slots=True)
class Locality:
    """The three labels KubeShare gave its pods; None means the pod has no such label."""

    affinity: str | None = None
    """Pods with the same one share a GPU."""
    anti_affinity: str | None = None
    """No two pods with the same one share a GPU."""
    exclusion: str | None = None
    """Only pods with the same one may be on the GPU at all."""

    def admits(self, other: "Locality") -> bool:
        """Whether a pod with these labels may join a GPU that one with the other labels is on."""
        if self.anti_affinity is not None and self.anti_affinity == other.anti_affinity:
            return False
        return self.exclusion == other.exclusion


@dataclass(frozen=True, slots=True)
class Gang:
    """Pods that are useful only together: at least `least` of `size` start at once, or none."""

    name: str
    size: int
    least: int


def parse_gang(name_field: str, name: object, size_field: str, size: object) -> Gang:
    """Read a gang all of whose pods are needed."""
    count = parse_whole(size_field, size, 1, GANG_MAX)
    return Gang(parse_label(name_field, name), count, count)
