"""`make test` runs every phase, builds Kubernetes meanwhile, and says at the end what became of all of it."""

from collections.abc import Callable
from pathlib import Path

import pytest

from testing import suite
from testing.suite import ALONE, E2E, FAST, LONG, Done, Phase, merge, page, run_tier, summary
from testing.times import Timed


class FakeBuild:
    """A build that ends at once."""

    ok = True

    def __init__(self) -> None:
        self.seconds = 61.0

    def finish(self) -> bool:
        return self.ok

    def abandon(self) -> None:
        pass


@pytest.fixture(autouse=True)
def somewhere_else(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing is written where a run of `make test`, perhaps this one, writes."""
    monkeypatch.setattr(suite, "OUT", tmp_path)
    monkeypatch.setattr(suite, "TESTED", tmp_path / "tested.md")
    monkeypatch.setattr(suite, "Build", FakeBuild)
    monkeypatch.setattr(FakeBuild, "ok", True)


def done(phase: Phase, *outcomes: str) -> Done:
    tests = [Timed(f"tests/test_{phase.name}.py::test_{at}", each, 60.0) for at, each in enumerate(outcomes)]
    return Done(phase, 75.0, 1 if "failed" in outcomes else 0, tests)


def all_pass_but(failing: Phase | None = None) -> Callable[[Phase], Done]:
    return lambda phase: done(phase, "failed" if phase is failing else "passed")


def test_every_test_is_in_exactly_one_phase() -> None:
    marks = [{"e2e": e2e, "alone": alone, "long": long} for e2e in (0, 1) for alone in (0, 1) for long in (0, 1)]
    for each in marks:
        phases = [phase.name for phase in (FAST, E2E, ALONE, LONG) if eval(phase.selection, dict(each))]
        assert len(phases) == 1, each


def test_a_failed_test_does_not_keep_the_next_phases_from_running(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(suite, "run", all_pass_but(FAST))
    assert not run_tier("test")
    said = capsys.readouterr().out
    assert "make test: 1 tests FAILED" in said
    assert "failed\ntests/test_fast.py::test_0" in said
    assert "alone" in said


def test_without_kubernetes_the_tests_that_need_it_do_not_run_and_the_summary_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(FakeBuild, "ok", False)
    monkeypatch.setattr(suite, "run", all_pass_but())
    assert not run_tier("test")
    said = capsys.readouterr().out
    assert "make test: NOT all tests ran" in said
    assert said.count("did not run") == 2


def test_the_summary_counts_the_tests_of_each_phase() -> None:
    lines = summary((FAST, E2E), [done(FAST, "passed", "skipped"), done(E2E, "passed", "passed")], 61.0)
    assert lines[1:5] == [
        "            passed  skipped  failed     min",
        "build                                  1:01  Kubernetes, during tests that do not need it",
        "fast             1        1       0    1:15  tests without Kubernetes",
        "e2e              2        0       0    1:15  tests on shared clusters",
    ]


def test_a_run_that_ended_without_a_failed_test_is_named_with_its_code() -> None:
    assert summary((FAST,), [Done(FAST, 1.0, 3)], None)[-1] == "fast: pytest ended with 3"


def test_a_test_that_passes_alone_is_named_as_unsteady_and_does_not_fail_the_run() -> None:
    merged = merge(done(E2E, "failed", "passed"), done(E2E, "passed"))
    assert merged.ok
    assert summary((E2E,), [merged], None)[-2:] == [
        "unsteady: failed at first, passed alone",
        "tests/test_e2e.py::test_0",
    ]


def test_a_test_that_fails_twice_fails_the_run() -> None:
    merged = merge(done(E2E, "failed", "failed"), done(E2E, "passed", "failed"))
    assert not merged.ok
    assert [test.name for test in merged.failed] == ["tests/test_e2e.py::test_1"]


def test_a_run_that_was_interrupted_stays_failed_whatever_passes_later() -> None:
    first = done(E2E, "failed")
    first.code = 2
    assert not merge(first, done(E2E, "passed")).ok


def test_a_test_that_did_not_run_the_second_time_stays_failed() -> None:
    assert not merge(done(E2E, "failed"), done(E2E, "skipped")).ok


def test_a_page_says_what_was_tested_in_full_only_when_nothing_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suite, "run", all_pass_but(LONG))
    assert not run_tier("test-all")
    assert not suite.TESTED.exists()
    monkeypatch.setattr(suite, "run", all_pass_but())
    assert run_tier("test-all")
    assert "| long random runs | 1 | 0 | 1:15 |" in suite.TESTED.read_text()


def test_the_page_names_the_commit() -> None:
    assert len(page([done(ALONE, "passed")]).splitlines()[4].split()[1].rstrip(",")) == 40
