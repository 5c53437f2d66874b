"""Queues on a cluster: admission gates pods, the leader admits them in their turn, and all see where they stand."""

import json
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from devcluster.api import read_json
from devcluster.cluster import Cluster
from devcluster.errors import DevclusterError
from devcluster.wait import until
from milligpu.model import names
from tests.e2e.scheduling import grants
from tests.e2e.test_admission import DEADLINE_S, Admitting, admitting, apply, granted, manifest
from tests.e2e.test_scheduler import milligpu

pytestmark = pytest.mark.e2e

TWO_TEAMS = Path(__file__).parents[2] / "examples/queues/two-teams.yaml"
ONE_GPU = {"kubernetes.io/hostname": "guarded-0"}
"""A node with two GPUs."""


@pytest.fixture(scope="module")
def control_plane(guarded: Cluster) -> Cluster:
    return guarded


@pytest.fixture(scope="module", autouse=True)
def service(control_plane: Cluster) -> Iterator[Admitting]:
    yield from admitting(control_plane)


def gpu_queue(name: str, **spec: Any) -> dict[str, Any]:
    return {"apiVersion": "milligpu.dev/v1alpha1", "kind": "GpuQueue", "metadata": {"name": name}, "spec": spec}


@contextmanager
def existing(cluster: Cluster, *queues: dict[str, Any]) -> Generator[None]:
    apply(cluster, "default", *queues)
    try:
        # Admission follows the queues; it may not know a new one yet.
        for each in queues:
            cluster.kubectl(
                "wait", "--for=condition=Ready", "--timeout=60s", f"gpuqueue/{each['metadata']['name']}"
            )
        yield
    finally:
        for each in reversed(queues):
            cluster.kubectl("delete", "gpuqueue", "--ignore-not-found", each["metadata"]["name"])


def pod(cluster: Cluster, namespace: str, name: str) -> dict[str, Any]:
    return read_json(cluster.client, f"/api/v1/namespaces/{namespace}/pods/{name}")


def all_pods(cluster: Cluster, namespace: str) -> list[dict[str, Any]]:
    return read_json(cluster.client, f"/api/v1/namespaces/{namespace}/pods")["items"]


def gates(found: dict[str, Any]) -> list[str]:
    return [each["name"] for each in found["spec"].get("schedulingGates", ())]


def queued(cluster: Cluster, namespace: str, name: str) -> dict[str, Any] | None:
    """The condition by which a pod says that it waits in its queue."""
    conditions = pod(cluster, namespace, name).get("status", {}).get("conditions", ())
    return next((each for each in conditions if each["type"] == names.QUEUED), None)


def half(name: str, milli: int = 500, queue: str | None = None) -> dict[str, Any]:
    labels = {"labels": {names.QUEUE: queue}} if queue else {}
    found = manifest(name, {"nvidia.com/vgpu": milli})
    found["metadata"] |= labels
    found["spec"]["nodeSelector"] = ONE_GPU
    return found


def test_pods_of_a_queue_start_in_order_within_its_ceiling_and_say_where_they_stand(
    control_plane: Cluster, namespace: str
) -> None:
    team = gpu_queue("team-a", ceiling={"milli": 1000}, order="fifo", namespaces=[namespace])
    with existing(control_plane, team):
        for name in ("one", "two", "three", "four"):
            apply(control_plane, namespace, half(name))
        until("two grants", lambda: set(grants(control_plane, namespace)) == {"one", "two"}, DEADLINE_S)
        until("the condition", lambda: queued(control_plane, namespace, "four"), DEADLINE_S)
        first = until("the condition", lambda: queued(control_plane, namespace, "three"), DEADLINE_S)
        assert (first["status"], first["reason"]) == ("True", "QueueCeiling")
        assert " in team-a; waits until pods of team-a end" in first["message"]
        waiting = pod(control_plane, namespace, "three")
        assert gates(waiting) == [names.QUEUE]
        assert waiting["metadata"]["labels"][names.QUEUE] == "team-a"
        assert waiting["metadata"]["annotations"][names.USER] == "admin"
        done = queued(control_plane, namespace, "one")
        assert done is not None
        assert (done["status"], done["reason"]) == ("False", "Admitted")
        control_plane.kubectl("delete", "pod", "-n", namespace, "one", "--grace-period=0", "--force")
        until("three", lambda: "three" in grants(control_plane, namespace) or None, DEADLINE_S)
        assert "four" not in grants(control_plane, namespace)

        def written() -> list[str] | None:
            shown = control_plane.kubectl("get", "gpuqueue", "team-a").splitlines()
            return shown if shown[1].split()[:5] == ["team-a", "1000", "1000", "1", "True"] else None

        shown = until("the status", written, DEADLINE_S)
        assert shown[0].split() == ["NAME", "GUARANTEE", "CEILING", "HELD", "WAITING", "READY", "REASON", "AGE"]


def test_unknown_forbidden_and_contradicting_queues_are_refused(control_plane: Cluster, namespace: str) -> None:
    def refused(*objects: dict[str, Any]) -> str:
        with pytest.raises(DevclusterError) as error:
            apply(control_plane, namespace, *objects)
        return str(error.value)

    assert "none exists" in refused(half("pod", queue="nobody"))
    other = gpu_queue("other", namespaces=["elsewhere"], guarantee={"milli": 2000, "memory": "16Gi"})
    with existing(control_plane, other):
        assert "milligpu.dev/queue: invalid value 'nobody'" in refused(half("pod", queue="nobody"))
        assert f"a queue for namespace {namespace}" in refused(half("pod", queue="other"))
        assert "a namespace of one queue only" in refused(gpu_queue("second", namespaces=["elsewhere"]))
        assert "the name of a GpuQueue" in refused(gpu_queue("child", parent="absent"))
        assert "at most ceiling.milli" in refused(gpu_queue("low", guarantee={"milli": 2}, ceiling={"milli": 1}))
        assert "spec.weight" in refused(gpu_queue("weightless", weight=0))
        assert "together" in refused(gpu_queue("child", parent="other", guarantee={"milli": 3000}))
        assert "must be another queue" in refused(gpu_queue("self", parent="self"))


def test_nobody_removes_a_gate_changes_the_queue_or_writes_another_user(
    control_plane: Cluster, namespace: str
) -> None:
    with existing(control_plane, gpu_queue("closed", ceiling={"milli": 0}, namespaces=[namespace])):
        apply(control_plane, namespace, half("held"))

        def refused(*arguments: str) -> str:
            with pytest.raises(DevclusterError) as error:
                control_plane.kubectl(*arguments, "-n", namespace)
            return str(error.value)

        patch = json.dumps([{"op": "remove", "path": "/spec/schedulingGates"}])
        assert "may remove the scheduling gate" in refused("patch", "pod", "held", "--type=json", f"-p={patch}")
        assert "stays as it was" in refused("label", "pod", "held", f"{names.QUEUE}=other", "--overwrite")
        assert "only be the name" in refused("annotate", "pod", "held", f"{names.USER}=eve", "--overwrite")
        forged = half("forged")
        forged["metadata"]["annotations"] = {names.USER: "eve"}
        apply(control_plane, namespace, forged)
        found = pod(control_plane, namespace, "forged")
        assert found["metadata"]["annotations"][names.USER] == "admin"


def test_pods_of_a_deleted_queue_wait_with_queue_gone(control_plane: Cluster, namespace: str) -> None:
    queue = gpu_queue("short-lived", ceiling={"milli": 0}, namespaces=[namespace])
    with existing(control_plane, queue):
        apply(control_plane, namespace, half("orphan"))
        until("the condition", lambda: queued(control_plane, namespace, "orphan"), DEADLINE_S)

    def gone() -> bool | None:
        found = queued(control_plane, namespace, "orphan")
        return (found is not None and found["reason"] == "QueueGone") or None

    until("QueueGone", gone, DEADLINE_S)
    with existing(control_plane, gpu_queue("short-lived", namespaces=[namespace])):
        granted(control_plane, namespace, 1)


def test_without_a_queue_pods_are_as_ever_and_a_deployments_pods_count_for_its_author(
    control_plane: Cluster, namespace: str
) -> None:
    apply(control_plane, namespace, half("free", 100))
    assert gates(pod(control_plane, namespace, "free")) == []
    assert names.USER not in pod(control_plane, namespace, "free")["metadata"]["annotations"]
    granted(control_plane, namespace, 1)
    template = {"metadata": {"labels": {"app": "d"}}, "spec": half("d", 100)["spec"]}
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "d"},
        "spec": {"replicas": 2, "selector": {"matchLabels": {"app": "d"}}, "template": template},
    }
    with existing(control_plane, gpu_queue("deployers", namespaces=[namespace])):
        apply(control_plane, namespace, deployment)
        granted(control_plane, namespace, 3)
        made = read_json(control_plane.client, f"/api/v1/namespaces/{namespace}/pods?labelSelector=app%3Dd")[
            "items"
        ]
        assert {each["metadata"]["annotations"][names.USER] for each in made} == {"admin"}


@pytest.fixture
def two_teams(control_plane: Cluster) -> Iterator[None]:
    """The example, and its two namespaces."""
    control_plane.kubectl("apply", "-f", str(TWO_TEAMS))
    for team in ("team-a", "team-b"):
        control_plane.kubectl("wait", "--for=condition=Ready", "--timeout=60s", f"gpuqueue/{team}")
    yield
    for team in ("team-a", "team-b"):
        control_plane.kubectl("delete", "pod", "--all", "-n", team, "--grace-period=0", "--force")
    control_plane.kubectl("delete", "-f", str(TWO_TEAMS), "--timeout=90s")


@pytest.mark.usefixtures("two_teams")
def test_the_example_of_two_teams_shares_one_gpu_and_what_was_lent_comes_back(
    control_plane: Cluster, namespace: str
) -> None:
    def held(team: str) -> set[str]:
        return set(grants(control_plane, team))

    # The other GPU of the node is taken, so that there is one for both.
    apply(control_plane, namespace, half("whole", 1000))
    until("the whole GPU", lambda: held(namespace) == {"whole"}, DEADLINE_S)
    for name in ("old", "young", "third"):
        apply(control_plane, "team-a", half(name))
    until("team-a", lambda: held("team-a") == {"old", "young"}, DEADLINE_S)
    apply(control_plane, "team-b", half("owner"))
    until("team-b", lambda: (held("team-a"), held("team-b")) == ({"old"}, {"owner"}), DEADLINE_S)
    message = until("the event", lambda: event(control_plane, "team-a", "young", "Preempted"), DEADLINE_S)
    assert "queue team-b takes back for pod" in message
    assert gates(pod(control_plane, "team-a", "third")) == [names.QUEUE]


def event(cluster: Cluster, namespace: str, name: str, reason: str) -> str | None:
    found = read_json(cluster.client, f"/apis/events.k8s.io/v1/namespaces/{namespace}/events")["items"]
    notes = [each["note"] for each in found if (each["regarding"]["name"], each["reason"]) == (name, reason)]
    return notes[-1] if notes else None


def test_a_higher_priority_wins_a_gpu_and_budgets_and_preemption_policy_are_honored(
    control_plane: Cluster, namespace: str, tmp_path: Path
) -> None:
    important = f"{namespace}-important"
    kinds = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": important}}
    polite = {**kinds, "metadata": {"name": f"{namespace}-polite"}, "value": 1000, "preemptionPolicy": "Never"}
    apply(control_plane, namespace, {**kinds, "value": 1000}, polite)
    # Each GPU has 400 free: the node's totals have room for 500, and no GPU has. Else the youngest leaves.
    guarded = half("guarded", 600)
    guarded["metadata"]["labels"] = {"app": "guarded"}
    apply(control_plane, namespace, half("victim", 600))
    until("the first", lambda: set(grants(control_plane, namespace)) == {"victim"}, DEADLINE_S)
    apply(control_plane, namespace, guarded)
    until("both", lambda: set(grants(control_plane, namespace)) == {"guarded", "victim"}, DEADLINE_S)
    budget = {"minAvailable": 1, "selector": {"matchLabels": {"app": "guarded"}}}
    policy = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "b"}, "spec": budget}
    apply(control_plane, namespace, policy)
    waiting = half("polite", 600)
    waiting["spec"]["priorityClassName"] = f"{namespace}-polite"
    apply(control_plane, namespace, waiting)
    until("the event", lambda: event(control_plane, namespace, "polite", "GPUUnavailable"), DEADLINE_S)
    high = half("high", 500)
    high["spec"]["priorityClassName"] = important
    file = tmp_path / "high.json"
    file.write_text(json.dumps(high))
    said = milligpu(control_plane, "explain", "-f", str(file), "-n", namespace)
    assert f"{namespace}/high: 0/" in said
    assert "; makes room on guarded-0: evicts pod " in said
    assert "high" not in {each["metadata"]["name"] for each in all_pods(control_plane, namespace)}
    apply(control_plane, namespace, high)
    found = until("high", lambda: grants(control_plane, namespace).get("high"), DEADLINE_S)
    assert found.node == "guarded-0"
    assert set(grants(control_plane, namespace)) == {"guarded", "high"}
    message = until("the event", lambda: event(control_plane, namespace, "victim", "Preempted"), DEADLINE_S)
    assert "has priority 1000, and this one 0" in message
    control_plane.kubectl("delete", "priorityclass", important, f"{namespace}-polite")


def member(name: str, size: int, group: str = "job") -> dict[str, Any]:
    """A pod of a group that takes a whole GPU of the node with two."""
    found = half(name, 1000)
    found["metadata"]["annotations"] = {names.GROUP: group, names.GROUP_MIN_COUNT: str(size)}
    return found


def test_a_group_starts_together_or_not_at_all_and_needs_no_queue(control_plane: Cluster, namespace: str) -> None:
    def started() -> set[str]:
        return set(grants(control_plane, namespace))

    def reason(name: str) -> str:
        return (queued(control_plane, namespace, name) or {"reason": ""})["reason"]

    apply(control_plane, namespace, half("blocker", 1000), member("one", 2))
    until("the blocker", lambda: started() == {"blocker"}, DEADLINE_S)
    until("the reason", lambda: reason("one") == "GroupIncomplete", DEADLINE_S)
    apply(control_plane, namespace, member("two", 2))
    until("the reason", lambda: reason("one") == reason("two") == "WaitsForRoom", DEADLINE_S)
    assert started() == {"blocker"}, "there is room for one of the two"
    assert gates(pod(control_plane, namespace, "one")) == [names.QUEUE]
    control_plane.kubectl("delete", "pod", "-n", namespace, "blocker", "--grace-period=0", "--force")
    until("the group", lambda: started() == {"one", "two"}, DEADLINE_S)
    # One that is created again rejoins the group, which runs.
    control_plane.kubectl("delete", "pod", "-n", namespace, "one", "--grace-period=0", "--force")
    apply(control_plane, namespace, member("one", 2))
    until("the group again", lambda: started() == {"one", "two"}, DEADLINE_S)


def test_of_two_groups_that_each_need_all_gpus_one_runs_and_none_holds_half(
    control_plane: Cluster, namespace: str
) -> None:
    pods = [member(f"{group}-{number}", 2, group) for number in range(2) for group in ("red", "blue")]
    apply(control_plane, namespace, *pods)
    until("both of one", lambda: len(grants(control_plane, namespace)) == 2, DEADLINE_S)
    first = set(grants(control_plane, namespace))
    winner = next(iter(first)).split("-")[0]
    assert first == {f"{winner}-0", f"{winner}-1"}
    control_plane.kubectl("delete", "pod", "-n", namespace, *sorted(first), "--grace-period=0", "--force")
    other = {"red": "blue", "blue": "red"}[winner]
    until("the other", lambda: set(grants(control_plane, namespace)) == {f"{other}-0", f"{other}-1"}, DEADLINE_S)


def test_a_group_of_higher_priority_takes_both_gpus_or_none(control_plane: Cluster, namespace: str) -> None:
    important = f"{namespace}-important"
    kind = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": important}}
    apply(control_plane, namespace, {**kind, "value": 1000})
    apply(control_plane, namespace, half("low", 600), half("other", 600))
    until("both", lambda: set(grants(control_plane, namespace)) == {"low", "other"}, DEADLINE_S)
    pods = [member(name, 2) for name in ("one", "two")]
    for each in pods:
        each["spec"]["priorityClassName"] = important
    apply(control_plane, namespace, pods[0])
    until("the reason", lambda: queued(control_plane, namespace, "one"), DEADLINE_S)
    assert set(grants(control_plane, namespace)) == {"low", "other"}, "for half a group nobody is evicted"
    apply(control_plane, namespace, pods[1])
    until("the group", lambda: set(grants(control_plane, namespace)) == {"one", "two"}, DEADLINE_S)
    for name in ("low", "other"):
        message = until(
            "the event", lambda name=name: event(control_plane, namespace, name, "Preempted"), DEADLINE_S
        )
        assert "has priority 1000" in message
    control_plane.kubectl("delete", "priorityclass", important)
