"""Quality of service: how a GPU's time is divided among those who share it."""

from enum import StrEnum
from typing import TypeVar

from milligpu.model.errors import BadRequest
from milligpu.model.units import parse_whole


class Policy(StrEnum):
    """The three policies vGPU users know, per GPU; a pod may ask for one by name."""

    FIXED = "fixed"
    """A share is a guarantee and a ceiling; what its owner leaves unused stays unused."""
    EQUAL = "equal"
    """Time is divided evenly among those present, whatever they asked for."""
    BEST_EFFORT = "best-effort"
    """A share is a guarantee; idle time goes to whoever wants it, up to their limit."""


def parse_policy(field: str, value: object) -> Policy:
    """Read a policy's name."""
    return _choice(field, value, Policy)


PRIORITY_MIN = 0
"""Opportunistic: yields to everyone above; the default."""
PRIORITY_MAX = 100
"""The first to run and the last to be moved. The range is KubeShare's, so that its manifests carry over."""


def parse_priority(field: str, value: object) -> int:
    """Read a priority among the tenants of one GPU; a higher one goes first."""
    return parse_whole(field, value, PRIORITY_MIN, PRIORITY_MAX)


class Strategy(StrEnum):
    """How to choose among the GPUs that fit; per cluster, and per request where a pod names one."""

    PACKING = "packing"
    """Keep the most of the cluster usable for the requests that are likely to come."""
    BEST_FIT = "best-fit"
    """The fullest GPU that still fits."""
    SPREAD = "spread"
    """The emptiest GPU: least interference now."""
    TOPOLOGY = "topology"
    """For several GPUs: the group with the best links between them, on one NUMA node."""


def parse_strategy(field: str, value: object) -> Strategy:
    """Read a strategy's name."""
    return _choice(field, value, Strategy)


_E = TypeVar("_E", bound=StrEnum)


def _choice(field: str, value: object, kind: type[_E]) -> _E:
    try:
        return kind(str(value))
    except ValueError:
        raise BadRequest(field, value, " or ".join(kind)) from None
