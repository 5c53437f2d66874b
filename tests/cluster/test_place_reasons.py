"""Why a bound pod is where it is."""

import json
from typing import Any

import pytest

from milligpu.cluster.place_reasons import depends_on_pods, explain_place
from milligpu.wire.kubernetes import KubePod, NodeImage, decode_pod
from tests.cluster.objects import node, pod

HOST, ZONE = "kubernetes.io/hostname", "topology.kubernetes.io/zone"
NODES = [node(name, labels={HOST: name, ZONE: zone}) for name, zone in (("n0", "a"), ("n1", "a"), ("n2", "b"))]


def kube(made: dict[str, Any], labels: dict[str, str] | None = None, namespace: str = "default") -> KubePod:
    made["metadata"] |= {"labels": labels or {}, "namespace": namespace}
    return decode_pod(json.dumps(made).encode())


def near(key: str, **term: Any) -> dict[str, Any]:
    return {"topologyKey": key, "labelSelector": {"matchLabels": {"app": "data"}}, **term}


def work(**affinity: Any) -> KubePod:
    return kube(pod("work", 500, nodeName="n0", affinity=affinity))


def required(term: dict[str, Any]) -> dict[str, Any]:
    return {"requiredDuringSchedulingIgnoredDuringExecution": [term]}


def data(name: str, on: str, namespace: str = "default") -> KubePod:
    return kube(pod(name, None, nodeName=on), {"app": "data"}, namespace)


@pytest.mark.parametrize(
    ("term", "others", "wanted"),
    [
        (near(HOST), [data("d0", "n0")], ["its pod d0 is there"]),
        (near(HOST), [data("d1", "n1")], []),
        (near(ZONE), [data("d1", "n1")], [f"its pod d1 is in {ZONE}=a"]),
        (near(ZONE), [data("d1", "n1"), data("d0", "n0")], ["its pod d0 is there, and 1 more"]),
        (near(ZONE), [data("d2", "n2")], []),
        (near(HOST), [data("d0", "n0", "other")], []),
        (near(HOST, namespaces=["other"]), [data("d0", "n0", "other")], ["its pod d0 is there"]),
        (near(HOST, namespaceSelector={}), [data("d0", "n0", "other")], ["its pod d0 is there"]),
        (near("rack"), [data("d0", "n0")], []),
    ],
)
def test_the_pod_that_a_pod_wanted_to_be_near_is_named(
    term: dict[str, Any], others: list[KubePod], wanted: list[str]
) -> None:
    asked = work(podAffinity=required(term))

    assert depends_on_pods(asked)
    assert explain_place(asked, NODES, [asked, *others]) == wanted


def test_a_preferred_pod_counts_as_a_required_one() -> None:
    preferred = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "podAffinityTerm": near(HOST)}]}

    assert explain_place(work(podAffinity=preferred), NODES, [data("d0", "n0")]) == ["its pod d0 is there"]


def test_preferred_labels_and_images_of_the_node_are_named() -> None:
    term = {"matchExpressions": [{"key": ZONE, "operator": "In", "values": ["a"]}]}
    other = {"matchExpressions": [{"key": ZONE, "operator": "In", "values": ["b"]}]}
    terms = [{"weight": 1, "preference": each} for each in (term, other)]
    asked = pod(
        "work",
        500,
        nodeName="n0",
        affinity={"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": terms}},
    )
    asked["spec"]["containers"][0]["image"] = "torch"
    here = node("n0", labels={ZONE: "a"})
    here.status.images = (NodeImage(("torch:latest",), 10**9),)

    found = kube(asked)

    assert not depends_on_pods(found)
    assert explain_place(found, [here], ()) == [f"it prefers {ZONE} In (a)", "its image torch:latest is there"]


def test_nothing_is_said_of_a_node_that_is_gone() -> None:
    assert explain_place(work(), [], ()) == []
