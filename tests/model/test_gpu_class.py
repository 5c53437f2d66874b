"""Classes: what they stand for, which fallbacks are tried, and what is wrong with one that cannot be used."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from milligpu.model.errors import BadRequest
from milligpu.model.gpu_class import NO_CLASSES, GpuClasses, parse_class, read_class
from milligpu.model.reasons import ClassReason, Reason
from milligpu.model.requirements import GRAMMAR, parse_requirements


def classes(**fallbacks: str) -> GpuClasses:
    return GpuClasses(read_class(name, "ecc", fallback) for name, fallback in fallbacks.items())


def test_fallbacks_are_tried_in_order_and_each_once() -> None:
    assert classes(gold="silver", silver="bronze", bronze="").chain("gold") == ("gold", "silver", "bronze")
    assert classes(gold="silver", silver="gold").chain("gold") == ("gold", "silver")
    assert classes(gold="gone").chain("gold") == ("gold",)
    assert classes().chain("gold") == ()


def test_a_fallback_that_cannot_be_read_is_not_tried() -> None:
    found = GpuClasses([read_class("gold", "ecc", "silver"), read_class("silver", "eccc", "")])
    assert found.chain("gold") == ("gold",)


def test_a_missing_class_is_told_with_those_that_exist() -> None:
    assert NO_CLASSES.refusal("gold") == (Reason.CLASS_GONE, "class gold does not exist; no class exists")
    found = classes(silver="", bronze="")
    assert found.refusal("gold") == (
        Reason.CLASS_GONE,
        "class gold does not exist; existing classes: bronze, silver",
    )
    assert found.refusal("silver") is None


@pytest.mark.parametrize(
    ("requirements", "fallback", "reason"),
    [
        ("ecc", "", ClassReason.USABLE),
        ("ecc", "silver", ClassReason.USABLE),
        ("eccc", "", ClassReason.INVALID_REQUIREMENTS),
        ("ecc", "back", ClassReason.FALLBACK_CYCLE),
        ("ecc", "gold", ClassReason.FALLBACK_CYCLE),
        ("ecc", "gone", ClassReason.FALLBACK_GONE),
    ],
)
def test_the_condition_says_what_is_wrong(requirements: str, fallback: str, reason: ClassReason) -> None:
    others = [read_class("silver", "ecc", ""), read_class("back", "ecc", "gold")]
    condition = GpuClasses([*others, read_class("gold", requirements, fallback)]).condition("gold")
    assert condition.reason is reason
    assert condition.ready == (reason is ClassReason.USABLE) == (condition.message == "")


def test_a_cycle_is_refused_with_its_way() -> None:
    found = classes(silver="bronze", bronze="gold")
    with pytest.raises(BadRequest, match="gold: gold -> silver -> bronze -> gold"):
        found.refuse_cycle(parse_class("gold", "ecc", "silver"))
    found.refuse_cycle(parse_class("gold", "ecc"))


_TERMS = (
    "memory>=16Gi",
    "memory >= 512Mi",
    "cc>=8.0",
    "driver>=535.104.05",
    "driver >= 550",
    "cuda>=12.4",
    "ecc",
    "nvlink",
    "numa",
    "model=V100",
    "model != T4",
    "uuid=GPU-1f2e",
    "model in (V100, A100-SXM4-80GB)",
    "model not in ( T4 )",
    "uuid not in (GPU-1)",
)


@given(st.lists(st.sampled_from(_TERMS), min_size=1, max_size=6), st.sampled_from([",", ", ", " , "]))
def test_the_api_server_accepts_whatever_can_be_read(terms: list[str], comma: str) -> None:
    text = comma.join(terms)
    try:
        parse_requirements("r", text)
    except BadRequest:
        return
    assert re.search(GRAMMAR, text)


@pytest.mark.parametrize(
    "text",
    ["", "ecccc", "memory>16Gi", "memory>=", "ecc=1", "ecc,", "model in V100", "cc>=8", "driver>=x", "cuda=12"],
)
def test_the_api_server_refuses_what_has_another_form(text: str) -> None:
    assert not re.search(GRAMMAR, text)
    with pytest.raises(BadRequest):
        parse_requirements("r", text)
