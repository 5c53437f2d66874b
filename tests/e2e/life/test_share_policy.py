"""Share policies on the real node: who gets idle time, in every dialect that has limits, and who sets it."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from devcluster.platform import GpuNode
from devcluster.wait import until
from milligpu.model import names
from milligpu.model.policy import SharePolicy
from tests.e2e.busy import gpu_time, start_busy, wait_busy, wait_for_shares
from tests.e2e.life.conftest import milligpu
from tests.e2e.platform.pods import apply, look, manifest, wait_running

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

# All are busy at the same time on one GPU, so those without idle time get their shares, and the others the rest.
# The shares add up to half of the GPU: a busy machine loses up to two fifths of its time between turns, and then
# larger shares would leave no idle time to give. Each of these has 20 milli-GPU, or the least that its dialect has.
DIALECTS: dict[str, dict[str, Any]] = {
    "native": {"annotations": {names.LIMIT: "1000"}, "limits": {names.VGPU: 20}},
    "kubeshare-v1": {
        "kind": "SharePod",
        "annotations": {
            "kubeshare/gpu_request": "0.02",
            "kubeshare/gpu_limit": "1.0",
            "kubeshare/gpu_mem": "1073741824",
        },
    },
    "kubeshare": {
        "labels": {"sharedgpu/gpu_request": "0.02", "sharedgpu/gpu_limit": "1.0", "sharedgpu/gpu_mem": "1073741824"}
    },
    "gpumanager": {
        "annotations": {"tencent.com/vcuda-core-limit": "100"},
        "limits": {"tencent.com/vcuda-core": 2, "tencent.com/vcuda-memory": 4},
    },
    "hami": {"limits": {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 820}},
    "bitfusion": {"limits": {"bitfusion.io/gpu-amount": 1, "bitfusion.io/gpu-percent": 2}},
    "kai": {"annotations": {"gpu-fraction": "0.02"}},
    "gpushare": {"limits": {"aliyun.com/gpu-mem": 1}},
    "deepomatic": {"limits": {"deepomatic.com/shared-gpu": 1}},
}
# Each of these has 40.
LIMITED: dict[str, dict[str, Any]] = {
    "native-limited": {"limits": {names.VGPU: 40}},
    "fixed-limited": {"annotations": {names.POLICY: "fixed"}, "limits": {names.VGPU: 40}},
    "kubeshare-v1-limited": {
        "kind": "SharePod",
        "annotations": {
            "kubeshare/gpu_request": "0.04",
            "kubeshare/gpu_limit": "0.04",
            "kubeshare/gpu_mem": "1073741824",
        },
    },
    "kubeshare-limited": {
        "labels": {
            "sharedgpu/gpu_request": "0.04",
            "sharedgpu/gpu_limit": "0.04",
            "sharedgpu/gpu_mem": "1073741824",
        }
    },
    "gpumanager-limited": {"limits": {"tencent.com/vcuda-core": 4, "tencent.com/vcuda-memory": 4}},
    "hami-limited": {"limits": {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 1639, "nvidia.com/gpucores": 4}},
}


def wait_per_milli(
    node: GpuNode, namespace: str, what: str, wrong: Callable[[dict[str, float]], dict[str, float]]
) -> None:
    """Wait until no pod gets a `wrong` amount of time per milli-GPU of its share; 1 is that of native-limited."""
    shares = {pod: milli for pod, (milli, _) in gpu_time(node, namespace).items()}

    def wrong_per_milli(got: dict[str, float]) -> dict[str, float]:
        return wrong({pod: value * shares["native-limited"] / shares[pod] for pod, value in got.items()})

    wait_for_shares(node, namespace, "native-limited", what, wrong_per_milli)


def settle(node: GpuNode, policy: str) -> None:
    """Set the policy, and wait until the agent has published it."""
    done = milligpu(node, "gpu", "policy", node.node.name, policy)
    assert (done.returncode, done.stderr) == (0, "")
    wanted = SharePolicy.BEST_EFFORT if policy == "default" else SharePolicy(policy)
    until(f"the policy {policy}", lambda: {gpu.policy for gpu in node.inventory()} == {wanted}, 30)


def test_idle_time_goes_to_those_whose_limit_allows_it_and_the_gpus_policy_is_obeyed_at_once(
    gpu_node: GpuNode, namespace: str
) -> None:
    start_busy(gpu_node.cluster, namespace, {**DIALECTS, **LIMITED})
    wait_running(gpu_node.cluster, namespace, len(DIALECTS) + len(LIMITED))
    wait_busy(gpu_node, namespace, len(DIALECTS) + len(LIMITED))
    wait_per_milli(
        gpu_node,
        namespace,
        "more than the share where the limit allows it",
        lambda got: {pod: got[pod] for pod in DIALECTS if got[pod] < 1.3},
    )
    wait_per_milli(
        gpu_node,
        namespace,
        "no more than the share where the limit is the share",
        lambda got: {pod: got[pod] for pod in LIMITED if not 0.75 < got[pod] < 1.25},
    )

    settle(gpu_node, "fixed")
    wait_per_milli(
        gpu_node,
        namespace,
        "no pod to get more than it requested",
        lambda got: {pod: value for pod, value in got.items() if not 0.75 < value < 1.25},
    )
    assert "share policy of the GPU: fixed" in milligpu(gpu_node, "-n", namespace, "explain", "native").stdout

    settle(gpu_node, "default")
    wait_per_milli(
        gpu_node,
        namespace,
        "idle time again",
        lambda got: {"native": got["native"]} if got["native"] < 1.3 else {},
    )


@pytest.fixture
def fixed_agent(gpu_node: GpuNode) -> Iterator[GpuNode]:
    """The node with an agent that was started with a policy for its GPU; then with today's again."""
    yield gpu_node.upgrade("--policy", "0=fixed")
    gpu_node.upgrade()


def test_the_policy_that_an_agent_is_started_with_holds_until_an_admin_sets_another(
    fixed_agent: GpuNode, namespace: str
) -> None:
    cluster = fixed_agent.cluster
    until("the policy", lambda: {gpu.policy for gpu in fixed_agent.inventory()} == {SharePolicy.FIXED}, 30)
    apply(
        cluster, namespace, {**manifest("a", 300), "metadata": {"name": "a", "annotations": {names.LIMIT: "800"}}}
    )
    wait_running(cluster, namespace, 1)

    def limit() -> int:
        page = look(cluster, namespace, "a").page
        assert page is not None
        return page.gpus[0].limit

    assert limit() == 300
    settle(fixed_agent, "best-effort")
    until("the limit that the pod names", lambda: limit() == 800, 30)
    assert milligpu(fixed_agent, "gpu", "policy", fixed_agent.node.name, "default").returncode == 0
    until("the agent's own policy again", lambda: limit() == 300, 30)
