"""Labels that keep pods together on one GPU, or apart."""

import re
from dataclasses import dataclass

from milligpu.model.errors import BadRequest

# Kubernetes' own form of a label value, so that every label can also be a pod label.
_LABEL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")


def parse_label(field: str, value: object) -> str:
    """Read a label."""
    if not (isinstance(value, str) and _LABEL.fullmatch(value)):
        raise BadRequest(field, value, "1 to 63 of A-Z a-z 0-9 - _ . with a letter or digit at both ends")
    return value


@dataclass(frozen=True, slots=True)
class AffinityLabels:
    """The three labels that KubeShare introduced; None means that the pod has no such label."""

    affinity: str | None = None
    """Pods with the same one share a GPU."""
    anti_affinity: str | None = None
    """No two pods with the same one share a GPU."""
    exclusion: str | None = None
    """Only pods with the same one may be on the GPU at all."""
