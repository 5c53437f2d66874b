"""What admission writes into pods of queues and into templates."""

from typing import Any

import pytest

from milligpu.model import names
from milligpu.model.errors import BadRequest
from milligpu.model.gpu_queue import GpuQueue, GpuQueues
from milligpu.webhook.queue_entry import KUEUE_LABEL, enqueue, sign_template

QUEUES = GpuQueues([GpuQueue("mine", namespaces=("n",)), GpuQueue("open"), GpuQueue("top"), GpuQueue("low", "top")])
CONTROLLER = "system:serviceaccount:kube-system:job-controller"


def entered(
    labels: dict[str, str] | None = None, *, user: str = "ann", namespace: str = "n", template: str = ""
) -> dict[str, Any]:
    notes = {names.USER: template} if template else {}
    pod: dict[str, Any] = {"metadata": {"labels": labels or {}, "annotations": notes}, "spec": {}}
    enqueue(pod, namespace, user, QUEUES)
    return pod


def test_a_pod_gets_queue_gate_and_user_once() -> None:
    pod = entered()
    enqueue(pod, "n", "ann", QUEUES)
    assert pod["metadata"] == {"labels": {names.QUEUE: "mine"}, "annotations": {names.USER: "ann"}}
    assert pod["spec"] == {"schedulingGates": [{"name": names.QUEUE}]}


def test_a_pod_of_no_queue_is_left_as_it_is() -> None:
    assert entered(namespace="other")["spec"] == {}


def test_kueues_pods_are_left_to_kueue() -> None:
    assert entered({KUEUE_LABEL: "theirs"})["spec"] == {}
    assert entered({KUEUE_LABEL: "theirs", names.QUEUE: "open"})["spec"] != {}


def test_a_controllers_pod_keeps_the_user_of_its_template() -> None:
    assert entered(user=CONTROLLER, template="ann")["metadata"]["annotations"] == {names.USER: "ann"}
    assert entered(user="eve", template="ann")["metadata"]["annotations"] == {names.USER: "eve"}


@pytest.mark.parametrize(
    ("queue", "namespace", "want"),
    [("nope", "n", "existing queues"), ("mine", "other", "this one is for n"), ("top", "n", "such as low")],
)
def test_a_wrong_queue_is_refused_with_what_is_allowed(queue: str, namespace: str, want: str) -> None:
    with pytest.raises(BadRequest) as error:
        entered({names.QUEUE: queue}, namespace=namespace)
    assert want in error.value.message
    assert error.value.field == names.QUEUE


def test_a_template_is_signed_when_it_is_created_and_keeps_its_author() -> None:
    new: dict[str, Any] = {"spec": {"template": {"spec": {}}}}
    sign_template("Deployment", new, {}, "ann")
    assert new["spec"]["template"]["metadata"]["annotations"] == {names.USER: "ann"}
    changed: dict[str, Any] = {"spec": {"template": {"spec": {}}}}
    sign_template("Deployment", changed, new, "bob")
    assert changed["spec"]["template"]["metadata"]["annotations"] == {names.USER: "ann"}
    older: dict[str, Any] = {"spec": {"template": {"spec": {}}}}
    sign_template("Deployment", older, {"spec": {"template": {"spec": {}}}}, "bob")
    assert "annotations" not in older["spec"]["template"]["metadata"]
