"""Nobody but the scheduler writes grants, nobody but a node's agent its inventory, and neither can do more."""

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from itertools import product
from typing import Any

import pytest
import yaml
from lightkube.core.exceptions import ApiError
from lightkube.resources.core_v1 import Node, Pod

from devcluster.api import patch_global
from devcluster.cluster import Cluster
from devcluster.platform import SchedulerService, account_kubeconfig, install
from devcluster.pods import pod, wait_for_phase
from devcluster.wait import until
from milligpu.manifests.bundle import AGENT, SCHEDULER
from milligpu.manifests.mutating_policies import mutating_policies
from milligpu.manifests.webhook_configuration import WebhookAddress, webhook_configuration
from milligpu.model import names
from milligpu.model.grant import Grant, whole_gpu
from milligpu.wire.grant import encode_grant
from tests.e2e.caller import MERGE, Caller
from tests.e2e.scheduling import default_scheduler, grant_of, inventory, share_pod, told
from tests.e2e.test_classes import condition, existing, gpu_class

pytestmark = pytest.mark.e2e

AGENT_REFUSED = "may write or remove the annotation|may write only the Node object that its token names"
FORGED = encode_grant(Grant("u", "n", {"main": (whole_gpu("GPU-1"),)}))


@contextmanager
def guarded_service(cluster: Cluster) -> Generator[SchedulerService]:
    """The policies without the webhook, and the service under its own account, which the scheduler asks."""
    admission = [*webhook_configuration(WebhookAddress()), *mutating_policies(WebhookAddress())]
    cluster.kubectl("delete", "--ignore-not-found", "-f", "-", stdin=yaml.safe_dump_all(admission))
    install(cluster)
    kubeconfig = account_kubeconfig(cluster, SCHEDULER)
    service = SchedulerService(cluster, "service", "--namespace", "milligpu", kubeconfig=kubeconfig)
    with default_scheduler(service.start().wait_ready()):
        yield service
    service.process.stop()
    cluster.client.deletecollection(Pod, namespace="default", grace_period=0)


@pytest.fixture(scope="module")
def guarded(guarded: Cluster) -> Iterator[Cluster]:
    """A cluster with the policies, two nodes with GPUs, and the service under its own account; no webhook."""
    with guarded_service(guarded):
        yield guarded


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


def test_other_annotations_and_bindings_without_a_grant_are_allowed(guarded: Cluster) -> None:
    guarded.client.create(pod("plain", schedulerName="nobody"), namespace="default")
    other = {"metadata": {"annotations": {"example.com/note": "x"}}}

    changed = Caller(guarded).send("PATCH", "/api/v1/namespaces/default/pods/plain", other, MERGE)
    bound = Caller(guarded).send(
        "POST", "/api/v1/namespaces/default/bindings", binding("plain", {"example.com/b": "y"})
    )

    assert changed.status_code == 200, changed.text
    assert bound.status_code == 201, bound.text


def test_only_the_services_account_writes_grants_and_no_user_can_remove_one(guarded: Cluster) -> None:
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
    driver = {"metadata": {"annotations": {names.DRIVER: '{"v":1,"driver":"999"}'}}}
    agent, admin = guarded.client_of(mine), guarded.client
    kubelet = guarded.client_of(guarded.control_plane.pki.node_kubeconfig("guarded-0"))
    unbound = guarded.client_of(account_kubeconfig(guarded, AGENT))

    for who, change in product((admin, kubelet), (more, driver)):
        with pytest.raises(ApiError, match="may write or remove the annotation"):
            patch_global(who, Node, "guarded-0", change)
    # Two policies refuse an agent, and the API server gives the message of either, in no fixed order.
    for change in (more, driver):
        with pytest.raises(ApiError, match=AGENT_REFUSED):
            patch_global(unbound, Node, "guarded-0", change)
    with pytest.raises(ApiError, match=AGENT_REFUSED):
        patch_global(agent, Node, "guarded-1", more)
    answer = Caller(guarded).send("PATCH", "/api/v1/nodes/guarded-0/status", more, MERGE)
    assert answer.status_code in {403, 422}, answer.text

    patch_global(agent, Node, "guarded-0", more)
    patch_global(admin, Node, "guarded-0", {"metadata": {"labels": {"example.com/rack": "7"}}})


def test_a_class_that_got_past_admission_says_what_is_wrong_with_it(guarded: Cluster) -> None:
    bad = [gpu_class("huge", "memory>=20Ti"), gpu_class("a", "ecc", "b"), gpu_class("b", "ecc", "a")]
    with existing(guarded, *bad):
        found = [
            until("a condition", lambda name=name: condition(guarded, name), 30) for name in ("huge", "a", "b")
        ]
        until(
            "the cycle",
            lambda: {(condition(guarded, name) or {}).get("reason") for name in "ab"} == {"FallbackCycle"},
            30,
        )
        assert (found[0]["status"], found[0]["reason"]) == ("False", "InvalidRequirements")
        assert "'20Ti'" in found[0]["message"]
        notes = {names.CLASS: "huge"}
        guarded.client.create(share_pod("of-huge", 500, annotations=notes), namespace="default")
        until("the reason", lambda: "ClassInvalid" in told(guarded, "default", "of-huge"), 30)


API = "authorization.k8s.io/v1"
OBJECTS = ("gpuclasses", "gpuqueues", "gpulayouts", "gpucalendars", "gpuservices")
SCHEDULER_RIGHTS = {
    ("", "nodes", "get list watch"),
    ("", "pods", "get list watch"),
    ("", "resourcequotas", "list"),
    ("", "pods/binding", "create"),
    ("", "pods/eviction", "create"),
    ("", "pods/status", "patch"),
    ("", "nodes/status", "patch"),
    ("events.k8s.io", "events", "create"),
    ("", "pods", "patch"),
    ("", "nodes", "patch"),
    *(("milligpu.dev", kind, "get list watch") for kind in (*OBJECTS, "gpuservers")),
    *(("milligpu.dev", f"{kind}/status", "patch") for kind in OBJECTS),
    *(("apps", f"{kind}/scale", "get patch") for kind in ("deployments", "statefulsets", "replicasets")),
    ("autoscaling", "horizontalpodautoscalers", "list"),
}
LEADERSHIP = {("coordination.k8s.io", "leases", "create"), ("coordination.k8s.io", "leases", "get update")}
# What every authenticated account has: to ask about itself, and from 1.37 on to read the cluster's CAs.
ANYBODY = {
    ("authorization.k8s.io", "selfsubjectaccessreviews", "create"),
    ("authorization.k8s.io", "selfsubjectrulesreviews", "create"),
    ("authentication.k8s.io", "selfsubjectreviews", "create"),
    ("certificates.k8s.io", "clustertrustbundles", "get list watch"),
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


def test_the_services_account_scales_and_never_to_zero(guarded: Cluster) -> None:
    name = "scaled-by-the-service"
    labels = {"app": name}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "example.com/x"}]}}
    spec = {"replicas": 1, "paused": True, "selector": {"matchLabels": labels}, "template": template}
    made = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": spec}
    guarded.kubectl("apply", "-n", "default", "-f", "-", stdin=yaml.safe_dump(made))
    caller = Caller(guarded, {"Impersonate-User": f"system:serviceaccount:milligpu:{SCHEDULER}"})
    path = f"/apis/apps/v1/namespaces/default/deployments/{name}"
    try:
        more = caller.send("PATCH", f"{path}/scale", {"spec": {"replicas": 2}}, MERGE)
        assert more.status_code == 200, more.text
        none = caller.send("PATCH", f"{path}/scale", {"spec": {"replicas": 0}}, MERGE)
        assert none.status_code == 403
        assert "may not scale to zero" in none.text
        assert caller.send("PATCH", path, {"spec": {"replicas": 3}}, MERGE).status_code == 403
    finally:
        guarded.kubectl("delete", "deployment", name, "-n", "default")
