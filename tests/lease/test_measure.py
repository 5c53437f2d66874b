"""`milligpu bench enforce` does not take the word of a card that was late."""

from typing import cast

import pytest

from milligpu.bench import enforce
from milligpu.bench.enforce import LATE_MAX, CaseRunner, Result, measure
from milligpu.bench.stage import Stage

STAGE = cast(Stage, None)


def runner(name: str, late: list[int]) -> CaseRunner:
    left = iter(late)
    return lambda _stage: Result(name, [100], [100], late_launches=next(left))


def measured(
    monkeypatch: pytest.MonkeyPatch, late: dict[str, list[int]]
) -> tuple[list[tuple[int, int]], list[str]]:
    """Late launches and tries of each case, and what was said."""
    monkeypatch.setattr(enforce, "cases", lambda: {name: runner(name, each) for name, each in late.items()})
    said: list[str] = []
    return [(each.late_launches, each.tries) for each in measure(STAGE, late, said.append)], said


def test_a_case_is_measured_again_only_where_the_card_was_late(monkeypatch: pytest.MonkeyPatch) -> None:
    found, said = measured(monkeypatch, {"a": [LATE_MAX], "b": [90, 3]})
    assert found == [(LATE_MAX, 1), (3, 2)]
    assert said == ["a", "b", "b, again: 90 launches were late"]


def test_of_three_late_ones_the_least_late_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    assert measured(monkeypatch, {"a": [90, 40, 60, 0]})[0] == [(40, 3)]


def test_no_more_time_is_spent_on_it_than_there_is_to_spare(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(enforce, "_SPARE_S", 0.0)
    assert measured(monkeypatch, {"a": [90, 0]})[0] == [(90, 1)]
