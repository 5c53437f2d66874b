"""Containers of all kinds, and what becomes of their shares when they, the agent or the API server end."""

import os
import signal
from typing import Any

import httpx2
import pytest
from lightkube.core.exceptions import ApiError

from devcluster.cluster import Cluster
from devcluster.platform import Platform
from devcluster.pods import wait_for_phase
from devcluster.wait import until
from tests.e2e.platform.pods import (
    DEADLINE_S,
    HOLD,
    LOOK,
    Inside,
    Json,
    apply,
    get,
    look,
    manifest,
    processes_of,
    wait_running,
)

pytestmark = pytest.mark.e2e

BASE = "local.dev/base:1"
# Ends with 1 when it is told to, as a program that fails.
FAILS = ["bash", "-c", "trap 'exit 1' TERM; sleep infinity & wait"]


def container(name: str, milli: int | None, *command: str, **more: Any) -> Json:
    asked = {"resources": {"limits": {"nvidia.com/vgpu": milli}}} if milli else {}
    return {"name": name, "image": BASE, "command": list(command), **asked, **more}


def log_of(cluster: Cluster, namespace: str, pod: str, container: str) -> str | None:
    """What a container has said so far."""
    return "".join(cluster.client.log(pod, namespace=namespace, container=container)) or None


def milli_of(inside: Inside) -> list[int]:
    return [gpu.milli for gpu in inside.page.gpus] if inside.page else []


def test_each_kind_of_container_has_the_share_that_it_asked_for(platform: Platform, namespace: str) -> None:
    sees = ("python3", "-c", LOOK)
    stays = ("python3", "-c", LOOK + "\nimport sys, time\nsys.stdout.flush()\ntime.sleep(600)")
    spec = {
        "restartPolicy": "Never",
        "initContainers": [
            container("prepare", 400, *sees),
            container("sidecar", 100, *stays, restartPolicy="Always"),
            container("last", 200, *sees),
        ],
        "containers": [
            container("first", 300, *stays),
            container("second", 200, *stays),
            container("none", None, *stays),
        ],
    }
    apply(platform.cluster, namespace, manifest("kinds", spec=spec))
    wait_running(platform.cluster, namespace, 1)

    def said(name: str) -> Inside:
        return Inside.read(
            until(f"the word of {name}", lambda: log_of(platform.cluster, namespace, "kinds", name), DEADLINE_S)
        )

    wanted = {"prepare": 400, "sidecar": 100, "last": 200, "first": 300, "second": 200}
    assert {name: milli_of(said(name)) for name in wanted} == {name: [milli] for name, milli in wanted.items()}
    assert (said("none").gpus, said("none").page) == ((), None)
    # By Kubernetes' formula: the sidecar with the two that stay, 600 in all.
    assert len({gpu.uuid for name in wanted for gpu in said(name).page.gpus}) == 1  # pyright: ignore[reportOptionalMemberAccess]


class Restarts:
    """Lets the program of a one-container pod end, and waits until the kubelet has started it again."""

    def __init__(self, platform: Platform, namespace: str, name: str) -> None:
        self._cluster = platform.cluster
        self._namespace = namespace
        self._name = name
        apply(self._cluster, namespace, manifest(name, 300, command=FAILS))
        [pod] = wait_running(self._cluster, namespace, 1)
        self._uid = str(pod["metadata"]["uid"])

    def end(self) -> int:
        """As seen from the node, without asking the API server."""
        pid = self.pid()
        assert pid is not None
        os.kill(pid, signal.SIGTERM)
        return pid

    def pid(self) -> int | None:
        """Of the program, on the node."""
        return next((pid for pid, words in processes_of(self._uid) if "trap" in words), None)

    def wait(self, times: int) -> Json:
        def again() -> Json | None:
            [status] = get(self._cluster, self._namespace, self._name)["status"]["containerStatuses"]
            return status if status["restartCount"] >= times and "running" in status["state"] else None

        state = self._cluster.last_state
        return until(f"restart {times}", again, DEADLINE_S, last_state=lambda: state(self._namespace))

    def look(self) -> Inside:
        return look(self._cluster, self._namespace, self._name)


def test_a_container_that_fails_again_and_again_has_its_share_each_time(platform: Platform, namespace: str) -> None:
    fails = Restarts(platform, namespace, "fails")
    for times in (1, 2):
        fails.end()
        fails.wait(times)
        assert milli_of(fails.look()) == [300]


def test_a_container_that_the_kernel_killed_for_memory_starts_again_with_an_empty_account(
    platform: Platform, namespace: str
) -> None:
    greedy = (
        HOLD
        + """
import os
if not os.path.exists("/state/was-here"):
    open("/state/was-here", "w").close()
    eaten = [bytearray(b"x" * (1 << 24)) for _ in range(64)]
time.sleep(600)
"""
    )
    limits = {"nvidia.com/vgpu": 300, "memory": "256Mi"}
    mounts = [{"name": "state", "mountPath": "/state"}]
    pod = manifest(
        "oom",
        command=["python3", "-c", greedy, "libcuda.so.1", "1000"],
        resources={"limits": limits},
        volumeMounts=mounts,
        spec={"volumes": [{"name": "state", "emptyDir": {}}]},
    )
    apply(platform.cluster, namespace, pod)

    def again() -> Json | None:
        statuses = get(platform.cluster, namespace, "oom")["status"].get("containerStatuses", [])
        return next((each for each in statuses if each["restartCount"] and "running" in each["state"]), None)

    state = platform.cluster.last_state
    status = until("its restart", again, DEADLINE_S, last_state=lambda: state(namespace))
    assert status["lastState"]["terminated"]["reason"] == "OOMKilled"

    # What died with 1000 MiB is not charged to what lives with as much.
    def used() -> int:
        return memory_used(platform, namespace, "oom")

    until("its memory", lambda: 1000 <= used() < 2000, 60, last_state=lambda: str(used()))


def memory_used(platform: Platform, namespace: str, pod: str) -> int:
    """MiB of a pod, as the agent counts it."""
    stats = httpx2.get(f"{platform.nodes[0].url}/stats", timeout=5).json()
    mine = [each for each in stats["shares"] if (each["namespace"], each["pod"]) == (namespace, pod)]
    return sum(each["accelerator"]["memoryUsed"] for each in mine) >> 20


def test_containers_restart_while_the_agent_is_away(platform: Platform, namespace: str) -> None:
    fails, agent = Restarts(platform, namespace, "fails"), platform.nodes[0]
    agent.agent.kill()
    try:
        fails.end()
        fails.wait(1)
        assert milli_of(fails.look()) == [300]
    finally:
        agent.start()
    assert milli_of(fails.look()) == [300]


def test_containers_restart_while_the_api_server_is_away(platform: Platform, namespace: str) -> None:
    fails, plane = Restarts(platform, namespace, "fails"), platform.cluster.control_plane
    plane.apiserver.kill()
    try:
        before = fails.end()
        until("the program to run again", lambda: fails.pid() not in {before, None}, DEADLINE_S)
    finally:
        plane.apiserver.start()
        plane.wait_ready()
    fails.wait(1)
    assert milli_of(fails.look()) == [300]


def test_a_container_that_requests_no_gpu_gets_none_whatever_its_environment_says(
    platform: Platform, namespace: str
) -> None:
    cluster, node = platform.cluster, platform.nodes[0].node
    apply(cluster, namespace, manifest("holder", 300))
    wait_running(cluster, namespace, 1)
    file = next(node.cdi_dir.glob("milligpu-*.json"))
    device = f"milligpu.dev/share={file.stem.removeprefix('milligpu-')}"
    asks = {"NVIDIA_VISIBLE_DEVICES": "all", "NVIDIA_DRIVER_CAPABILITIES": "all", "CUDA_VISIBLE_DEVICES": "0,1"}
    pod = manifest("asks", env=[{"name": key, "value": value} for key, value in asks.items()])
    # CDI's own way to ask, for whoever the container runtime listens to: the pod's annotations are not among them.
    pod["metadata"]["annotations"] = {"cdi.k8s.io/other": device, "cdi.k8s.io/all": "nvidia.com/gpu=all"}
    apply(cluster, namespace, pod)
    wait_running(cluster, namespace, 2)
    inside = look(cluster, namespace, "asks")
    assert (inside.gpus, inside.page, inside.visible) == ((), None, "void")
    assert "libcuda.so.1" in str(inside.code)


def test_a_container_uses_its_share_as_any_user(platform: Platform, namespace: str) -> None:
    works = HOLD + "assert cuda.cuMemsetD8_v2(memory, 1, ctypes.c_size_t(64 << 20)) == 0\nprint('done', flush=True)"
    pod = manifest("nobody", 300, command=["python3", "-c", works, "libcuda.so.1", "64"])
    rights = {"runAsUser": 65534, "runAsGroup": 65534, "capabilities": {"drop": ["ALL"]}}
    pod["spec"]["containers"][0]["securityContext"] = {**rights, "allowPrivilegeEscalation": False}
    pod["spec"]["restartPolicy"] = "Never"
    apply(platform.cluster, namespace, pod)
    wait_for_phase(platform.cluster, namespace, "nobody", "Succeeded")
    assert platform.cluster.kubectl("logs", "-n", namespace, "nobody") == "done\n"


def test_a_container_that_joins_to_look_around_gets_no_gpu(platform: Platform, namespace: str) -> None:
    apply(platform.cluster, namespace, manifest("holder", 300))
    wait_running(platform.cluster, namespace, 1)
    joins = ("debug", "holder", "-n", namespace, "--image=local.dev/base:1", "-c", "joins", "--profile=baseline")
    platform.cluster.kubectl(*joins, "--", "python3", "-c", LOOK)
    inside = Inside.read(
        until(
            "its word",
            lambda: log_of(platform.cluster, namespace, "holder", "joins"),
            DEADLINE_S,
            retry=(ApiError,),
        )
    )
    assert (inside.gpus, inside.page, inside.visible) == ((), None, "void")
    assert milli_of(look(platform.cluster, namespace, "holder")) == [300]
