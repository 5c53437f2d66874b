"""A pod without a valid grant gets no file, is told why, and is placed anew where somebody owns it."""

import json
from typing import Any

import pytest

from devcluster.controlplane import DEFAULT_SCHEDULER
from devcluster.platform import NAMESPACE, Platform
from devcluster.wait import until
from milligpu.manifests.rbac import SCHEDULER
from milligpu.model.grant import GpuShare, Grant
from milligpu.model.request import Share
from milligpu.model.units import Mib, Milli
from milligpu.wire.grant import encode_grant
from tests.e2e.caller import Caller
from tests.e2e.platform.pods import DEADLINE_S, Json, apply, get, look, manifest, pods, wait_running, wait_told

pytestmark = pytest.mark.e2e

AS_SCHEDULER = {"Impersonate-User": f"system:serviceaccount:{NAMESPACE}:{SCHEDULER}"}
ELSEWHERE = "a-scheduler-without-milligpu"


def bind(platform: Platform, namespace: str, name: str, grant: str | None = None) -> None:
    """Past the scheduler; only its own account can write a grant, as a leader might that was paused too long."""
    body: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": name, "annotations": {"milligpu.dev/grant": grant} if grant else {}},
        "target": {"kind": "Node", "name": platform.nodes[0].node.name},
    }
    caller = Caller(platform.cluster, AS_SCHEDULER if grant else {})
    answer = caller.send("POST", f"/api/v1/namespaces/{namespace}/pods/{name}/binding", body)
    assert answer.status_code == 201, answer.text


def grant_for(platform: Platform, uid: str, *, node: str = "", gpu: str = "") -> str:
    """Half of a card."""
    share = GpuShare(gpu or platform.nodes[0].inventory()[0].uuid, Share(Milli(500), Mib(20480), Milli(500)))
    return encode_grant(Grant(uid, node or platform.nodes[0].node.name, {"main": (share,)}))


def files(platform: Platform) -> int:
    return len(list(platform.nodes[0].node.cdi_dir.glob("milligpu-*")))


@pytest.fixture
def none_attached(platform: Platform) -> None:
    """Pods of earlier tests have gone, and the agent has forgotten them.

    Who is bound past the scheduler, as some are here, is rejected by the kubelet where these still have slots.
    """
    promised = platform.nodes[0].node.folder / "var/lib/milligpu/promised"
    until("earlier pods to go", lambda: not list(promised.iterdir()) and files(platform) == 0, DEADLINE_S)


def bound(platform: Platform, namespace: str, **wrong: str) -> str:
    """A pod that was bound past the scheduler, with a grant that is wrong."""
    apply(platform.cluster, namespace, manifest("p", 500, spec={"schedulerName": ELSEWHERE}))
    uid = wrong.pop("uid", "") or get(platform.cluster, namespace, "p")["metadata"]["uid"]
    bind(platform, namespace, "p", wrong.pop("text", "") or grant_for(platform, uid, **wrong))
    return uid


WRONG: dict[str, tuple[dict[str, str], str]] = {
    "BadGrant": ({"text": '{"v":1}'}, "delete the pod"),
    "GrantOfAnotherPod": (
        {"uid": "00000000-0000-4000-8000-000000000000"},
        "the grant is for the pod with uid 00000000",
    ),
    "GrantForAnotherNode": ({"node": "elsewhere"}, "the grant is for node elsewhere"),
    "UnknownGPU": ({"gpu": "GPU-none"}, "this node has no GPU GPU-none"),
}


@pytest.mark.parametrize("reason", WRONG)
def test_a_wrong_grant_is_refused_with_why_and_what_to_do(
    reason: str, platform: Platform, namespace: str, none_attached: None
) -> None:
    wrong, why = WRONG[reason]
    bound(platform, namespace, **wrong)
    note = wait_told(platform.cluster, namespace, "p", reason)
    assert why in note
    assert files(platform) == 0
    pod = get(platform.cluster, namespace, "p")
    assert pod["status"]["phase"] == "Pending"


def test_a_pod_without_a_grant_waits_and_gets_an_event(
    platform: Platform, namespace: str, none_attached: None
) -> None:
    apply(platform.cluster, namespace, manifest("p", 500, spec={"schedulerName": ELSEWHERE}))
    bind(platform, namespace, "p")
    note = wait_told(platform.cluster, namespace, "p", "NoGrant")
    assert "let a scheduler that uses milligpu's extender bind it" in note
    assert files(platform) == 0


def test_forged_grants_cannot_overcommit_a_gpu(platform: Platform, namespace: str, none_attached: None) -> None:
    apply(platform.cluster, namespace, manifest("first", 600))
    wait_running(platform.cluster, namespace, 1)
    held = json.loads(get(platform.cluster, namespace, "first")["metadata"]["annotations"]["milligpu.dev/grant"])
    bound(platform, namespace, gpu=held["containers"]["main"][0]["gpu"])
    note = wait_told(platform.cluster, namespace, "p", "GPUOverCommitted")
    assert "would be over-committed (1100 of 1000 milli-GPU" in note
    assert files(platform) == 1
    platform.cluster.kubectl("delete", "pod", "first", "-n", namespace, "--wait=false")
    wait_running(platform.cluster, namespace, 1)
    assert look(platform.cluster, namespace, "p").gpus == (20480,)


def test_a_refused_pod_with_a_controller_is_evicted_and_replaced(
    platform: Platform, namespace: str, none_attached: None
) -> None:
    cluster = platform.cluster
    cluster.control_plane.stop_scheduler(DEFAULT_SCHEDULER)
    try:
        template = {"metadata": {"labels": {"app": "served"}}, "spec": manifest("", 500)["spec"]}
        spec = {"selector": {"matchLabels": {"app": "served"}}, "template": template}
        owner: Json = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "served"}, "spec": spec}
        apply(cluster, namespace, owner)
        [first] = until("its pod", lambda: pods(cluster, namespace) or None, DEADLINE_S)
        bind(platform, namespace, first["metadata"]["name"], grant_for(platform, "of-another-pod"))
        wait_told(cluster, namespace, first["metadata"]["name"], "GrantOfAnotherPod")
    finally:
        platform.start_scheduler()

    def other() -> bool:
        return any(each["metadata"]["uid"] != first["metadata"]["uid"] for each in pods(cluster, namespace))

    until("another pod", other, DEADLINE_S)
    [second] = wait_running(cluster, namespace, 1)
    assert second["metadata"]["uid"] != first["metadata"]["uid"]
    assert look(cluster, namespace, second["metadata"]["name"]).gpus == (20480,)
