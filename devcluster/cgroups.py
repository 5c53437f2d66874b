"""The cgroup tree that holds every process of a cluster, so that none of them can be lost.

A process may be killed, restarted, daemonize or be reparented: it stays in its cgroup, and so do its
children. Killing a cluster therefore means killing what is in its tree until the tree is empty.

    /milligpu-<cluster>/system        API server, etcd, kubelets, containerds, shims, ...
    /milligpu-<cluster>/<node>        the kubelet's cgroup root: pods are below it

cgroup v1 is what this was run on. The v2 branches follow the kernel's documentation and have not been run.
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

# Killing is a loop because a process can fork between our reading the list and our signal.
KILL_DEADLINE_S = 20.0


@dataclass(frozen=True)
class Hierarchy:
    """One mounted cgroup file system; under v1 there is one per controller."""

    mount: Path
    controllers: frozenset[str]
    unified: bool


def hierarchies(mounts: str | None = None) -> tuple[Hierarchy, ...]:
    """All cgroup file systems of this machine, from the text of /proc/self/mounts."""
    lines = (mounts if mounts is not None else Path("/proc/self/mounts").read_text()).splitlines()
    found: dict[Path, Hierarchy] = {}
    for line in lines:
        _, mount, kind, options, *_ = line.split()
        if kind in ("cgroup", "cgroup2"):
            path = Path(mount)
            found[path] = Hierarchy(path, frozenset(options.split(",")), unified=kind == "cgroup2")
    return tuple(found.values())


def tracking(all_of_them: tuple[Hierarchy, ...]) -> Hierarchy:
    """The hierarchy that processes are put into and found in: v1's `pids`, else the unified one."""
    for hierarchy in all_of_them:
        if not hierarchy.unified and "pids" in hierarchy.controllers:
            return hierarchy
    for hierarchy in all_of_them:
        if hierarchy.unified:
            return hierarchy
    raise DevclusterError("no cgroup file system is mounted", "mount cgroup2 on /sys/fs/cgroup")


class ClusterCgroup:
    """The tree of one cluster in every hierarchy, named by the cluster alone."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._hierarchies = hierarchies()
        self._tracking = tracking(self._hierarchies)

    @property
    def system_procs(self) -> Path:
        """The file that a process writes itself into to join the cluster."""
        return self._tracking.mount / self.name / "system" / "cgroup.procs"

    def create(self) -> None:
        """Make the part for the components; under v2 hand all controllers down to the nodes' parts."""
        self._mkdir(self._tracking, f"{self.name}/system")

    def node_folder(self, node: str) -> Path:
        """Where the processes of a node's pods are found."""
        return self._tracking.mount / self.name / node

    def create_node(self, node: str) -> str:
        """Make a node's part in every hierarchy (a kubelet insists on each) and return its path."""
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
        """Every live process of the cluster, pods included, or of the pods of one node."""
        found: list[int] = []
        for folder in _deepest_first(self._tracking.mount / self.name / node):
            with suppress(FileNotFoundError, OSError):
                found += [int(line) for line in (folder / "cgroup.procs").read_text().split()]
        return found

    def kill(self) -> None:
        """SIGKILL until nothing is left; a forking process cannot outrun it for long."""

        def nothing_left() -> bool:
            pids = self.pids()
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            return not pids

        until(f"the processes of {self.name} to die", nothing_left, KILL_DEADLINE_S, every_s=0.01)

    def remove(self, node: str = "") -> None:
        """Remove the empty tree, or that of one node, from every hierarchy."""
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
    """A new v1 cpuset is empty, and nothing can run in an empty cpuset."""
    for file in ("cpuset.cpus", "cpuset.mems"):
        if not (child / file).read_text().strip():
            (child / file).write_text((parent / file).read_text())


def _enable_controllers(folder: Path) -> None:
    """v2 only: children get the controllers that their parent hands down."""
    for controller in (folder / "cgroup.controllers").read_text().split():
        try:
            (folder / "cgroup.subtree_control").write_text(f"+{controller}")
        except OSError as error:
            # EBUSY and friends: a controller that a parent cannot hand down (threaded, real-time tasks).
            if error.errno not in (errno.EBUSY, errno.EINVAL, errno.EOPNOTSUPP, errno.ENOENT):
                raise
