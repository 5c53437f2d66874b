"""A stolen token of one node's agent is of use on that node only; the scheduler's can write little on nodes."""

import asyncio
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml
from lightkube.core.exceptions import ApiError
from lightkube.resources.core_v1 import Pod

from devcluster.api import list_in, read_json
from devcluster.cluster import Cluster
from devcluster.fixtures import NewCluster
from devcluster.platform import NAMESPACE, SchedulerService, account_kubeconfig, install
from devcluster.pods import phase, pod, wait_for_phase
from devcluster.wait import until
from milligpu.agent.node_labels import node_labels
from milligpu.kube.api import ApiClient, ApiRefused
from milligpu.kube.config import find_cluster
from milligpu.manifests.rbac import AGENT, SCHEDULER
from milligpu.model import names
from milligpu.model.gpu import Gpu
from milligpu.model.request import PodRef
from milligpu.model.units import Mib
from milligpu.wire.evictions import EvictionRequest, encode_evictions
from tests.e2e.caller import MERGE, Caller
from tests.e2e.scheduling import inventory
from tests.e2e.test_scheduler_rights import guarded_service

pytestmark = pytest.mark.e2e

DOCS = Path(__file__).parents[2] / "docs"
STRATEGIC = "application/strategic-merge-patch+json"
OWN, OTHER = "guarded-0", "guarded-1"
NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def service(guarded: Cluster) -> Iterator[SchedulerService]:
    with guarded_service(guarded) as service:
        yield service


def bound_to(cluster: Cluster, node: str) -> Path:
    """A kubeconfig with the token that an agent on this node has."""
    return account_kubeconfig(cluster, AGENT, "--bound-object-kind=Node", f"--bound-object-name={node}")


@pytest.fixture(scope="module")
def agent(service: SchedulerService) -> Caller:
    """Whoever stole the token of the agent on the first node."""
    return Caller(service.cluster, kubeconfig=bound_to(service.cluster, OWN))


def patch(caller: Caller, path: str, change: dict[str, Any], kind: str = MERGE) -> httpx2.Response:
    return caller.send("PATCH", path, change, kind)


def noted(**notes: str | None) -> dict[str, Any]:
    return {
        "metadata": {
            "annotations": {f"milligpu.dev/{key.replace('_', '-')}": value for key, value in notes.items()}
        }
    }


TAINT = {"spec": {"taints": [{"key": "stolen", "effect": "NoExecute"}]}}
HARM: dict[str, dict[str, Any]] = {
    "a taint": TAINT,
    "a cordon": {"spec": {"unschedulable": True}},
    "a label": {"metadata": {"labels": {"example.com/rack": "7"}}},
    "a role": {"metadata": {"labels": {"node-role.kubernetes.io/control-plane": ""}}},
    "a label removed": {"metadata": {"labels": {"milligpu.dev/devcluster-nodes": None}}},
    "GPU settings": noted(gpu_settings='{"v":1,"cordoned":{},"cleared":{}}'),
    "an annotation": {"metadata": {"annotations": {"example.com/note": "x"}}},
    "a finalizer": {"metadata": {"finalizers": ["example.com/stay"]}},
}


@pytest.mark.parametrize("what", HARM)
@pytest.mark.parametrize("node", [OWN, OTHER])
def test_an_agents_token_changes_nothing_else_of_a_node(agent: Caller, node: str, what: str) -> None:
    answer = patch(agent, f"/api/v1/nodes/{node}", HARM[what])
    assert answer.status_code == 403, answer.text
    expected = (
        "only the labels and annotations of GPUs" if node == OWN else "only the Node object that its token names"
    )
    assert expected in answer.text


def gpus_of(node: str) -> dict[str, Any]:
    """What an agent writes onto its node."""
    labels = node_labels([Gpu("GPU-1", "GRID V100-8Q", Mib(8192))], "550.54.15", {})
    driver = '{"v":1,"driver":"550.54.15"}'
    written = noted(inventory=inventory(node, 2), driver=driver, agent="10.0.0.1:9400", vgpu_type="v100-8q-8GB")
    written["metadata"]["labels"] = {**labels, names.VGPU_TYPE: "v100-8q-8GB"}
    return written


def test_an_agent_writes_the_gpus_of_its_own_node_and_of_no_other(guarded: Cluster, agent: Caller) -> None:
    assert patch(agent, f"/api/v1/nodes/{OTHER}", gpus_of(OTHER)).status_code == 403
    unbound = Caller(guarded, kubeconfig=account_kubeconfig(guarded, AGENT))
    answer = patch(unbound, f"/api/v1/nodes/{OWN}", {"metadata": {"labels": {names.VGPU_TYPE: "x"}}})
    assert (answer.status_code, "its token names" in answer.text) == (403, True)
    assert patch(agent, f"/api/v1/nodes/{OWN}", gpus_of(OWN)).status_code == 200
    gone = dict.fromkeys(gpus_of(OWN)["metadata"]["labels"])
    assert patch(agent, f"/api/v1/nodes/{OWN}", {"metadata": {"labels": gone}}).status_code == 200


def slots(number: str) -> dict[str, Any]:
    return {"status": {field: {names.VGPU: number} for field in ("capacity", "allocatable")}}


@pytest.mark.parametrize(
    ("node", "change"),
    [
        (OTHER, slots("5000")),
        (OWN, {"status": {"allocatable": {"cpu": "512"}}}),
        (OWN, {"status": {"capacity": {"example.com/other": "1"}}}),
        (OWN, {"status": {"conditions": [{"type": "Ready", "status": "False"}]}}),
        (OWN, {**slots("5000"), "metadata": {"labels": {"example.com/rack": "7"}}}),
    ],
)
def test_an_agents_token_writes_only_slots_of_its_nodes_status(
    agent: Caller, node: str, change: dict[str, Any]
) -> None:
    answer = patch(agent, f"/api/v1/nodes/{node}/status", change)
    assert (answer.status_code, "may write only" in answer.text) == (403, True), answer.text


def test_an_agent_raises_the_slots_of_its_own_node(agent: Caller) -> None:
    answer = patch(agent, f"/api/v1/nodes/{OWN}/status", slots("5000"))
    assert (answer.status_code, answer.json()["status"]["allocatable"][names.VGPU]) == (200, "5k")


def test_an_agents_token_evicts_deletes_and_reads_no_object_by_name(guarded: Cluster, agent: Caller) -> None:
    guarded.client.create(pod("bystander", nodeName=OWN), namespace="default")
    path = "/api/v1/namespaces/default/pods/bystander"
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "bystander"}}
    refused = [
        agent.send("POST", f"{path}/eviction", eviction),
        agent.send("DELETE", path, None),
        agent.send("GET", path, None),
        agent.send("GET", "/api/v1/secrets", None),
        agent.send("DELETE", f"/api/v1/nodes/{OWN}", None),
    ]
    assert [answer.status_code for answer in refused] == [403] * len(refused)


@pytest.mark.parametrize(
    ("node", "change"),
    [
        (OTHER, {"status": {"phase": "Failed"}}),
        (OWN, {"status": {"phase": "Succeeded"}}),
        (OWN, {"status": {"phase": "Failed", "conditions": [{"type": "Ready", "status": "True"}]}}),
        (OWN, {"status": {"phase": "Failed"}, "metadata": {"labels": {"app": "other"}}}),
        (OWN, {"status": {"phase": "Failed"}, "metadata": {"annotations": {"example.com/note": "x"}}}),
    ],
)
def test_an_agents_token_only_marks_pods_of_its_node_as_failed(
    guarded: Cluster, agent: Caller, node: str, change: dict[str, Any]
) -> None:
    name = f"victim-{next(NUMBERS)}"
    guarded.client.create(pod(name, nodeName=node), namespace="default")
    path = f"/api/v1/namespaces/default/pods/{name}/status"
    answer = patch(agent, path, change)
    assert (answer.status_code, AGENT in answer.text) == (403, True), answer.text
    if node == OWN:
        stranded = {"status": {"phase": "Failed", "reason": "PodStranded", "message": "never starts"}}
        assert patch(agent, path, stranded).status_code == 200


def event(instance: str, controller: str = names.AGENT_CONTROLLER) -> dict[str, Any]:
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"generateName": "e", "namespace": "default"},
        "eventTime": "2026-01-01T00:00:00.000000Z",
        "reportingController": controller,
        "reportingInstance": instance,
        "action": "Attach",
        "reason": "NoGrant",
        "type": "Warning",
        "regarding": {"kind": "Pod", "name": "p", "namespace": "default"},
    }


def test_an_agents_token_writes_events_only_in_its_own_name(agent: Caller) -> None:
    path = "/apis/events.k8s.io/v1/namespaces/default/events"
    assert agent.send("POST", path, event(OTHER)).status_code == 403
    assert agent.send("POST", path, event(OWN, "kubelet")).status_code == 403
    assert agent.send("POST", path, event(OWN)).status_code == 201


# -- the scheduler ---------------------------------------------------------------------------------------------


def condition(kind: str, status: str = "False") -> dict[str, Any]:
    return {"type": kind, "status": status, "reason": "Test", "message": "m"}


STATUS: dict[str, dict[str, Any]] = {
    "another condition": {"status": {"conditions": [condition("Ready")]}},
    "capacity": {"status": {"capacity": {"cpu": "1"}}},
    "addresses": {"status": {"addresses": [{"type": "Hostname", "address": "elsewhere"}]}},
    "a label": {"metadata": {"labels": {"example.com/rack": "7"}}},
    "an annotation with a condition": {
        "metadata": {"annotations": {"example.com/note": "x"}},
        "status": {"conditions": [condition(names.GPUS_HEALTHY)]},
    },
}


@pytest.mark.parametrize("what", STATUS)
def test_the_schedulers_token_writes_only_its_conditions_of_nodes(service: SchedulerService, what: str) -> None:
    caller = Caller(service.cluster, kubeconfig=account_kubeconfig(service.cluster, SCHEDULER))
    answer = patch(caller, f"/api/v1/nodes/{OTHER}/status", STATUS[what], STRATEGIC)
    assert answer.status_code == 403, answer.text
    assert f"only the conditions {names.AGENT_READY} and {names.GPUS_HEALTHY}" in answer.text
    assert patch(caller, f"/api/v1/nodes/{OTHER}", TAINT).status_code == 403
    ours = {"status": {"conditions": [condition(names.GPUS_HEALTHY, "True")]}}
    assert patch(caller, f"/api/v1/nodes/{OTHER}/status", ours, STRATEGIC).status_code == 200


def test_the_scheduler_removes_the_startup_taint_of_a_node_with_an_agent_and_no_other_taint(
    service: SchedulerService,
) -> None:
    cluster, path = service.cluster, f"/api/v1/nodes/{OTHER}"

    def taints() -> list[dict[str, str]]:
        return read_json(cluster.client, path)["spec"].get("taints", [])

    ours = {"key": names.AGENT_NOT_READY, "effect": "NoSchedule"}
    other = {"key": "example.com/rack", "effect": "PreferNoSchedule"}
    assert patch(Caller(cluster), path, {"spec": {"taints": [ours, other]}}).status_code == 200
    until("the startup taint to be gone", lambda: taints() == [other], 30, last_state=lambda: str(taints()))
    patch(Caller(cluster), path, {"spec": {"taints": None}})


# -- evictions -------------------------------------------------------------------------------------------------


def owned(cluster: Cluster, name: str, node: str, milli: int) -> Pod:
    """A pod of a ReplicaSet on this node, as it runs."""
    container: dict[str, Any] = {"name": "main", "image": "local.dev/base:1"}
    if milli:
        container["resources"] = {"limits": {names.VGPU: milli}}
    template = {
        "metadata": {"labels": {"app": name}},
        "spec": {"containers": [container], "nodeSelector": {"kubernetes.io/hostname": node}},
    }
    made = {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "metadata": {"name": name},
        "spec": {"selector": {"matchLabels": {"app": name}}, "template": template},
    }
    cluster.kubectl("apply", "-n", "default", "-f", "-", stdin=json.dumps(made))

    def running() -> Pod | None:
        found = list_in(cluster.client, Pod, "default")
        mine = (each for each in found if reference(each).name.startswith(f"{name}-"))
        return next((each for each in mine if phase(each) == "Running"), None)

    return until(f"{name} to run", running, 60)


def reference(found: Pod) -> PodRef:
    assert found.metadata
    return PodRef("default", str(found.metadata.name), str(found.metadata.uid))


def ask(agent: Caller, *pods: PodRef) -> None:
    requests = encode_evictions(EvictionRequest(each, "UnknownGPU") for each in pods)
    answer = patch(agent, f"/api/v1/nodes/{OWN}", noted(evict=requests if pods else None))
    assert answer.status_code == 200, answer.text


def exists(cluster: Cluster, ref: PodRef) -> bool:
    try:
        found = cluster.client.get(Pod, ref.name, namespace=ref.namespace)
    except ApiError:
        return False
    return bool(found.metadata and found.metadata.uid == ref.uid and not found.metadata.deletionTimestamp)


def test_the_scheduler_evicts_for_an_agent_only_replaceable_gpu_pods_of_its_node(
    service: SchedulerService, agent: Caller
) -> None:
    cluster = service.cluster
    cluster.client.create(
        pod("bare", resources={names.VGPU: "100"}, nodeSelector={"kubernetes.io/hostname": OWN}),
        namespace="default",
    )
    bare = reference(wait_for_phase(cluster, "default", "bare", "Running"))
    elsewhere, plain, refused = (
        reference(owned(cluster, *each))
        for each in (("elsewhere", OTHER, 100), ("plain", OWN, 0), ("refused", OWN, 100))
    )
    try:
        ask(agent, elsewhere, bare, plain, refused)
        until("the eviction", lambda: not exists(cluster, refused), 60)
        kept = {
            "elsewhere": "it is not on this node",
            "bare": "it has no controller",
            "plain": "it requests no GPU",
        }
        log = service.process.log.read_text()
        for why in kept.values():
            assert why in log
        assert all(exists(cluster, each) for each in (elsewhere, bare, plain))
        until("another pod", lambda: reference(owned(cluster, "refused", OWN, 100)) != refused, 60)
    finally:
        ask(agent)
        cluster.kubectl("delete", "rs", "--all", "-n", "default", "--wait=false")


def test_an_eviction_that_a_disruption_budget_refuses_is_tried_again(
    service: SchedulerService, agent: Caller
) -> None:
    cluster = service.cluster
    budget = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "budget"},
        "spec": {"maxUnavailable": 0, "selector": {"matchLabels": {"app": "kept"}}},
    }
    cluster.kubectl("apply", "-n", "default", "-f", "-", stdin=json.dumps(budget))
    until(
        "the budget to count",
        lambda: cluster.kubectl(
            "get", "pdb", "budget", "-n", "default", "-o", "jsonpath={.status.observedGeneration}"
        ),
        30,
    )
    kept = reference(owned(cluster, "kept", OWN, 100))
    try:
        ask(agent, kept)
        until("a refusal", lambda: "disruption budget" in service.process.log.read_text(), 60)
        assert exists(cluster, kept)
        cluster.kubectl("delete", "pdb", "budget", "-n", "default")
        until("the eviction", lambda: not exists(cluster, kept), 60)
    finally:
        ask(agent)
        cluster.kubectl("delete", "rs", "--all", "-n", "default", "--wait=false")


# -- tokens ----------------------------------------------------------------------------------------------------


def test_a_token_file_that_is_written_again_is_used_without_a_restart(guarded: Cluster, tmp_path: Path) -> None:
    """The first token dies with the Secret that it is bound to, as one does that has expired."""
    install(guarded)
    create = ("create", "token", AGENT, "-n", NAMESPACE)
    guarded.kubectl("create", "secret", "generic", "short", "-n", NAMESPACE)
    bound = ("--bound-object-kind=Secret", "--bound-object-name=short")
    (tmp_path / "token").write_text(guarded.kubectl(*create, *bound))
    config = yaml.safe_load(guarded.kubeconfig.read_text())
    config["users"] = [{"name": user["name"], "user": {"tokenFile": "token"}} for user in config["users"]]
    (tmp_path / "kubeconfig").write_text(yaml.safe_dump(config))

    async def use() -> None:
        async with ApiClient(find_cluster(str(tmp_path / "kubeconfig"))) as api:
            path = f"/api/v1/nodes/{OWN}"
            await api.get(path)
            guarded.kubectl("delete", "secret", "short", "-n", NAMESPACE)
            while True:  # the API server keeps what it knows of a token for ten seconds
                try:
                    await api.get(path)
                except ApiRefused as error:
                    assert error.status == 401
                    break
                await asyncio.sleep(0.2)
            (tmp_path / "token").write_text(guarded.kubectl(*create))
            await api.get(path)

    asyncio.run(asyncio.wait_for(use(), 60))


def test_an_admin_of_the_api_server_can_hold_agents_reads_to_their_nodes(
    new_cluster: NewCluster, tmp_path: Path
) -> None:
    blocks = (DOCS / "agent.md").read_text().split("```yaml\n")[1:]
    config, webhook = (
        each.partition("```")[0] for each in blocks if "kind: Auth" in each or "kind: Config" in each
    )
    (tmp_path / "nobody.kubeconfig").write_text(webhook)
    config = config.replace("/etc/kubernetes/nobody.kubeconfig", str(tmp_path / "nobody.kubeconfig"))
    (tmp_path / "authorization.yaml").write_text(config)
    cluster = new_cluster(apiserver_args={"authorization-config": str(tmp_path / "authorization.yaml")})
    cluster.add_kwok_nodes(2, prefix="guarded", taints=())
    install(cluster)
    agent = Caller(cluster, kubeconfig=bound_to(cluster, OWN))
    allowed = {
        f"/api/v1/pods?fieldSelector=spec.nodeName={OWN}",
        f"/api/v1/nodes/{OWN}",
        f"/api/v1/nodes?fieldSelector=metadata.name={OWN}",
    }
    others = {
        "/api/v1/pods",
        f"/api/v1/pods?fieldSelector=spec.nodeName={OTHER}",
        f"/api/v1/pods?fieldSelector=spec.nodeName!={OWN}",
        "/api/v1/namespaces/default/pods",
        "/api/v1/nodes",
        f"/api/v1/nodes/{OTHER}",
        f"/api/v1/nodes?fieldSelector=metadata.name={OTHER}",
    }
    assert {path for path in allowed | others if agent.send("GET", path, None).status_code == 200} == allowed
    unbound = Caller(cluster, kubeconfig=account_kubeconfig(cluster, AGENT))
    assert not [path for path in allowed if unbound.send("GET", path, None).status_code == 200]
    # Everybody else is as before.
    scheduler = Caller(cluster, kubeconfig=account_kubeconfig(cluster, SCHEDULER))
    assert scheduler.send("GET", "/api/v1/pods", None).status_code == 200
