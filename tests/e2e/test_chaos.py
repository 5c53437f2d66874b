"""Load and failures on a node: no GPU is over-committed, no share is lost, and no pod fails because of us."""

import struct
from concurrent.futures import ThreadPoolExecutor

import pytest
from lightkube.resources.core_v1 import Event, Pod

from devcluster.api import list_in
from devcluster.cluster import Cluster
from devcluster.platform import Platform
from devcluster.pods import phase, pod
from devcluster.wait import until
from milligpu.model import names
from testing.chaos.__main__ import run
from testing.chaos.observe import is_stranded
from testing.chaos.script import REBOOTS, Component, Create, Disruption, PodLifecycle, Round, Script
from testing.chaos.testbed import NAMESPACE, ChaosTestbed, run_rounds
from tests.e2e.scheduling import grant_of, grants, overcommitted

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200)]

PODS = 50
# Kubernetes' own event reasons for pods that wait for the scheduler, and for any pod of a new, small cluster.
NOT_OURS = ("FailedScheduling", "MissingClusterDNS", "FailedMount")
# With these seeds every component is disrupted within this many rounds; in the few rounds all but the node itself.
ROUNDS, SEED = 20, 36
FEW_ROUNDS, FEW_SEED = 6, 713
CARD_MIB = 40960
MIB = 1 << 20
# What a container sees: the driver's answers, its limits page, and its usage page after an allocation.
LOOK = """
import ctypes, time
cuda = ctypes.CDLL("libcuda.so.1")
def check(code):
    assert code == 0, code
count, total, context, memory = ctypes.c_int(), ctypes.c_size_t(), ctypes.c_void_p(), ctypes.c_uint64()
check(cuda.cuInit(0))
check(cuda.cuDeviceGetCount(ctypes.byref(count)))
check(cuda.cuDeviceTotalMem_v2(ctypes.byref(total), 0))
check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
check(cuda.cuCtxSetCurrent(context))
check(cuda.cuMemAlloc_v2(ctypes.byref(memory), 1 << 20))
limits = open("/run/milligpu/tenant/limits", "rb").read()
usage = open("/run/milligpu/tenant/usage", "rb").read()
print(count.value, total.value, limits[64:192].hex(), usage[64:72].hex(), flush=True)
time.sleep(100000)
"""


@pytest.fixture(scope="module")
def platform(hurt_cluster: Cluster, hurt_platform: Platform) -> tuple[Cluster, Platform]:
    """A cluster that these tests may disrupt."""
    return hurt_cluster, hurt_platform


def test_fifty_pods_created_at_once_start_without_retries_and_get_their_shares(
    platform: tuple[Cluster, Platform],
) -> None:
    cluster, _ = platform
    sizes = {f"pod-{number}": 10 + number for number in range(PODS)}

    def create(name: str) -> None:
        requested = pod(name, ["python3", "-c", LOOK], resources={names.VGPU: str(sizes[name])})
        cluster.client.create(requested, namespace=NAMESPACE)

    with ThreadPoolExecutor(10) as pool:
        list(pool.map(create, sizes))
    until(
        "all to run", lambda: _phases(cluster) == {"Running"}, 180, last_state=lambda: cluster.last_state(NAMESPACE)
    )

    pods = {
        (each.metadata.name if each.metadata else "") or "": each
        for each in list_in(cluster.client, Pod, NAMESPACE)
    }
    assert set(pods) == set(sizes)
    for name, each in pods.items():
        _sees_its_share(cluster, name, each, sizes[name])
    assert overcommitted(grants(cluster, NAMESPACE), mib=CARD_MIB) == []
    events = [event for event in list_in(cluster.client, Event, NAMESPACE) if event.involvedObject.kind == "Pod"]
    warnings = [event for event in events if event.type == "Warning" and event.reason not in NOT_OURS]
    assert [f"{event.reason}: {event.message}" for event in warnings] == []
    cluster.kubectl("delete", "pods", "--all", "--namespace", NAMESPACE, "--wait=false")
    until("all to be gone", lambda: not list_in(cluster.client, Pod, NAMESPACE), 120)


def _phases(cluster: Cluster) -> set[str]:
    return {phase(each) for each in list_in(cluster.client, Pod, NAMESPACE)}


def _sees_its_share(cluster: Cluster, name: str, found: Pod, milli: int) -> None:
    assert found.status is not None
    assert [status.restartCount for status in found.status.containerStatuses or []] == [0]
    grant = grant_of(found)
    assert grant is not None
    ((held,),) = grant.containers.values()
    share = held.share
    assert (share.milli, share.mib) == (milli, CARD_MIB * milli // 1000)
    said = until(f"{name} to say what it sees", lambda: _words(cluster, name), 60)
    assert (int(said[0]), int(said[1])) == (1, share.mib * MIB)
    uuid, page_milli, _, cap = struct.unpack("<48sIIQ", bytes.fromhex(said[2])[:64])
    assert (uuid.rstrip(b"\0").decode(), page_milli, cap) == (held.gpu, milli, share.mib * MIB)
    (used,) = struct.unpack("<Q", bytes.fromhex(said[3]))
    assert MIB <= used <= cap


def _words(cluster: Cluster, name: str) -> list[str] | None:
    return "".join(cluster.client.log(name, namespace=NAMESPACE)).split() or None


def test_a_stranded_pod_is_recognized_by_its_container_in_the_runtime(platform: tuple[Cluster, Platform]) -> None:
    cluster, (node, *_) = platform[0], platform[1].nodes
    cluster.client.create(pod("runs", ["python3", "-c", LOOK], resources={names.VGPU: "100"}), namespace=NAMESPACE)
    until("it to run", lambda: phase(cluster.client.get(Pod, "runs", namespace=NAMESPACE)) == "Running", 60)
    (found,) = list_in(cluster.client, Pod, NAMESPACE)
    assert found.metadata is not None
    assert found.metadata.uid is not None
    assert not is_stranded(node, found.metadata.uid)
    assert not is_stranded(node, "unknown")

    labels = ("io.kubernetes.pod.uid=stranded", "io.cri-containerd.kind=container")
    words = [word for label in labels for word in ("--label", label)]
    made = node.node.ctr("--namespace=k8s.io", "containers", "create", *words, "--rootfs", "/", "by-hand")
    assert made.returncode == 0, made.stderr
    assert is_stranded(node, "stranded")
    assert node.node.ctr("--namespace=k8s.io", "containers", "delete", "by-hand").returncode == 0
    cluster.client.delete(Pod, "runs", namespace=NAMESPACE, grace_period=0)
    until("it to be gone", lambda: not list_in(cluster.client, Pod, NAMESPACE), 60)


@pytest.mark.parametrize("component", [Component.REBOOT, Component.STALE_REBOOT])
def test_after_a_reboot_every_container_has_its_share_again(
    platform: tuple[Cluster, Platform], component: Component
) -> None:
    testbed = ChaosTestbed(*platform)
    made = [
        Create(f"{component.name.lower().replace('_', '-')}-{milli}", milli, PodLifecycle.STAYS)
        for milli in (1000, 500, 300, 200)
    ]
    with testbed.watched():
        testbed.run_round(Round(1, tuple((0.0, step) for step in made)))
        before = grants(platform[0], NAMESPACE)
        testbed.run_round(Round(2, ((0.0, Disruption(component, 0.0)),)))
        # Pods that the kubelet rejected while no device plugin ran are gone; all others are unchanged.
        after = grants(platform[0], NAMESPACE)
        testbed.finish()
    assert testbed.outcome.violations == []
    assert len(before) == len(made)
    assert after == {name: grant for name, grant in before.items() if name in after}
    assert len(after) == len(made) - testbed.outcome.rejected.total()


def test_six_rounds_of_chaos_disrupt_each_component_and_cause_no_violation(
    platform: tuple[Cluster, Platform],
) -> None:
    # Reboots take a minute; the test above has both kinds.
    disrupted = {component for each in Script(FEW_SEED).rounds(FEW_ROUNDS) for component in each.components}
    assert disrupted == set(Component) - REBOOTS
    outcome = run_rounds(ChaosTestbed(*platform), FEW_ROUNDS, FEW_SEED)
    assert outcome.violations == []
    assert outcome.rounds == FEW_ROUNDS


@pytest.mark.alone
@pytest.mark.long
def test_twenty_rounds_of_chaos_cause_no_violation(built_programs: None) -> None:
    del built_programs
    assert {component for each in Script(SEED).rounds(ROUNDS) for component in each.components} == set(Component)
    outcome = run(ROUNDS, SEED, logs=None)
    assert outcome.violations == []
    assert outcome.rounds == ROUNDS
