"""Preferences of pods on a real kube-scheduler: never worse than without milligpu, and packing among equals."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

import pytest
from lightkube.resources.core_v1 import Node, Pod

from devcluster.api import patch_global, read_json
from devcluster.cluster import Cluster
from devcluster.fixtures import NewKwokNodes
from devcluster.kwok import KwokNodes
from devcluster.platform import SchedulerService
from devcluster.pods import pod
from devcluster.wait import until
from milligpu.kube import config
from milligpu.manifests.kube_scheduler import SECOND_SCHEDULER_GATES, second_scheduler
from milligpu.model import names
from milligpu.status.pod import explain_pod
from tests.e2e.scheduling import gpu_nodes, grants, overcommitted, share_pod, told

pytestmark = pytest.mark.e2e

NAME = "preferences"
ZONES = ("a", "b", "c", "d")
NODES, CARDS = 16, 2
# Beyond this, pods end before others start.
FULL_MILLI = NODES * CARDS * 1000 * 6 // 10
HOSTNAME = "kubernetes.io/hostname"


@pytest.fixture(scope="module")
def service(control_plane: Cluster) -> Iterator[SchedulerService]:
    """One service and a kube-scheduler of its own for the module's tests."""
    started = SchedulerService(control_plane, NAME, "--scheduler-name", NAME).start().wait_ready()
    control_plane.start_scheduler(second_scheduler(started.url, NAME), NAME, SECOND_SCHEDULER_GATES)
    yield started
    control_plane.control_plane.stop_scheduler(NAME)
    started.process.stop()


@pytest.fixture
def nodes(control_plane: Cluster, kwok_cluster: NewKwokNodes) -> KwokNodes:
    """Nodes in four zones; every third one has a fast disk."""
    made = gpu_nodes(kwok_cluster, NODES, CARDS)
    for number, name in enumerate(made.names):
        labels = {"zone": ZONES[number % len(ZONES)], "disk": "slow" if number % 3 else "fast"}
        patch_global(control_plane.client, Node, name, {"metadata": {"labels": labels}})
    return made


@dataclass(frozen=True)
class Cast:
    """One drawn pod: what it prefers, as its spec says it, and as points of a node."""

    spec: dict[str, Any]
    by_label: tuple[tuple[int, str, str], ...] = ()
    by_data: int = 0
    """The weight of being on a node with a data pod; below zero: not on one."""
    spread: bool = False

    def points(self, labels: dict[str, str], *, data: bool, alike: int) -> int:
        """The points of a node with these labels, in whose zone are so many pods like this one."""
        found = sum(weight for weight, key, value in self.by_label if labels.get(key) == value)
        return found + (self.by_data if data else 0) - (alike if self.spread else 0)


def draw(dice: Random) -> Cast:
    match dice.choice(("label", "data", "not-data", "spread")):
        case "label":
            wanted = (("zone", dice.choice(ZONES)), ("zone", dice.choice(ZONES)), ("disk", "fast"))
            terms = tuple((dice.choice((10, 50, 100)), *each) for each in wanted)
            preferred = [
                {
                    "weight": weight,
                    "preference": {"matchExpressions": [{"key": k, "operator": "In", "values": [v]}]},
                }
                for weight, k, v in terms
            ]
            affinity = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}}
            return Cast({"affinity": affinity}, by_label=terms)
        case "spread":
            constraint = {
                "maxSkew": 1,
                "topologyKey": "zone",
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": {"app": "work"}},
            }
            return Cast({"topologySpreadConstraints": [constraint]}, spread=True)
        case kind:
            weight = dice.choice((10, 100))
            term = {"labelSelector": {"matchLabels": {"app": "data"}}, "topologyKey": HOSTNAME}
            which = "podAffinity" if kind == "data" else "podAntiAffinity"
            preferred = {
                "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": weight, "podAffinityTerm": term}]
            }
            return Cast({"affinity": {which: preferred}}, by_data=weight if kind == "data" else -weight)


@dataclass(frozen=True)
class Seen:
    """The cluster before a pod is placed."""

    free: dict[str, int]
    """The largest free part of a GPU, by node."""
    used: frozenset[str]
    points: dict[str, int]

    def best(self, among: set[str]) -> int:
        return max(self.points[name] for name in among)


def look(cluster: Cluster, namespace: str, nodes: KwokNodes, cast: Cast) -> Seen:
    labels = {
        name: read_json(cluster.client, f"/api/v1/nodes/{name}")["metadata"]["labels"] for name in nodes.names
    }
    pods = read_json(cluster.client, f"/api/v1/namespaces/{namespace}/pods")["items"]
    app = [(each["metadata"]["labels"].get("app"), each["spec"].get("nodeName", "")) for each in pods]
    data = {node for what, node in app if what == "data"}
    zones = [labels[node]["zone"] for what, node in app if what == "work" and node in labels]
    held = grants(cluster, namespace).values()
    taken = {
        gpu: sum(
            share.share.milli
            for each in held
            for shares in each.containers.values()
            for share in shares
            if share.gpu == gpu
        )
        for name in nodes.names
        for gpu in (f"GPU-{name}-{at}" for at in range(CARDS))
    }
    return Seen(
        {name: max(1000 - taken[f"GPU-{name}-{at}"] for at in range(CARDS)) for name in nodes.names},
        frozenset(each.node for each in held),
        {
            name: cast.points(labels[name], data=name in data, alike=zones.count(labels[name]["zone"]))
            for name in nodes.names
        },
    )


def on(nodes: KwokNodes) -> dict[str, Any]:
    """The spec by which a pod may be on these nodes, and only there."""
    return {"nodeSelector": dict(nodes.selector), "tolerations": list(nodes.tolerations)}


def place(cluster: Cluster, namespace: str, made: Pod, app: str) -> str:
    """Create a pod and return its node."""
    assert made.metadata is not None
    made.metadata.labels = {"app": app}
    cluster.client.create(made, namespace=namespace)
    path = f"/api/v1/namespaces/{namespace}/pods/{made.metadata.name}"
    return until(
        f"a node for {made.metadata.name}",
        lambda: read_json(cluster.client, path)["spec"].get("nodeName"),
        60,
        every_s=0.01,
        last_state=lambda: str(read_json(cluster.client, path)["status"]),
    )


@pytest.mark.parametrize("count", [60, pytest.param(200, marks=pytest.mark.long)])
def test_preferences_count_as_without_milligpu_and_packing_decides_among_equals(
    control_plane: Cluster, nodes: KwokNodes, namespace: str, service: SchedulerService, count: int
) -> None:
    dice = Random(18)
    client, where = control_plane.client, on(nodes)
    for number in range(4):
        place(control_plane, namespace, pod(f"data-{number}", **where), "data")
    sizes: dict[str, int] = {}
    compared = 0
    for number in range(count):
        cast, milli = draw(dice), dice.choice((100, 200, 300, 500))
        before = look(control_plane, namespace, nodes, cast)
        while sum(sizes.values()) > FULL_MILLI:
            gone = dice.choice(sorted(sizes))
            client.delete(Pod, gone, namespace=namespace, grace_period=0)
            del sizes[gone]
        plain = place(
            control_plane,
            namespace,
            pod(f"bare-{number}", **where, **cast.spec),
            "bare",
        )
        client.delete(Pod, f"bare-{number}", namespace=namespace, grace_period=0)
        name = f"work-{number}"
        after = look(control_plane, namespace, nodes, cast)

        ours = place(
            control_plane, namespace, share_pod(name, milli, nodes, schedulerName=NAME, **cast.spec), "work"
        )

        sizes[name] = milli
        # The service and kube-scheduler may not have seen yet that a pod has ended.
        fits = {each for each in nodes.names if before.free[each] >= milli and after.free[each] >= milli}
        seen = after if after.points[ours] >= after.best(fits) else before
        what = f"{number}: {cast} of {milli}: {ours}, plain {plain}, among {sorted(fits)}: {before}, then {after}"
        assert seen.points[ours] >= seen.best(fits), what
        if plain in fits:
            compared += 1
            assert seen.points[ours] >= seen.points[plain], what
        equals = {each for each in fits if before.points[each] == after.points[each] == after.points[ours]}
        if ours not in before.used | after.used:
            assert not equals & before.used & after.used, what
    assert compared > count // 4
    assert overcommitted(grants(control_plane, namespace)) == []


def test_explain_names_the_data_pod_that_a_pod_is_next_to(
    control_plane: Cluster, nodes: KwokNodes, namespace: str, service: SchedulerService
) -> None:
    where = on(nodes)
    there = place(control_plane, namespace, pod("data", **where), "data")
    term = {"labelSelector": {"matchLabels": {"app": "data"}}, "topologyKey": HOSTNAME}
    near = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}

    ours = place(control_plane, namespace, share_pod("work", 500, nodes, schedulerName=NAME, affinity=near), "work")

    assert ours == there
    with config.blocking_client(config.find_cluster(str(control_plane.kubeconfig))) as client:
        assert "its pod data is there" in explain_pod(client, namespace, "work").text


def test_a_pod_with_preferences_that_waits_is_placed_when_room_is_made(
    control_plane: Cluster, kwok_cluster: NewKwokNodes, namespace: str, service: SchedulerService
) -> None:
    pair = gpu_nodes(kwok_cluster, 2, cards=1)
    for name in pair.names:
        patch_global(control_plane.client, Node, name, {"metadata": {"labels": {"zone": name}}})
    holders = {
        place(
            control_plane, namespace, share_pod(f"full-{at}", 1000, pair, schedulerName=NAME), "full"
        ): f"full-{at}"
        for at in range(2)
    }
    assert holders.keys() == set(pair.names)
    preferred = pair.names[1]
    term = {"matchExpressions": [{"key": "zone", "operator": "In", "values": [preferred]}]}
    prefers = {
        "nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": term}]}
    }
    control_plane.client.create(
        share_pod("choosy", 500, pair, schedulerName=NAME, affinity=prefers), namespace=namespace
    )
    until("an event that says why", lambda: told(control_plane, namespace, "choosy") or None, 30)

    for each in holders.values():
        control_plane.client.delete(Pod, each, namespace=namespace, grace_period=0)

    path = f"/api/v1/namespaces/{namespace}/pods/choosy"
    found = until("a node", lambda: read_json(control_plane.client, path)["spec"].get("nodeName"), 60)
    assert found in pair.names
    assert overcommitted(grants(control_plane, namespace)) == []


def test_a_pod_that_asks_for_memory_is_retried_when_a_node_has_slots_again(
    control_plane: Cluster, kwok_cluster: NewKwokNodes, namespace: str, service: SchedulerService
) -> None:
    """kube-scheduler's own hint for nodes forgets that it ignores some resources, and leaves such a pod alone."""
    (name,) = (lone := gpu_nodes(kwok_cluster, 1)).names
    set_slots(control_plane, name, "0")
    asked = share_pod("memory", 500, lone, mib=4096, schedulerName=NAME)
    control_plane.client.create(asked, namespace=namespace)
    path = f"/api/v1/namespaces/{namespace}/pods/memory"

    def refused() -> bool:
        return "Insufficient nvidia.com/vgpu" in str(read_json(control_plane.client, path)["status"])

    until("kube-scheduler to refuse the pod by the node's total", refused, 30)

    set_slots(control_plane, name, "2000")

    until("the pod to be bound", lambda: read_json(control_plane.client, path)["spec"].get("nodeName"), 30)


def set_slots(cluster: Cluster, node: str, count: str) -> None:
    """Report so many slots, as the kubelet does when an agent is lost and comes back."""
    change = {"status": {"allocatable": {names.VGPU: count}, "capacity": {names.VGPU: count}}}
    cluster.kubectl("patch", "node", node, "--subresource=status", "--type=merge", "-p", json.dumps(change))
