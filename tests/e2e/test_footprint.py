"""Init containers and sidecars count here as they count in kube-scheduler: asked of the scheduler itself."""

import random
from typing import Any, cast

import pytest
from lightkube.models.core_v1 import Container, PodSpec, ResourceRequirements
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Pod

from devcluster.cluster import Cluster
from devcluster.fixtures import NewKwokNodes
from devcluster.pods import node_name, wait_for_phase, why_unscheduled
from devcluster.wait import until
from milligpu import dialects
from milligpu.model import names
from milligpu.model.footprint import footprint
from milligpu.model.gpu import Gpu
from milligpu.model.units import Mib

pytestmark = pytest.mark.e2e

CARD = Gpu("GPU-x", "T4", Mib(16384))
PODS = 12


def drawn(dice: random.Random) -> PodSpec:
    """A few init containers, sidecars and main ones whose shares fit onto one card together."""

    def container(name: str, **more: Any) -> Container:
        milli = dice.choice([0, 50, 100, 200, 300])
        limits = {names.VGPU: str(milli)} if milli else {}
        return Container(name=name, image="none", resources=ResourceRequirements(limits=limits), **more)

    before = [
        container(f"before-{at}", **({"restartPolicy": "Always"} if dice.random() < 0.5 else {}))
        for at in range(dice.randrange(4))
    ]
    main = [container(f"main-{at}") for at in range(dice.randrange(1, 3))]
    return PodSpec(containers=main, initContainers=before or None)


def needs(spec: PodSpec) -> int:
    """By our sum."""
    found: dict[str, Any] = cast(Any, Pod(metadata=ObjectMeta(name="x", namespace="y"), spec=spec)).to_dict()
    return sum(demand.milli for demand in footprint(dialects.read_pod(found).containers, CARD).demands)


def test_a_pod_fits_by_our_sum_exactly_when_it_fits_by_kube_schedulers(
    control_plane: Cluster, kwok_cluster: NewKwokNodes, namespace: str
) -> None:
    dice = random.Random(5)
    specs = [spec for spec in (drawn(dice) for _ in range(PODS)) if needs(spec)]
    client = control_plane.client
    # For each a node with exactly what we say it needs, and one with a thousandth less.
    for number, spec in enumerate(specs):
        for suffix, amount in (("enough", needs(spec)), ("short", needs(spec) - 1)):
            nodes = kwok_cluster(1, resources={names.VGPU: str(amount)})
            spec.nodeSelector, spec.tolerations = dict(nodes.selector), list(nodes.tolerations)
            client.create(Pod(metadata=ObjectMeta(name=f"{suffix}-{number}"), spec=spec), namespace=namespace)

    for number in range(len(specs)):
        wait_for_phase(control_plane, namespace, f"enough-{number}", "Running")

        def refused(name: str = f"short-{number}") -> bool:
            found = client.get(Pod, name, namespace=namespace)
            assert not node_name(found), f"{name} should not fit"
            return f"Insufficient {names.VGPU}" in why_unscheduled(found)

        until(f"short-{number} to be refused", refused, 30)
