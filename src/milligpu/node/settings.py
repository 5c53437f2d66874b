"""Where things are on a node; all of it can be moved for a kubelet that lives elsewhere."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from milligpu.model.gpu import Gpu
from milligpu.model.units import WHOLE, Milli

# A pod is bound for good: what cannot start where it is must be made anew by its owner. A minute is long enough for
# whoever is leaving to leave.
EVICT_AFTER_S = 60.0


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything that the agent is told."""

    node: str
    kubeconfig: str | None = None
    kubelet: Path = Path("/var/lib/kubelet")
    cdi: Path = Path("/var/run/cdi")
    state: Path = Path("/var/lib/milligpu")
    """What must outlive a reboot: promises to the kubelet."""
    run: Path = Path("/run/milligpu")
    """What must not: containers' pages."""
    listen: str = "0.0.0.0:9400"
    """For metrics and statistics."""
    evict_after: float = EVICT_AFTER_S
    """Seconds until a pod that may not start, and that has an owner, is evicted."""
    reserve: Mapping[int | None, Milli] = field(default_factory=dict[int | None, Milli])
    """The part of each card, by its number or for all others, that is set aside for commands on the node."""

    def reserved(self, index: int, gpu: Gpu) -> Milli:
        """What is set aside of a card."""
        part = self.reserve.get(index, self.reserve.get(None, 0))
        return Milli(gpu.milli * part // WHOLE)

    @property
    def device_plugins(self) -> Path:
        """Where the kubelet looks for device plugins."""
        return self.kubelet / "device-plugins"

    @property
    def pod_resources(self) -> Path:
        """Where it tells who holds what."""
        return self.kubelet / "pod-resources/kubelet.sock"

    @property
    def ledger(self) -> Path:
        """Promises."""
        return self.state / "promised"

    @property
    def commands(self) -> Path:
        """What serves `milligpu run`."""
        return self.run / "agent"

    @property
    def containers(self) -> Path:
        """Attachments."""
        return self.run / "containers"
