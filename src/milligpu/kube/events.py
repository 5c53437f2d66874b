"""Events on objects: how a person at `kubectl describe` hears of us."""

from datetime import UTC, datetime
from typing import Literal

# Kubernetes' own limits.
_NOTE_MAX = 1024
_INSTANCE_MAX = 128
_NAME_MAX = 200


def pod_event(
    pod: tuple[str, str, str],
    reason: str,
    action: str,
    note: str,
    *,
    reporter: tuple[str, str],
    kind: Literal["Normal", "Warning"] = "Warning",
) -> tuple[str, dict[str, object]]:
    """Path and body of a new event; `pod` is namespace, name and uid, `reporter` our name and which of us it is."""
    namespace, name, uid = pod
    controller, instance = reporter
    body: dict[str, object] = {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"generateName": f"{name[:_NAME_MAX]}-", "namespace": namespace},
        "eventTime": datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z"),
        "type": kind,
        "reason": reason,
        "action": action,
        "reportingController": controller,
        "reportingInstance": instance[:_INSTANCE_MAX],
        "regarding": {"apiVersion": "v1", "kind": "Pod", "namespace": namespace, "name": name, "uid": uid},
        "note": note if len(note) <= _NOTE_MAX else note[: _NOTE_MAX - 1] + "…",
    }
    return f"/apis/events.k8s.io/v1/namespaces/{namespace}/events", body
