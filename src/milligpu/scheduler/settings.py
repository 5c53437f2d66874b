"""The scheduler service's settings."""

from dataclasses import dataclass, field
from pathlib import Path

from milligpu.dialects import DialectSettings
from milligpu.http_server import TlsServerFiles
from milligpu.scheduler.declared_classes import DeclaredClass
from milligpu.scheduler.leader import FollowedLease, LeaderTiming


@dataclass(frozen=True, slots=True)
class SchedulerSettings:
    """The options of `milligpu scheduler serve`."""

    identity: str
    """Name of this instance in leader election, such as its pod's name."""
    host: str = "127.0.0.1"
    port: int = 8888
    schedulers: tuple[str, ...] = ("default-scheduler",)
    """The `schedulerName`s of the kube-schedulers that have the extender."""
    namespace: str = "milligpu"
    lease: str = "milligpu-scheduler"
    timing: LeaderTiming = field(default_factory=LeaderTiming)
    follow: FollowedLease | None = None
    """Lead only while the kube-scheduler next to this instance leads."""
    tls: TlsServerFiles | None = None
    dialects: DialectSettings = field(default_factory=DialectSettings)
    classes: tuple[DeclaredClass, ...] | None = None
    """The classes that the leader keeps in the cluster; None if it leaves them to others."""
    vsphere: Path | None = None
    """Directory with the login of the vCenter whose VMs layouts switch; None for layouts without VMs."""
    sharepods: bool = False
    """Whether the leader creates the pods of KubeShare's SharePods; that needs the webhook."""
