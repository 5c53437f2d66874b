"""A cluster leaves nothing behind, not even when its owner is killed without warning."""

import os
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass, fields
from pathlib import Path

import pytest

from devcluster.cgroups import hierarchies
from devcluster.record import Clusters
from devcluster.wait import until

pytestmark = pytest.mark.e2e

FOLDERS = ("/run", "/var/lib", "/var/log", "/var/run/cdi", "/etc", "/tmp", "/var/lib/cni", "/usr/libexec")
OWNER = """
import sys
from devcluster.cluster import Cluster
from devcluster.fixtures import new_namespace
from devcluster.pods import pod, wait_for_phase

cluster = Cluster.start("doomed", real_nodes=1)
cluster.add_kwok_nodes(1)
namespace = new_namespace(cluster).__enter__()
cluster.client.create(pod("running"), namespace=namespace)
wait_for_phase(cluster, namespace, "running", "Running")
print("up", flush=True)
if sys.argv[1] == "stop":
    cluster.stop()
else:
    sys.stdin.read()
"""


@dataclass(frozen=True)
class Machine:
    """What a cluster could leave behind, by kind."""

    processes: frozenset[str]
    mounts: frozenset[str]
    cgroups: frozenset[str]
    namespaces: frozenset[str]
    addresses: frozenset[str]
    links: frozenset[str]
    routes: frozenset[str]
    firewall: frozenset[str]
    files: frozenset[str]
    forwarding: str

    @classmethod
    def now(cls) -> "Machine":
        namespaces = _out("lsns", "--noheadings", "--output=NS,TYPE")
        firewall = _out("iptables-save") if shutil.which("iptables-save") else ""
        return cls(
            processes=frozenset(_cluster_processes()),
            mounts=frozenset(Path("/proc/self/mounts").read_text().splitlines()),
            cgroups=frozenset(str(path) for each in hierarchies() for path in each.mount.glob("milligpu-*")),
            namespaces=frozenset(line for line in namespaces.splitlines() if "mnt" in line or "net" in line),
            addresses=frozenset(_out("ip", "-oneline", "address").splitlines()),
            links=frozenset(_out("ip", "-brief", "link").splitlines()),
            routes=frozenset(_out("ip", "route", "show", "table", "all").splitlines()),
            firewall=frozenset(line for line in firewall.splitlines() if not line.startswith(("#", ":"))),
            files=frozenset(f"{top}/{name}" for top in FOLDERS if Path(top).exists() for name in os.listdir(top))
            | frozenset(str(path) for path in Clusters.of_this_machine().folder.glob("*")),
            forwarding=Path("/proc/sys/net/ipv4/ip_forward").read_text(),
        )


def _out(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def _cluster_processes() -> list[str]:
    """Processes that carry the cluster's name in their command or their cgroup."""
    found: list[str] = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            groups = (folder / "cgroup").read_text()
        except OSError:
            continue
        if "doomed" in command + groups:
            found.append(f"{folder.name} {command}")
    return found


def _own(when_up: str) -> "subprocess.Popen[str]":
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, when_up],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert owner.stdout
    assert owner.stdout.readline().strip() == "up"
    return owner


def test_a_cluster_whose_owner_was_killed_is_swept_without_a_trace(built_programs: None) -> None:
    del built_programs
    Clusters.of_this_machine().sweep()
    before = Machine.now()
    owner = _own("wait")
    alive = Machine.now()

    owner.send_signal(signal.SIGKILL)
    owner.communicate()

    # The test is worth something only if there was something of every kind to clean up.
    for kind in ("processes", "cgroups", "namespaces", "addresses", "links", "routes", "files"):
        assert getattr(alive, kind) - getattr(before, kind), kind
    assert Clusters.of_this_machine().sweep() == ["doomed"]
    _nothing_new_since(before)


def test_a_cluster_that_is_stopped_leaves_no_trace(built_programs: None) -> None:
    del built_programs
    Clusters.of_this_machine().sweep()
    before = Machine.now()

    owner = _own("stop")
    owner.communicate()

    assert owner.returncode == 0
    _nothing_new_since(before)


def _nothing_new_since(before: Machine) -> None:
    # Init collects its dead, and the kernel takes namespaces apart, some milliseconds later.
    until("namespaces to go", lambda: Machine.now().namespaces <= before.namespaces, 10)
    until("the dead to be collected", lambda: Machine.now().processes <= before.processes, 10)
    after = Machine.now()
    assert after.forwarding == before.forwarding
    for kind in fields(Machine):
        if kind.name != "forwarding":
            # Things of other clusters may go meanwhile; nothing may come.
            assert getattr(after, kind.name) - getattr(before, kind.name) == frozenset(), kind.name
