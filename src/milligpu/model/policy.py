"""Share policies, GPU priorities and placement strategies."""

from enum import StrEnum
from typing import TypeVar

from milligpu.model.errors import BadRequest
from milligpu.model.units import WHOLE, Milli, parse_whole


class SharePolicy(StrEnum):
    """How a GPU's time is divided: the three policies of NVIDIA's vGPU. A request may name one for itself."""

    FIXED = "fixed"
    """A share is also the limit. On a GPU: for all its tenants. In a request: for this one."""
    EQUAL = "equal"
    """Time is divided evenly among the tenants, whatever their shares are. Only a GPU of this policy does that."""
    BEST_EFFORT = "best-effort"
    """A share is guaranteed; idle time goes to any tenant that wants it, up to its limit."""


DEFAULT_POLICY = SharePolicy.BEST_EFFORT
"""The policy of a GPU for which no admin chose one: every tenant gets what it requested, and nothing is wasted."""


def parse_policy(field: str, value: object, *others: str) -> SharePolicy:
    """Read a policy's name; a refusal also lists `others` that are allowed there."""
    return _choice(field, value, SharePolicy, *others)


def default_limit(policy: SharePolicy | None, milli: Milli) -> Milli:
    """The limit of a share whose request names this policy and no limit."""
    idle_time = policy in {SharePolicy.BEST_EFFORT, SharePolicy.EQUAL}
    return WHOLE if idle_time else milli


PRIORITY_MIN = 0
"""The lowest priority, and the default: yields to every higher one."""
PRIORITY_MAX = 100
"""The highest priority. The range is KubeShare's, so its manifests keep their meaning."""


def parse_priority(field: str, value: object) -> int:
    """Read a GPU priority; a higher one gets the next turn."""
    return parse_whole(field, value, PRIORITY_MIN, PRIORITY_MAX)


class PlacementStrategy(StrEnum):
    """How to choose among the GPUs that fit; per cluster, and per request where a pod names one."""

    PACKING = "packing"
    """Keep as much of the cluster as possible usable for the requests that are expected."""
    BEST_FIT = "best-fit"
    """The fullest GPU that still fits."""
    SPREAD = "spread"
    """The emptiest GPU: least interference now."""
    TOPOLOGY = "topology"
    """For several GPUs: the GPU set with the best links, on one NUMA node."""


def parse_strategy(field: str, value: object) -> PlacementStrategy:
    """Read a strategy's name."""
    return _choice(field, value, PlacementStrategy)


_E = TypeVar("_E", bound=StrEnum)


def _choice(field: str, value: object, kind: type[_E], *others: str) -> _E:
    try:
        return kind(str(value))
    except ValueError:
        raise BadRequest(field, value, " or ".join((*kind, *others))) from None
