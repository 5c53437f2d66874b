"""A hostile container on a card that it shares with a victim: root inside, with every file and socket it finds."""

import errno
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from devcluster.fixtures import new_namespace
from devcluster.node import KUBELET_PORT
from devcluster.platform import Platform
from milligpu.model.gpu import GpuState
from milligpu.native import library
from tests.e2e.platform import attacks
from tests.e2e.platform.pods import (
    HOLD,
    Inside,
    apply,
    execute,
    get,
    look,
    manifest,
    pods,
    processes_of,
    wait_running,
)

pytestmark = pytest.mark.e2e

TENANT, SOFTGPU = "/run/milligpu/tenant", "/run/milligpu/softgpu"


class Arena:
    """Both on one card; what the victim has is looked at before and after each attack."""

    def __init__(self, platform: Platform, namespace: str) -> None:
        self.platform, self.cluster, self.namespace = platform, platform.cluster, namespace
        together = {"milligpu.dev/affinity": "together"}
        victim = manifest(
            "victim", 500, command=["python3", "-c", HOLD + "time.sleep(6000)", "libcuda.so.1", "1000"]
        )
        attacker = manifest("attacker", 250)
        for each in (victim, attacker):
            each["metadata"]["annotations"] = together
        apply(self.cluster, namespace, victim, attacker)
        wait_running(self.cluster, namespace, 2)
        self.before = self.state()

    def attack(self, program: str) -> Any:
        """What a Python program in the attacker's container prints, as JSON."""
        return json.loads(execute(self.cluster, self.namespace, "attacker", "import json, os\n" + program))

    def state(self) -> dict[str, Any]:
        """What no attack may change."""
        found = {name: look(self.cluster, self.namespace, name) for name in ("victim", "attacker")}
        return {
            "seen": {name: (inside.gpus, inside.code, limits(inside)) for name, inside in found.items()},
            "restarts": [
                (each["metadata"]["name"], status["restartCount"])
                for each in pods(self.cluster, self.namespace)
                for status in each["status"]["containerStatuses"]
            ],
            "cards": [(gpu.uuid, gpu.state, gpu.milli) for gpu in self.platform.nodes[0].inventory()],
            "agent": self.platform.nodes[0].agent.pid,
            "libraries": self.platform.nodes[0].node.run_inside("md5sum", *libraries()).stdout,
        }


def limits(inside: Inside) -> list[tuple[str, int, int, int]]:
    return [(gpu.uuid, gpu.milli, gpu.limit, gpu.memory_cap) for gpu in inside.page.gpus] if inside.page else []


def libraries() -> list[str]:
    """What containers get from the node: one file for all of them."""
    found = [f"{part}/{name}" for part in ("enforce", "softgpu") for name in ("libcuda.so.1", "libnvidia-ml.so.1")]
    return [str(library(name)) for name in found]


@pytest.fixture(scope="module")
def shared(platform: Platform) -> Iterator[Arena]:
    with new_namespace(platform.cluster) as namespace:
        yield Arena(platform, namespace)


@pytest.fixture
def arena(shared: Arena) -> Iterator[Arena]:
    yield shared
    assert shared.state() == shared.before


def test_the_attacker_and_the_victim_share_a_gpu(arena: Arena) -> None:
    seen = arena.before["seen"]
    assert (seen["victim"][0], seen["attacker"][0]) == ((20480,), (10240,))
    assert seen["victim"][2][0][0] == seen["attacker"][2][0][0]
    assert all(state is GpuState.OK for _, state, _ in arena.before["cards"])


def test_no_environment_variable_shows_another_gpu_or_more_memory(arena: Arena) -> None:
    for said in arena.attack(attacks.ENVIRONMENT):
        code, count, mib = said or ("1", "0", "0")
        # Its own share as ever, or no GPU at all.
        assert (code, count, mib) == ("0", "1", "10240") or code != "0"


def test_a_container_can_write_only_its_own_usage_page(arena: Arena) -> None:
    could = {(what, path) for what, path in arena.attack(attacks.WRITES)}
    assert {path for _, path in could} == {f"{TENANT}/usage"}
    assert ("write", f"{TENANT}/usage") in could


def test_a_container_cannot_change_its_mounts(arena: Arena) -> None:
    plain, inside = arena.attack(attacks.MOUNTS)
    assert plain == {"remount": False, "cover": False, "unmount": False, "proc": False}
    assert not any(worked for what, worked in inside.items() if what != "unshared")


def test_a_container_reaches_only_its_arbiter_and_its_own_gpus_socket(arena: Arena) -> None:
    found, abstract = arena.attack(attacks.SOCKETS)
    uuid = arena.before["seen"]["attacker"][2][0][0]
    at = [gpu.uuid for gpu in arena.platform.nodes[0].inventory()].index(uuid)
    assert found == [f"{SOFTGPU}/gpu{at}.sock", f"{TENANT}/arbiter"]
    assert abstract == []


def test_the_socket_of_its_gpu_gives_a_container_no_power_over_others(arena: Arena) -> None:
    uid = get(arena.cluster, arena.namespace, "victim")["metadata"]["uid"]
    # The victim's number on the node, which could be guessed.
    [victim] = [pid for pid, words in processes_of(uid) if "cuMemAlloc" in words]
    found = arena.attack(attacks.FORGED.replace("VICTIM", str(victim)))
    assert found["xid"] == 1  # CUDA_ERROR_INVALID_VALUE: a program cannot make a card look broken
    assert 0 not in found["settings"]
    assert found["orders"] == [800, 800, 800]  # CUDA_ERROR_NOT_PERMITTED
    assert found["release"] != 0


WORKS = (
    HOLD
    + """
for _ in range(50):
    assert cuda.cuMemsetD8_v2(memory, 1, ctypes.c_size_t(64 << 20)) == 0
    assert cuda.cuCtxSynchronize() == 0
print("done")
"""
)


def test_lies_to_the_arbiter_do_not_keep_the_victim_from_its_share(arena: Arena) -> None:
    with ThreadPoolExecutor(1) as pool:
        attack = pool.submit(arena.attack, attacks.ARBITER)
        command = ("exec", "-n", arena.namespace, "victim", "--", "python3", "-c", WORKS, "libcuda.so.1", "64")
        assert "done" in arena.cluster.kubectl(*command)
        assert attack.result() > 0


def test_a_corrupt_usage_page_does_not_affect_other_tenants(arena: Arena) -> None:
    assert arena.attack(attacks.SPOILS) > 0


def test_a_container_sees_only_its_own_processes_and_opens_no_device_file_that_it_creates(arena: Arena) -> None:
    seen, traced, numbers, rights = arena.attack(attacks.PROCESSES)
    assert (seen, traced) == (2, [])  # the container's own program, and this one
    assert numbers == [errno.EPERM] * 3  # NVIDIA's devices: refused, not missing
    assert not int(rights, 16) & (1 << 21)  # CAP_SYS_ADMIN


def test_a_container_cannot_change_anything_through_the_nodes_ports(arena: Arena) -> None:
    node = arena.platform.nodes[0]
    where = (node.node.address, int(node.url.rpartition(":")[2]), KUBELET_PORT)
    refused, strange, kubelet, alive = arena.attack(attacks.NETWORK.replace("NODE", repr(where)))
    assert set(refused) == {405}
    assert set(strange) <= {400, 404}
    assert (kubelet, alive) == (401, 200)
