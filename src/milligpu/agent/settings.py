"""The agent's settings, with the paths on a node."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from milligpu.model.errors import BadRequest
from milligpu.model.gpu import Gpu
from milligpu.model.policy import DEFAULT_POLICY, SharePolicy
from milligpu.model.units import WHOLE, Milli

# A pod stays on its node: if it cannot start there, its controller has to replace it. Terminating pods end within a
# minute.
EVICT_AFTER_S = 60.0
# Reading eight GPUs takes 7 ms: less than a thousandth of one core.
AUDIT_EVERY_S = 10.0


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """The options of `milligpu agent`."""

    node: str
    kubeconfig: str | None = None
    kubelet: Path = Path("/var/lib/kubelet")
    cdi: Path = Path("/var/run/cdi")
    state: Path = Path("/var/lib/milligpu")
    """What must survive a reboot: allocations."""
    run: Path = Path("/run/milligpu")
    """What must not survive a reboot: attachments and sessions."""
    listen: str = "0.0.0.0:9400"
    """Address of the HTTP server."""
    evict_after: float = EVICT_AFTER_S
    """Seconds until a refused pod with a controller is evicted."""
    audit_every: float = AUDIT_EVERY_S
    """Seconds between two audits."""
    kill_outside: bool = False
    """Kill processes that exceed or bypass their limits."""
    runtime: Path = Path("/run/containerd/containerd.sock")
    """The container runtime's CRI socket."""
    reserve: Mapping[int | None, Milli] = field(default_factory=dict[int | None, Milli])
    """The part of each GPU that is reserved for sessions, by index; None is for all others."""

    policy: Mapping[int | None, SharePolicy] = field(default_factory=dict[int | None, SharePolicy])
    """The share policy of each GPU, by its index or for all others, unless an admin sets another one later."""

    host_root: Path = Path("/")
    """Where this process sees the node's root directory."""
    driver_root: Path | None = None
    """The root of the driver's files, as the node sees it; None to look for it."""

    def share_policy(self, index: int) -> SharePolicy:
        """The share policy with which a GPU starts."""
        return self.policy.get(index, self.policy.get(None, DEFAULT_POLICY))

    def check_indices(self, gpus: int) -> None:
        """Refuse a setting for a GPU that this machine does not have."""
        for option, indices in (("--reserve", self.reserve), ("--policy", self.policy)):
            for index in indices:
                if index is not None and index >= gpus:
                    want = f"the index of a GPU, from 0 to {gpus - 1}" if gpus else "left out: there is no GPU"
                    raise BadRequest(option, index, want)

    def reserved(self, index: int, gpu: Gpu) -> Milli:
        """Return the part of a GPU that is reserved for sessions."""
        part = self.reserve.get(index, self.reserve.get(None, 0))
        return Milli(gpu.milli * part // WHOLE)

    @property
    def device_plugins(self) -> Path:
        """The kubelet's directory of device plugins."""
        return self.kubelet / "device-plugins"

    @property
    def pod_resources(self) -> Path:
        """The socket of the pod-resources API."""
        return self.kubelet / "pod-resources/kubelet.sock"

    @property
    def ledger(self) -> Path:
        """The directory of the allocation store."""
        return self.state / "promised"

    @property
    def commands(self) -> Path:
        """The directory of the session service."""
        return self.run / "agent"

    @property
    def containers(self) -> Path:
        """The directory of the attachments."""
        return self.run / "containers"
