"""Nobody but the scheduler writes grants, nobody but a node's agent its inventory, and neither can do more."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from lightkube.core.exceptions import ApiError
from lightkube.resources.core_v1 import Node, Pod

from devcluster.api import patch_global
from devcluster.cluster import Cluster
from devcluster.fixtures import unique_name
from devcluster.platform import SchedulerService, account_kubeconfig, install
from devcluster.pods import pod, wait_for_phase
from milligpu.model import names
from milligpu.model.grant import GpuShare, Grant
from milligpu.scheduler.config import in_default_scheduler
from milligpu.scheduler.manifests import AGENT, SCHEDULER
from milligpu.wire.grant import encode_grant
from tests.e2e.caller import MERGE, Caller
from tests.e2e.scheduling import gpu_nodes, grant_of, inventory, share_pod

pytestmark = pytest.mark.e2e

FORGED = encode_grant(Grant("u", "n", {"main": (GpuShare("GPU-1", whole=True),)}))


@pytest.fixture(scope="module")
def guarded(built_programs: None) -> Iterator[Cluster]:
    """A cluster with the policies, two nodes with GPUs, and the service under its own account."""
    with Cluster.start(unique_name()) as cluster:
        gpu_nodes(cluster.add_kwok_nodes, 2, options={"prefix": "guarded", "taints": ()})
        install(cluster)
        kubeconfig = account_kubeconfig(cluster, SCHEDULER)
        service = SchedulerService(cluster, "service", "--namespace", "milligpu", kubeconfig=kubeconfig)
        service.start().wait_ready()
        cluster.control_plane.stop_scheduler("kube-scheduler")
        cluster.control_plane.start_scheduler(in_default_scheduler(service.url))
        yield cluster


NOTE = {"metadata": {"annotations": {names.GRANT: FORGED}}}


def binding(name: str, annotations: dict[str, str]) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": name, "annotations": annotations},
        "target": {"kind": "Node", "name": "guarded-0"},
    }


WAYS: dict[str, Callable[[str], tuple[str, str, Any, str]]] = {
    "update": lambda name: ("PATCH", f"/api/v1/namespaces/default/pods/{name}", NOTE, MERGE),
    "status": lambda name: ("PATCH", f"/api/v1/namespaces/default/pods/{name}/status", NOTE, MERGE),
    "binding": lambda name: (
        "POST",
        f"/api/v1/namespaces/default/pods/{name}/binding",
        binding(name, {names.GRANT: FORGED}),
        "application/json",
    ),
    "legacy-binding": lambda name: (
        "POST",
        "/api/v1/namespaces/default/bindings",
        binding(name, {names.GRANT: FORGED}),
        "application/json",
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_grant_cannot_be_forged_even_by_an_administrator(guarded: Cluster, way: str) -> None:
    name = f"forge-{way}"
    guarded.client.create(pod(name, schedulerName="nobody"), namespace="default")

    answer = Caller(guarded).send(*WAYS[way](name))

    assert answer.status_code in {403, 422}, answer.text
    assert f"only system:serviceaccount:milligpu:{SCHEDULER} may write" in answer.text
    assert grant_of(guarded.client.get(Pod, name, namespace="default")) is None


def test_a_pod_cannot_be_created_with_a_grant(guarded: Cluster) -> None:
    with pytest.raises(ApiError, match="may write or remove the annotation"):
        guarded.client.create(pod("born", annotations={names.GRANT: FORGED}), namespace="default")


def test_other_annotations_and_bindings_without_a_grant_are_nobodys_business(guarded: Cluster) -> None:
    guarded.client.create(pod("plain", schedulerName="nobody"), namespace="default")
    other = {"metadata": {"annotations": {"example.com/note": "x"}}}

    changed = Caller(guarded).send("PATCH", "/api/v1/namespaces/default/pods/plain", other, MERGE)
    bound = Caller(guarded).send(
        "POST", "/api/v1/namespaces/default/bindings", binding("plain", {"example.com/b": "y"})
    )

    assert changed.status_code == 200, changed.text
    assert bound.status_code == 201, bound.text


def test_the_service_grants_with_its_own_account_and_nobody_takes_the_grant_away(guarded: Cluster) -> None:
    guarded.client.create(share_pod("served", 500), namespace="default")
    placed = wait_for_phase(guarded, "default", "served", "Running")
    assert grant_of(placed) is not None

    remove = {"metadata": {"annotations": {names.GRANT: None}}}
    answer = Caller(guarded).send("PATCH", "/api/v1/namespaces/default/pods/served", remove, MERGE)

    assert answer.status_code in {403, 422}
    assert grant_of(guarded.client.get(Pod, "served", namespace="default")) == grant_of(placed)


def test_only_the_agent_of_a_node_writes_its_inventory(guarded: Cluster) -> None:
    mine = account_kubeconfig(guarded, AGENT, "--bound-object-kind=Node", "--bound-object-name=guarded-0")
    more = {"metadata": {"annotations": {names.INVENTORY: inventory("guarded-0", 2, milli=500)}}}
    agent, admin = guarded.client_of(mine), guarded.client
    kubelet = guarded.client_of(guarded.control_plane.pki.node_kubeconfig("guarded-0"))
    unbound = guarded.client_of(account_kubeconfig(guarded, AGENT))

    for who in (admin, kubelet, unbound):
        with pytest.raises(ApiError, match="may write or remove the annotation"):
            patch_global(who, Node, "guarded-0", more)
    with pytest.raises(ApiError, match="may write or remove the annotation"):
        patch_global(agent, Node, "guarded-1", more)
    answer = Caller(guarded).send("PATCH", "/api/v1/nodes/guarded-0/status", more, MERGE)
    assert answer.status_code in {403, 422}, answer.text

    patch_global(agent, Node, "guarded-0", more)
    patch_global(admin, Node, "guarded-0", {"metadata": {"labels": {"example.com/rack": "7"}}})


API = "authorization.k8s.io/v1"
SCHEDULER_RIGHTS = {
    ("", "nodes", "get list watch"),
    ("", "pods", "get list watch"),
    ("", "resourcequotas", "list"),
    ("", "pods/binding", "create"),
    ("", "pods/status", "patch"),
    ("events.k8s.io", "events", "create"),
}
LEADERSHIP = {("coordination.k8s.io", "leases", "create"), ("coordination.k8s.io", "leases", "get update")}
# What every authenticated account has: to ask about itself.
ANYBODY = {
    ("authorization.k8s.io", "selfsubjectaccessreviews", "create"),
    ("authorization.k8s.io", "selfsubjectrulesreviews", "create"),
    ("authentication.k8s.io", "selfsubjectreviews", "create"),
}


@pytest.mark.parametrize(
    ("namespace", "rights"), [("default", SCHEDULER_RIGHTS), ("milligpu", SCHEDULER_RIGHTS | LEADERSHIP)]
)
def test_the_services_account_can_do_nothing_else(
    guarded: Cluster, namespace: str, rights: set[tuple[str, str, str]]
) -> None:
    who = f"system:serviceaccount:milligpu:{SCHEDULER}"
    review = {"apiVersion": API, "kind": "SelfSubjectRulesReview", "spec": {"namespace": namespace}}
    caller = Caller(guarded, {"Impersonate-User": who})

    answer = caller.send("POST", f"/apis/{API}/selfsubjectrulesreviews", review)

    assert answer.status_code == 201, answer.text
    found = {
        (group, resource, " ".join(sorted(rule["verbs"])))
        for rule in answer.json()["status"]["resourceRules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }
    assert found - ANYBODY == rights
