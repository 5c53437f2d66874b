"""What suspending a VM means for its node and pods, as decisions over their objects."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from milligpu.model import names
from milligpu.wire.kubernetes import ENDED_PHASES

# A kubelet's clock may be ahead by this much; Leases and tokens bear more, and arithmetic with times does not.
AHEAD = timedelta(seconds=5)
_MIRROR = "kubernetes.io/config.mirror"

Json = Mapping[str, Any]


def with_taints(node: Json, effects: Sequence[str]) -> dict[str, Any] | None:
    """Return a merge patch after which the node has the taint with exactly these effects; None if it has.

    It names the version of the node that was read: a taint that is added meanwhile must not be lost.
    """
    taints: list[dict[str, Any]] = node.get("spec", {}).get("taints") or []
    others = [each for each in taints if each["key"] != names.SUSPENDED]
    ours = {each["effect"] for each in taints if each["key"] == names.SUSPENDED}
    if ours == set(effects):
        return None
    wanted = [*others, *({"key": names.SUSPENDED, "effect": effect} for effect in effects)]
    return {"metadata": {"resourceVersion": node["metadata"]["resourceVersion"]}, "spec": {"taints": wanted}}


def is_kept(pod: Json) -> bool:
    """Whether a pod stays on a suspended node: it tolerates the taint, and for ever."""
    return any(
        each.get("effect", "") in {"", "NoExecute"}
        and each.get("tolerationSeconds") is None
        and (
            (each.get("key", "") == "" and each.get("operator") == "Exists")
            or (each.get("key") == names.SUSPENDED and (each.get("operator") == "Exists" or not each.get("value")))
        )
        for each in pod["spec"].get("tolerations") or ()
    )


def must_leave(pod: Json, *, keep: bool) -> bool:
    """Whether a pod has to end before its node is suspended; with `keep`, those that tolerate it stay."""
    meta = pod["metadata"]
    owners = meta.get("ownerReferences") or ()
    stays = (
        pod.get("status", {}).get("phase") in ENDED_PHASES
        or _MIRROR in (meta.get("annotations") or {})
        or any(each["kind"] == "DaemonSet" and each.get("controller") for each in owners)
    )
    return not stays and not (keep and is_kept(pod))


def evicted_first(pods: Sequence[Json], *, keep: bool) -> tuple[list[Json], list[Json]]:
    """Return the pods that have to end, and those of them to evict now: of the lowest priority that is left."""
    left = [each for each in pods if must_leave(each, keep=keep)]
    lowest = min((each["spec"].get("priority") or 0 for each in left), default=0)
    now = [
        each
        for each in left
        if (each["spec"].get("priority") or 0) == lowest and each["metadata"].get("deletionTimestamp") is None
    ]
    return left, now


def lease_problem(renewed: str | None, since: datetime, now: datetime) -> str:
    """Say why a kubelet's Lease does not show that it answers with a clock in step; empty if it does.

    The kubelet writes its own time. A VM that resumes with the clock of yesterday renews its Lease in the past.
    """
    if renewed is None:
        return "its kubelet has no Lease"
    at = datetime.fromisoformat(renewed).astimezone(UTC)
    if at > now + AHEAD:
        return f"its clock is {(at - now).total_seconds():.0f} s ahead"
    if at <= since:
        return f"its kubelet has not renewed its Lease since {at:%Y-%m-%d %H:%M:%S} UTC by its own clock"
    return ""
