"""Groups: pods that start together or not at all."""

from dataclasses import dataclass

from milligpu.model.affinity import parse_label
from milligpu.model.units import parse_whole

# A group is one job, and Kubernetes supports 5,000 nodes.
GROUP_SIZE_MAX = 5000

GroupKey = tuple[str, str]
"""A namespace, and the name of a group in it."""


@dataclass(frozen=True, slots=True)
class PodGroup:
    """`size` pods that are useful only together: at least `min_count` of them start, or none."""

    name: str
    size: int
    min_count: int


def parse_group(name_field: str, name: object, size_field: str, size: object) -> PodGroup:
    """Read a group all of whose pods are needed."""
    count = parse_whole(size_field, size, 1, GROUP_SIZE_MAX)
    return PodGroup(parse_label(name_field, name), count, count)
