"""Share policies of one GPU of a node with many: who gets idle time, a share of 0, and equal parts."""

import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from devcluster.platform import PROGRAM, GpuNode, Platform
from devcluster.wait import until
from milligpu.model import names
from milligpu.model.policy import DEFAULT_POLICY, SharePolicy
from milligpu.model.reasons import EventReason
from milligpu.wire.grant import decode_grant
from tests.e2e.busy import start_busy, wait_busy, wait_for_shares
from tests.e2e.platform.pods import DEADLINE_S, Json, get, wait_running, wait_told

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]


def gpus_of(pod: Json) -> list[str]:
    return list(decode_grant(pod["metadata"]["annotations"][names.GRANT]).gpus)


def sharepod(request: str, limit: str, **annotations: str) -> dict[str, Any]:
    """A SharePod of KubeShare 1."""
    amounts = {"kubeshare/gpu_request": request, "kubeshare/gpu_limit": limit, "kubeshare/gpu_mem": "1073741824"}
    return {"kind": "SharePod", "annotations": {**amounts, **annotations}}


def test_a_share_of_0_and_kubeshares_limit_live_on_idle_time_up_to_the_limit_and_shares_come_first(
    platform: Platform, namespace: str
) -> None:
    cluster, node = platform.cluster, platform.nodes[0]
    # All on one GPU that nobody else is on.
    together = {names.AFFINITY: namespace, names.EXCLUSION: namespace}
    together_v1 = {"kubeshare/sched_affinity": namespace, "kubeshare/sched_exclusion": namespace}
    nothing = '{"main": {"milli": 0, "mib": 1024, "limit": 250}}'
    pods: dict[str, dict[str, Any]] = {
        "share": {"annotations": together, "limits": {names.VGPU: 400}},
        "none": {"annotations": {**together, names.SHARES: nothing}, "limits": {names.VGPU: 1}},
        "v1-open": sharepod("0.05", "0.2", **together_v1),
        "v1-closed": sharepod("0.05", "0.05", **together_v1),
    }
    start_busy(cluster, namespace, pods)
    running = wait_running(cluster, namespace, len(pods))
    assert len({uuid for pod in running for uuid in gpus_of(pod)}) == 1
    wait_busy(node, namespace, len(pods))
    # The limits add up to 0.9 of the GPU, so each pod can have its own.
    limits = {"none": 0.25 / 0.4, "v1-open": 0.2 / 0.4, "v1-closed": 0.05 / 0.4}
    wait_for_shares(
        node,
        namespace,
        "share",
        "idle time up to each limit and no more",
        lambda got: {pod: got[pod] for pod, limit in limits.items() if not 0.7 * limit < got[pod] < 1.3 * limit},
    )
    start_busy(cluster, namespace, {"rest": {"annotations": together, "limits": {names.VGPU: 500}}})
    wait_running(cluster, namespace, len(pods) + 1)
    wait_busy(node, namespace, len(pods) + 1)
    wait_for_shares(
        node,
        namespace,
        "share",
        "no idle time while shares need all of the GPU",
        lambda got: {pod: got[pod] for pod in limits if got[pod] > 1.5 * 0.05 / 0.4},
    )


@pytest.fixture
def equal_gpu(platform: Platform) -> Iterator[str]:
    """A GPU whose policy an admin set to `equal`."""
    node = platform.nodes[0]
    uuid = node.inventory()[-1].uuid
    set_policy(node, uuid, "equal")
    yield uuid
    set_policy(node, uuid, "default")


def set_policy(node: GpuNode, uuid: str, policy: str) -> None:
    """What an admin types; waits until the agent has published it."""
    command = [str(PROGRAM), "gpu", "policy", uuid, policy, "--kubeconfig", str(node.cluster.kubeconfig)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    wanted = DEFAULT_POLICY if policy == "default" else SharePolicy(policy)
    until(
        f"the policy {policy} of {uuid}",
        lambda: {gpu.uuid: gpu.policy for gpu in node.inventory()}[uuid] == wanted,
        DEADLINE_S,
    )


def test_equal_parts_on_a_gpu_of_that_policy_alone_and_by_share_again_when_an_admin_ends_it(
    platform: Platform, namespace: str, equal_gpu: str
) -> None:
    cluster, node = platform.cluster, platform.nodes[0]

    def pod(milli: int) -> dict[str, Any]:
        return {"annotations": {names.POLICY: "equal"}, "limits": {names.VGPU: milli}}

    start_busy(cluster, namespace, {"large": pod(600), "small": pod(150)})
    running = wait_running(cluster, namespace, 2)
    assert [gpus_of(each) for each in running] == [[equal_gpu], [equal_gpu]]
    wait_busy(node, namespace, 2)
    wait_for_shares(
        node,
        namespace,
        "small",
        "equal parts",
        lambda got: {"large": got["large"]} if not 0.7 < got["large"] < 1.4 else {},
    )

    set_policy(node, equal_gpu, "default")
    wait_for_shares(
        node,
        namespace,
        "small",
        "parts by share",
        lambda got: {"large": got["large"]} if not 2.5 < got["large"] < 5.5 else {},
    )
    start_busy(cluster, namespace, {"late": pod(100)})
    told = wait_told(cluster, namespace, "late", EventReason.GPU_UNAVAILABLE)
    assert "PolicyMismatch" in told
    assert "milligpu gpu policy GPU-" in told
    assert "nodeName" not in get(cluster, namespace, "late")["spec"]
