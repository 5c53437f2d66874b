"""Classes of the chart's values: what the leader changes so that the cluster has them, and what it leaves alone."""

import pytest

from milligpu.model.errors import BadRequest
from milligpu.model.names import DECLARED
from milligpu.scheduler.declared_classes import ClassChange, DeclaredClass, class_changes, parse_declared
from milligpu.wire.kubernetes import GpuClassSpec, KubeGpuClass, ObjectMeta

GOLD = DeclaredClass("gold", "memory>=16Gi", "silver")
SILVER = DeclaredClass("silver", "ecc")


def present(declared: DeclaredClass, *, ours: bool = True, requirements: str = "") -> KubeGpuClass:
    labels = {DECLARED: "true"} if ours else {}
    spec = GpuClassSpec(requirements or declared.requirements, declared.fallback)
    return KubeGpuClass(ObjectMeta(name=declared.name, uid=declared.name, labels=labels), spec)


def test_declared_classes_are_created_with_the_label_and_then_left_as_they_are() -> None:
    gold, silver = class_changes([GOLD, SILVER], [])
    assert gold.body == {
        "apiVersion": "milligpu.dev/v1alpha1",
        "kind": "GpuClass",
        "metadata": {"name": "gold", "labels": {"milligpu.dev/declared": "true"}},
        "spec": {"requirements": "memory>=16Gi", "fallback": "silver"},
    }
    assert (silver.method, silver.name) == ("POST", "silver")
    assert class_changes([GOLD, SILVER], [present(GOLD), present(SILVER)]) == []


def test_a_changed_class_is_patched_and_one_that_is_no_longer_declared_is_deleted() -> None:
    found = [present(GOLD), present(SILVER, requirements="nvlink")]
    assert class_changes([SILVER], found) == [
        ClassChange("DELETE", "gold"),
        # A merge patch removes a fallback that is no longer there only by naming it.
        ClassChange("PATCH", "silver", {"spec": {"fallback": None, "requirements": "ecc"}}),
    ]


def test_a_class_that_somebody_else_created_is_neither_changed_nor_deleted() -> None:
    theirs = present(GOLD, ours=False, requirements="numa")
    assert class_changes([GOLD], [theirs]) == []
    assert class_changes([], [theirs]) == []


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("gold", "--classes"),
        ('[{"name": "gold"}]', "--classes"),
        ('[{"name": "gold", "requirements": "ecc", "fall": "silver"}]', "--classes"),
        ('[{"name": "gold", "requirements": "ram>=1"}]', "--classes[0].requirements"),
        ('[{"name": "g", "requirements": "ecc"}, {"name": "a b", "requirements": "ecc"}]', "--classes[1].name"),
        ('[{"name": "g", "requirements": "ecc"}, {"name": "g", "requirements": "ecc"}]', "--classes"),
    ],
)
def test_what_cannot_be_a_class_is_refused_with_its_field(text: str, field: str) -> None:
    with pytest.raises(BadRequest) as refused:
        parse_declared(text)
    assert refused.value.field == field


def test_the_option_reads_what_the_chart_writes() -> None:
    text = (
        '[{"fallback":"silver","name":"gold","requirements":"memory>=16Gi"},{"name":"silver","requirements":"ecc"}]'
    )
    assert parse_declared(text) == (GOLD, SILVER)
    assert parse_declared("[]") == ()
