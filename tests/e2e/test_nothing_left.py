"""A cluster leaves nothing behind, not even when its owner is killed without warning.

Other clusters may come and go on the machine meanwhile, so each kind of thing is looked for by what ties it
to this cluster.
"""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest

from devcluster.cgroups import hierarchies
from devcluster.fixtures import unique_name
from devcluster.record import Clusters, Record
from devcluster.wait import until

pytestmark = pytest.mark.e2e

# Where programs like these usually leave something.
FOLDERS = ("/run", "/run/netns", "/var/run/cdi", "/var/lib", "/var/lib/cni", "/var/log", "/etc", "/usr/libexec")
OWNER = """
import sys
from devcluster.cluster import Cluster
from devcluster.fixtures import new_namespace
from devcluster.pods import pod, wait_for_phase

name, then = sys.argv[1:]
cluster = Cluster.start(name, real_nodes=1)
cluster.add_kwok_nodes(1)
namespace = new_namespace(cluster).__enter__()
cluster.client.create(pod("running"), namespace=namespace)
wait_for_phase(cluster, namespace, "running", "Running")
print("up", flush=True)
sys.stdin.readline()
if then == "stop":
    cluster.stop()
"""


@dataclass(frozen=True)
class Traces:
    """What there is of one cluster on the machine, by kind."""

    processes: frozenset[str]
    namespaces: frozenset[str]
    cgroups: frozenset[str]
    addresses: frozenset[str]
    routes: frozenset[str]
    links: frozenset[str]
    files: frozenset[str]


@dataclass(frozen=True)
class Shared:
    """What no cluster may change at all, whoever else has one."""

    mounts: frozenset[str]
    firewall: frozenset[str]
    files: frozenset[str]

    @classmethod
    def now(cls) -> "Shared":
        rules = _out("iptables-save") if shutil.which("iptables-save") else ""
        return cls(
            mounts=frozenset(Path("/proc/self/mounts").read_text().splitlines()),
            firewall=frozenset(rule for rule in rules.splitlines() if rule.startswith("-")),
            files=frozenset(f"{top}/{name}" for top in FOLDERS if Path(top).exists() for name in os.listdir(top)),
        )


def traces(record: Record, earlier: Traces | None = None) -> Traces:
    """Look for everything of the cluster; links and namespaces seen `earlier` are looked for again."""
    processes = _processes(record.name)
    ours = tuple(each.rpartition(".")[0] + "." for each in (record.plan.node(1), record.plan.api_service))
    pods = record.plan.pods(1).removesuffix("0/24")
    routes = [line for line in _out("ip", "route", "show", "table", "all").splitlines() if _has(line, pods, *ours)]
    addresses = _out("ip", "-oneline", "address").splitlines()
    links = {word for line in routes for word in line.split() if word.startswith("veth")}
    namespaces = {name for pid in processes for name in _namespaces(pid)} - _namespaces("self")
    if earlier:
        links |= earlier.links & {
            line.split("@")[0].split()[0] for line in _out("ip", "-brief", "link").splitlines()
        }
        namespaces |= earlier.namespaces & set(_out("lsns", "--noheadings", "--output=NS").split())
    return Traces(
        processes=frozenset(processes.values()),
        namespaces=frozenset(namespaces),
        cgroups=frozenset(str(path) for each in hierarchies() for path in each.mount.glob(f"*{record.name}*")),
        addresses=frozenset(line for line in addresses if _has(line, *ours)),
        routes=frozenset(routes),
        links=frozenset(links),
        files=frozenset(str(path) for path in record.folder.parent.glob(f"{record.name}*")),
    )


def _has(line: str, *prefixes: str) -> bool:
    return any(word.startswith(prefixes) for word in line.split())


def _out(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def _processes(name: str) -> dict[str, str]:
    """Processes that carry the cluster's name in their command or their cgroup."""
    found: dict[str, str] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            groups = (folder / "cgroup").read_text()
        except OSError:
            continue
        if name in command + groups and OWNER not in command:
            found[folder.name] = f"{folder.name} {command}"
    return found


def _namespaces(pid: str) -> set[str]:
    """The numbers of its mount and network namespace; none for a process that is gone."""
    try:
        names = [os.readlink(f"/proc/{pid}/ns/{kind}") for kind in ("mnt", "net")]
    except OSError:
        return set()
    return {name.partition("[")[2].rstrip("]") for name in names}


def _kill(owner: "subprocess.Popen[str]") -> None:
    owner.send_signal(signal.SIGKILL)
    owner.communicate()
    Clusters.of_this_machine().sweep()


def _stop(owner: "subprocess.Popen[str]") -> None:
    owner.communicate("stop\n")
    assert owner.returncode == 0


@pytest.mark.parametrize("end", [_kill, _stop], ids=["killed and swept", "stopped"])
def test_nothing_is_left_of_a_cluster_that_was(
    built_programs: None, end: Callable[["subprocess.Popen[str]"], None]
) -> None:
    name, before = unique_name(), Shared.now()
    command = [sys.executable, "-c", OWNER, name, "stop"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as owner:
        assert owner.stdout
        assert owner.stdout.readline().strip() == "up"
        record = Clusters.of_this_machine().find(name)
        assert record
        alive = traces(record)
        end(owner)

    # The test is worth something only if there was something of every kind to remove.
    for kind, seen in asdict(alive).items():
        assert seen, kind

    # Gone once is gone: somebody else may get the same addresses or namespace numbers the moment they are free.
    left, last = asdict(alive), alive

    def gone() -> bool:
        nonlocal last
        last = traces(record, last)
        now = asdict(last)
        for kind in [kind for kind in left if not now[kind]]:
            del left[kind]
        return not left

    # Init collects its dead, and the kernel takes namespaces apart, some milliseconds later.
    until("everything to be gone", gone, 10, last_state=lambda: repr(left))
    after = Shared.now()
    assert after.mounts == before.mounts
    assert after.firewall == before.firewall
    assert after.files <= before.files
