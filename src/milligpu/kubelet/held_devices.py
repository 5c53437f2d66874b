"""Device slots that a container holds, by the kubelet's checkpoint or its pod-resources API."""

from dataclasses import dataclass

from milligpu.model.request import PodRef


@dataclass(frozen=True, slots=True)
class HeldDevices:
    """What one container holds of one resource; each source leaves out what it does not know."""

    pod: PodRef
    """The checkpoint knows only the uid, the API only namespace and name."""
    container: str
    resource: str
    slots: frozenset[str] = frozenset()
    """Empty in the checkpoint."""
    cdi_names: tuple[str, ...] = ()
    """The CDI names that Allocate answered with; empty in the API."""
