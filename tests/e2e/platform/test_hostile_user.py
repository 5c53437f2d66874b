"""A hostile user of a namespace: no way into the API writes a grant, none into the node shows others' pages."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.models.rbac_v1 import PolicyRule, RoleRef, Subject
from lightkube.resources.core_v1 import Namespace
from lightkube.resources.rbac_authorization_v1 import Role, RoleBinding

from devcluster.api import patch_global
from devcluster.platform import Platform
from devcluster.wait import until
from milligpu.model import names
from milligpu.model.grant import Grant, whole_gpu
from milligpu.wire.grant import encode_grant
from tests.e2e.caller import MERGE, Caller
from tests.e2e.platform.pods import DEADLINE_S, GPUS, Json, apply, get, manifest, pods, wait_running, wait_told

pytestmark = pytest.mark.e2e

RBAC = "rbac.authorization.k8s.io"
NOBODY = {"schedulerName": "nobody"}
ONLY = (
    "only system:serviceaccount:milligpu:milligpu-scheduler may write or remove the annotations milligpu.dev/grant"
)


class Mallory:
    """May do in her namespace what Kubernetes' role "edit" allows, and also bind pods and write their status."""

    def __init__(self, platform: Platform, namespace: str) -> None:
        self.platform, self.cluster, self.namespace = platform, platform.cluster, namespace
        client = platform.cluster.client
        subresources = ("binding", "status", "ephemeralcontainers", "resize", "eviction")
        resources = ["bindings", *(f"pods/{each}" for each in subresources)]
        more = PolicyRule(apiGroups=[""], resources=resources, verbs=["create", "update", "patch"])
        shares = PolicyRule(apiGroups=["kubeshare.nthu"], resources=["sharepods"], verbs=["*"])
        for name, rule in (("more", more), ("shares", shares)):
            client.create(Role(metadata=ObjectMeta(name=name), rules=[rule]), namespace=namespace)
        for kind, role in (("ClusterRole", "edit"), ("Role", "more"), ("Role", "shares")):
            binding = RoleBinding(
                metadata=ObjectMeta(name=role),
                roleRef=RoleRef(apiGroup=RBAC, kind=kind, name=role),
                subjects=[Subject(apiGroup=RBAC, kind="User", name="mallory")],
            )
            client.create(binding, namespace=namespace)
        baseline = {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "baseline"}}}
        patch_global(client, Namespace, namespace, baseline)

    def send(self, method: str, path: str, body: Any, kind: str = "application/json") -> Any:
        caller = Caller(self.cluster, {"Impersonate-User": "mallory"})
        return caller.send(method, path.format(ns=f"/api/v1/namespaces/{self.namespace}"), body, kind)

    def pod(self, name: str) -> Json:
        """One of her own, which nobody schedules."""
        apply(self.cluster, self.namespace, manifest(name, 500, spec=NOBODY))
        return get(self.cluster, self.namespace, name)

    def forged(self, uid: str) -> str:
        """The best grant that she could wish for: this pod, this node, a whole card."""
        node = self.platform.nodes[0]
        share = whole_gpu(node.inventory()[0].uuid)
        return encode_grant(Grant(uid, node.node.name, {"main": (share,)}))


@pytest.fixture
def mallory(platform: Platform, namespace: str) -> Mallory:
    return Mallory(platform, namespace)


Request = tuple[str, str, Any, str]
JSON, STRATEGIC = "application/json", "application/strategic-merge-patch+json"
APPLY, JSON_PATCH = "application/apply-patch+yaml", "application/json-patch+json"
POD, STATUS = "{ns}/pods/mine", "{ns}/pods/mine/status"


def noted(grant: str) -> Json:
    return {"metadata": {"annotations": {names.GRANT: grant}}}


def whole(pod: Json, grant: str) -> Json:
    changed = copy.deepcopy(pod)
    changed["metadata"]["annotations"] = {**changed["metadata"].get("annotations", {}), names.GRANT: grant}
    return changed


def added(grant: str) -> list[Json]:
    return [{"op": "add", "path": "/metadata/annotations/milligpu.dev~1grant", "value": grant}]


def server_side(grant: str) -> Json:
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "mine", **noted(grant)["metadata"]}}


def binding(grant: str, node: str = "n") -> Json:
    target = {"kind": "Node", "name": node}
    metadata = {"name": "mine", **noted(grant)["metadata"]}
    return {"apiVersion": "v1", "kind": "Binding", "metadata": metadata, "target": target}


def eviction(grant: str) -> Json:
    metadata = {"name": "mine", **noted(grant)["metadata"]}
    return {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": metadata}


def debugged(grant: str) -> Json:
    joining = [{"name": "debug", "image": "local.dev/base:1"}]
    return {**noted(grant), "spec": {"ephemeralContainers": joining}}


WAYS: dict[str, Callable[[Json, str], Request]] = {
    "create": lambda _, grant: ("POST", "{ns}/pods", whole(manifest("other", 500, spec=NOBODY), grant), JSON),
    "update": lambda pod, grant: ("PUT", POD, whole(pod, grant), JSON),
    "merge-patch": lambda _, grant: ("PATCH", POD, noted(grant), MERGE),
    "strategic-patch": lambda _, grant: ("PATCH", POD, noted(grant), STRATEGIC),
    "json-patch": lambda _, grant: ("PATCH", POD, added(grant), JSON_PATCH),
    "server-side-apply": lambda _, grant: ("PATCH", f"{POD}?fieldManager=m&force=true", server_side(grant), APPLY),
    "status-update": lambda pod, grant: ("PUT", STATUS, whole(pod, grant), JSON),
    "status-patch": lambda _, grant: ("PATCH", STATUS, noted(grant), MERGE),
    "binding": lambda _, grant: ("POST", "{ns}/pods/mine/binding", binding(grant), JSON),
    "legacy-binding": lambda _, grant: ("POST", "{ns}/bindings", binding(grant), JSON),
    "eviction": lambda _, grant: ("POST", "{ns}/pods/mine/eviction", eviction(grant), JSON),
    "ephemeral-containers": lambda _, grant: ("PATCH", f"{POD}/ephemeralcontainers", debugged(grant), STRATEGIC),
    "resize": lambda _, grant: ("PATCH", f"{POD}/resize", noted(grant), STRATEGIC),
}


@pytest.mark.parametrize("way", WAYS)
def test_no_way_into_the_api_writes_a_grant(way: str, mallory: Mallory) -> None:
    pod = mallory.pod("mine")
    grant = mallory.forged(pod["metadata"]["uid"])
    answer = mallory.send(*WAYS[way](pod, grant))
    found = pods(mallory.cluster, mallory.namespace)
    assert not any(names.GRANT in each["metadata"].get("annotations", {}) for each in found)
    # A new pod loses the grant, and two ways do not reach annotations at all: they may succeed and do nothing.
    harmless = {"create", "resize", "ephemeral-containers"}
    assert (answer.status_code in {403, 422} and ONLY in answer.text) or way in harmless


def test_the_pods_of_a_template_with_a_grant_have_none_of_it(mallory: Mallory) -> None:
    template = whole(
        {"metadata": {"labels": {"app": "made"}}, "spec": manifest("", 500, spec=NOBODY)["spec"]},
        mallory.forged("u"),
    )
    spec = {"selector": {"matchLabels": {"app": "made"}}, "template": template}
    made: Json = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": "made"}, "spec": spec}
    apply(mallory.cluster, mallory.namespace, made)
    [pod] = until("its pod", lambda: pods(mallory.cluster, mallory.namespace) or None, DEADLINE_S)
    assert names.GRANT not in pod["metadata"]["annotations"]


def test_a_sharepod_cannot_have_the_scheduler_write_a_grant(mallory: Mallory) -> None:
    notes = {"gpu_request": "0.1", "gpu_limit": "0.1", "gpu_mem": "1073741824"}
    share = {
        "apiVersion": "kubeshare.nthu/v1",
        "kind": "SharePod",
        "metadata": {"name": "s", "annotations": {f"kubeshare/{key}": text for key, text in notes.items()}},
        "spec": {**manifest("s")["spec"], **NOBODY},
    }
    apply(mallory.cluster, mallory.namespace, whole(share, mallory.forged("u")))
    [pod] = until("its pod", lambda: pods(mallory.cluster, mallory.namespace) or None, DEADLINE_S)
    assert names.GRANT not in pod["metadata"]["annotations"]


def test_a_copy_of_a_pod_can_have_neither_its_grant_nor_its_uid(mallory: Mallory) -> None:
    apply(mallory.cluster, mallory.namespace, manifest("victim", 500))
    [victim] = wait_running(mallory.cluster, mallory.namespace, 1)
    twin = whole(manifest("twin", 500, spec=NOBODY), victim["metadata"]["annotations"][names.GRANT])
    twin["metadata"]["uid"] = victim["metadata"]["uid"]
    answer = mallory.send("POST", "{ns}/pods", twin)
    assert answer.status_code == 201, answer.text
    assert answer.json()["metadata"]["uid"] != victim["metadata"]["uid"]
    assert names.GRANT not in answer.json()["metadata"]["annotations"]


def test_a_pod_that_names_its_node_is_refused_and_one_bound_past_the_scheduler_gets_nothing(
    mallory: Mallory,
) -> None:
    node = mallory.platform.nodes[0].node.name
    answer = mallory.send("POST", "{ns}/pods", manifest("named", 500, spec={"nodeName": node}))
    assert "the scheduler chooses its GPUs" in answer.text
    mallory.pod("mine")
    bound = binding("", node)
    del bound["metadata"]["annotations"]
    assert mallory.send("POST", "{ns}/pods/mine/binding", bound).status_code == 201
    wait_told(mallory.cluster, mallory.namespace, "mine", "NoGrant")
    [status] = get(mallory.cluster, mallory.namespace, "mine")["status"]["containerStatuses"]
    assert "waiting" in status["state"]


def test_a_node_and_its_inventory_are_out_of_reach(mallory: Mallory) -> None:
    node = mallory.platform.nodes[0].node.name
    more = {"metadata": {"annotations": {names.INVENTORY: '{"v":1,"gpus":[]}'}}}
    for path in (f"/api/v1/nodes/{node}", f"/api/v1/nodes/{node}/status"):
        assert mallory.send("PATCH", path, more, MERGE).status_code == 403
    assert len(mallory.platform.nodes[0].inventory()) == GPUS


def volume(path: str) -> Json:
    return {"volumes": [{"name": "node", "hostPath": {"path": path}}]}


MOUNTED = {"volumeMounts": [{"name": "node", "mountPath": "/node"}]}
FORBIDDEN: dict[str, tuple[Json, Json]] = {
    "the pages of others": (volume("/run/milligpu/containers"), MOUNTED),
    "the cards' sockets": (volume("/run/milligpu/softgpu"), MOUNTED),
    "the folder of CDI files": (volume("/var/run/cdi"), MOUNTED),
    "the kubelet's sockets": (volume("/var/lib/kubelet"), MOUNTED),
    "the devices": (volume("/dev"), MOUNTED),
    "a privileged container": ({}, {"securityContext": {"privileged": True}}),
    "the right to mount": ({}, {"securityContext": {"capabilities": {"add": ["SYS_ADMIN"]}}}),
    "the right to trace": ({}, {"securityContext": {"capabilities": {"add": ["SYS_PTRACE"]}}}),
    "the node's processes": ({"hostPID": True}, {}),
    "the node's memory between processes": ({"hostIPC": True}, {}),
    "the node's network": ({"hostNetwork": True}, {}),
}


@pytest.mark.parametrize("what", FORBIDDEN)
def test_the_baseline_pod_security_standard_refuses_pods_with_access_to_the_node(
    what: str, mallory: Mallory
) -> None:
    spec, container = FORBIDDEN[what]
    answer = mallory.send("POST", "{ns}/pods", manifest("p", 100, spec=spec, **container))
    assert answer.status_code == 403
    assert 'violates PodSecurity "baseline' in answer.json()["message"]


def test_a_sharepod_gets_no_more_of_the_node_than_a_pod(mallory: Mallory) -> None:
    notes = {"kubeshare/gpu_request": "0.1", "kubeshare/gpu_limit": "0.1", "kubeshare/gpu_mem": "1073741824"}
    spec, container = FORBIDDEN["the pages of others"]
    share = {
        "apiVersion": "kubeshare.nthu/v1",
        "kind": "SharePod",
        "metadata": {"name": "s", "annotations": notes},
        "spec": manifest("s", spec=spec, **container)["spec"],
    }
    apply(mallory.cluster, mallory.namespace, share)

    def status() -> str | None:
        found = get(mallory.cluster, mallory.namespace, "s", "sharepod").get("status", {})
        return found.get("podStatus", {}).get("message")

    assert 'violates PodSecurity "baseline' in until("its status", status, DEADLINE_S)
    assert pods(mallory.cluster, mallory.namespace) == []
