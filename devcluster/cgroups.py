"""The cgroups that hold every process of a cluster, so that none of them is missed.

A process that restarts, daemonizes or is reparented stays in its cgroup, and so do its children. To kill a
cluster, kill the processes in its cgroups until they are empty.

    /milligpu-<cluster>/system        API server, etcd, kubelets, containerds, shims, ...
    /milligpu-<cluster>/<node>        the kubelet's cgroup root: pods are below it

This was tested with cgroup v1. The v2 branches follow the kernel's documentation and are untested.
"""

import errno
import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from devcluster.errors import DevclusterError
from devcluster.wait import until

# Killing is a loop, because a process can fork between our reading of the list and our signal.
KILL_DEADLINE_S = 20.0


@dataclass(frozen=True)
class Hierarchy:
    """One mounted cgroup file system; cgroup v1 has one per controller."""

    mount: Path
    controllers: frozenset[str]
    unified: bool


def hierarchies(mounts: str | None = None) -> tuple[Hierarchy, ...]:
    """Parse all cgroup file systems of this machine from the text of /proc/self/mounts."""
    lines = (mounts if mounts is not None else Path("/proc/self/mounts").read_text()).splitlines()
    found: dict[Path, Hierarchy] = {}
    for line in lines:
        _, mount, kind, options, *_ = line.split()
        if kind in ("cgroup", "cgroup2"):
            path = Path(mount)
            found[path] = Hierarchy(path, frozenset(options.split(",")), unified=kind == "cgroup2")
    return tuple(found.values())


def tracking(all_of_them: tuple[Hierarchy, ...]) -> Hierarchy:
    """Return the hierarchy in which processes are tracked: v1's `pids`, otherwise the unified one."""
    for hierarchy in all_of_them:
        if not hierarchy.unified and "pids" in hierarchy.controllers:
            return hierarchy
    for hierarchy in all_of_them:
        if hierarchy.unified:
            return hierarchy
    raise DevclusterError("no cgroup file system is mounted", "mount cgroup2 on /sys/fs/cgroup")


class ClusterCgroup:
    """The cgroups of one cluster in every hierarchy; the path depends only on the cluster's name."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._hierarchies = hierarchies()
        self._tracking = tracking(self._hierarchies)

    @property
    def system_procs(self) -> Path:
        """The file into which a process writes its PID to join the cluster."""
        return self._tracking.mount / self.name / "system" / "cgroup.procs"

    def create(self) -> None:
        """Create the cgroup of the components; under v2, delegate all controllers to the nodes' cgroups."""
        self._mkdir(self._tracking, f"{self.name}/system")

    def node_folder(self, node: str) -> Path:
        """The cgroup of a node's pods."""
        return self._tracking.mount / self.name / node

    def create_node(self, node: str) -> str:
        """Create a node's cgroup in every hierarchy (the kubelet requires each) and return its path."""
        for hierarchy in self._hierarchies:
            if not hierarchy.unified or hierarchy is self._tracking:
                self._mkdir(hierarchy, f"{self.name}/{node}")
        return f"/{self.name}/{node}"

    def _mkdir(self, hierarchy: Hierarchy, path: str) -> None:
        here = hierarchy.mount
        for part in path.split("/"):
            if hierarchy.unified:
                _enable_controllers(here)
            (here / part).mkdir(exist_ok=True)
            if "cpuset" in hierarchy.controllers:
                _copy_cpuset(here, here / part)
            here = here / part

    def pids(self, node: str = "") -> list[int]:
        """Return every live process of the cluster, including pods, or of the pods of one node."""
        found: list[int] = []
        for folder in _deepest_first(self._tracking.mount / self.name / node):
            with suppress(FileNotFoundError, OSError):
                found += [int(line) for line in (folder / "cgroup.procs").read_text().split()]
        return found

    def kill(self) -> None:
        """Send SIGKILL until no process is left; a forking process cannot escape for long."""

        def nothing_left() -> bool:
            pids = self.pids()
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            return not pids

        until(f"the processes of {self.name} to die", nothing_left, KILL_DEADLINE_S, every_s=0.01)

    def remove(self, node: str = "") -> None:
        """Remove the empty cgroups of the cluster, or of one node, from every hierarchy."""
        until(
            f"the cgroups of {node or self.name} to go",
            lambda: self._try_remove(node),
            KILL_DEADLINE_S,
            every_s=0.02,
            retry=(OSError,),
        )

    def _try_remove(self, node: str) -> bool:
        for hierarchy in self._hierarchies:
            for folder in _deepest_first(hierarchy.mount / self.name / node):
                with suppress(FileNotFoundError):
                    folder.rmdir()
        return True


def _deepest_first(top: Path) -> Iterator[Path]:
    for folder, _, _ in os.walk(top, topdown=False):
        yield Path(folder)


def _copy_cpuset(parent: Path, child: Path) -> None:
    """Copy the parent's CPUs and memory nodes: a new v1 cpuset is empty, and no process can run in it."""
    for file in ("cpuset.cpus", "cpuset.mems"):
        if not (child / file).read_text().strip():
            (child / file).write_text((parent / file).read_text())


def _enable_controllers(folder: Path) -> None:
    """Delegate controllers to children; needed only under v2."""
    for controller in (folder / "cgroup.controllers").read_text().split():
        try:
            (folder / "cgroup.subtree_control").write_text(f"+{controller}")
        except OSError as error:
            # EBUSY and similar: a controller that a parent cannot delegate (threaded, real-time tasks).
            if error.errno not in (errno.EBUSY, errno.EINVAL, errno.EOPNOTSUPP, errno.ENOENT):
                raise
