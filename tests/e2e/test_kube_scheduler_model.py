"""The simulation's model of kube-scheduler does what the real one does, by the calls that an extender sees."""

from collections.abc import Callable, Iterator
from contextlib import closing

import pytest
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.scheduling_v1 import PriorityClass

from devcluster.cluster import Cluster
from devcluster.fixtures import NewKwokNodes
from devcluster.kwok import KwokNodes
from devcluster.platform import free_port
from milligpu.manifests.kube_scheduler import second_scheduler
from tests.e2e.kube_scheduler_sides import ModelSide, RealSide, calls_by_pod, serving
from tests.e2e.scheduling import gpu_nodes

pytestmark = pytest.mark.e2e

NAME = "modeled"
SLOTS = 1000
Side = ModelSide | RealSide
Step = Callable[[Side, str, str], None]
"""A step of a script, on a side with two nodes."""


def create(name: str, milli: int, *, priority: int = 0, mib: int = 0, claim: str = "") -> Step:
    return lambda side, _a, _b: side.create(name, milli, priority=priority, mib=mib, claim=claim)


def answer(name: str, what: str) -> Step:
    def act(side: Side, _a: str, _b: str) -> None:
        side.extender.answers[name] = what

    return act


def nominate(name: str, *, second: bool = False, clear: bool = False, then: str = "") -> Step:
    """Write a nomination; with `then`, filter answers so from now on."""

    def act(side: Side, a: str, b: str) -> None:
        if then:
            side.extender.answers[name] = then
        side.nominate(name, "" if clear else b if second else a)

    return act


def delete(name: str) -> Step:
    return lambda side, _a, _b: side.delete(name)


def slots(amount: int, *, second: bool = False) -> Step:
    return lambda side, a, b: side.set_slots(b if second else a, amount)


SCRIPTS: dict[str, list[Step]] = {
    "a pod that fits is bound": [create("a", 600), create("b", 600)],
    "a pod that filter refused is retried at the node of a new nomination": [
        answer("a", "no"),
        create("a", 100),
        nominate("a", second=True, then="single"),
    ],
    "a pod that no node's total has room for is retried when a pod is deleted": [
        create("a", 700),
        create("b", 700),
        create("c", 700),
        delete("a"),
    ],
    "slots that come back wake a pod": [slots(0), slots(0, second=True), create("a", 100), slots(SLOTS)],
    "slots that come back do not wake a pod that asks for memory, but a nomination that is removed does": [
        slots(0),
        slots(0, second=True),
        create("a", 100, mib=1024),
        slots(SLOTS),
        nominate("a"),
        nominate("a", clear=True),
    ],
    "a higher priority evicts, and is retried when the victim is gone": [
        slots(0, second=True),
        create("a", 700),
        create("c", 700, priority=10),
    ],
    "after an error a pod is retried": [answer("a", "error"), create("a", 100), answer("a", "yes")],
    "a pod whose claim is missing never reaches the extender": [
        create("a", 100, claim="missing"),
        create("b", 100),
    ],
}


@pytest.fixture
def nodes(kwok_cluster: NewKwokNodes) -> KwokNodes:
    return gpu_nodes(kwok_cluster, 2, 1)


@pytest.fixture(scope="module")
def high(control_plane: Cluster) -> Iterator[str]:
    made = PriorityClass(metadata=ObjectMeta(name=f"{NAME}-high"), value=10)
    control_plane.client.create(made)
    yield f"{NAME}-high"
    control_plane.client.delete(PriorityClass, f"{NAME}-high")


@pytest.fixture(scope="module")
def port(control_plane: Cluster) -> Iterator[int]:
    """Where kube-scheduler, started once for all scripts, expects its extender."""
    found = free_port()
    control_plane.start_scheduler(second_scheduler(f"http://127.0.0.1:{found}", NAME), NAME)
    yield found
    control_plane.control_plane.stop_scheduler(NAME)


@pytest.fixture
def real(control_plane: Cluster, namespace: str, nodes: KwokNodes, high: str) -> RealSide:
    return RealSide(control_plane, namespace, nodes, NAME, high)


@pytest.mark.parametrize("script", SCRIPTS)
def test_the_model_does_what_kube_scheduler_does(script: str, real: RealSide, nodes: KwokNodes, port: int) -> None:
    a, b = sorted(nodes.names)
    model = ModelSide([a, b], SLOTS)
    with serving(real.extender, port), closing(model):
        real.wait_for_nodes()
        for step in SCRIPTS[script]:
            step(model, a, b)
            places = model.settle()
            step(real, a, b)
            real.settle(places, calls_by_pod(model.extender.calls))
