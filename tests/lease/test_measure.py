"""`milligpu measure enforce` measures the named cases, and repeats one for which the machine was too slow."""

import json
from typing import cast

import pytest
from click.testing import CliRunner

from milligpu.cli.measure import command
from milligpu.measure import enforce, testbed
from milligpu.measure.enforce import LATE_MAX, CaseResult, CaseRunner, measure
from milligpu.measure.testbed import Testbed

TESTBED = cast(Testbed, None)


def runner(name: str, late: list[int]) -> CaseRunner:
    left = iter(late)
    return lambda _testbed: CaseResult(name, [100], [100], late_launches=next(left))


def measured(
    monkeypatch: pytest.MonkeyPatch, late: dict[str, list[int]]
) -> tuple[list[tuple[int, int]], list[str]]:
    """Late launches and tries of each case, and the progress lines."""
    monkeypatch.setattr(enforce, "cases", lambda: {name: runner(name, each) for name, each in late.items()})
    said: list[str] = []
    return [(each.late_launches, each.tries) for each in measure(TESTBED, late, said.append)], said


def test_only_a_case_with_late_launches_is_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    found, said = measured(monkeypatch, {"a": [LATE_MAX], "b": [90, 3]})
    assert found == [(LATE_MAX, 1), (3, 2)]
    assert said == ["a", "b", "b, again: 90 launches were late"]


def test_after_three_tries_the_result_with_the_fewest_late_launches_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    assert measured(monkeypatch, {"a": [90, 40, 60, 0]})[0] == [(40, 3)]


def test_a_case_is_not_repeated_when_the_spare_time_is_used_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(enforce, "_SPARE_S", 0.0)
    assert measured(monkeypatch, {"a": [90, 0]})[0] == [(90, 1)]


def unchanged_priority(*, urgent: bool = True) -> bool:
    return urgent


@pytest.mark.alone
def test_the_command_measures_only_the_named_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    """For real, but in a shorter time: a share of 0.3 alone on a GPU, two tenants, and two on two GPUs."""
    monkeypatch.setattr(enforce, "_WARM_NS", 200_000_000)
    monkeypatch.setattr(enforce, "_MEASURED_NS", 1_000_000_000)
    monkeypatch.setattr(enforce, "_TRIES", 1)
    # The tests after this one are not to have real-time priority.
    monkeypatch.setattr(testbed, "raise_priority", unchanged_priority)
    words = ["enforce", "--case", "fixed share, alone", "--case", "70/30", "--case", "collectives", "-o", "json"]
    done = CliRunner().invoke(command, words, catch_exceptions=False)
    assert done.exit_code == 0
    assert "fixed share, alone …\n70/30 …\ncollectives …\n" in done.stderr
    alone, two, spanning = json.loads(done.stdout)
    assert (alone["case"], alone["wanted"]) == ("fixed share, alone", [30])
    assert (two["case"], two["wanted"]) == ("70/30", [70, 30])
    # How exactly is measured without other programs on the machine; here, that the programs ran with their limits.
    assert 0 < alone["measured"][0] < 60
    assert two["measured"][0] > two["measured"][1] > 0
    # Programs with a barrier per step across two GPUs make steps next to each other.
    assert min(spanning["measured"]) > 0
    assert spanning["times_ideal"] > 0
