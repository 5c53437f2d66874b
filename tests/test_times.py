"""Times of tests are added up per folder and compared with the budget of the folder's capability."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from testing.times import SLOWEST, Capability, Recorder, Timed, capability_of, load, read_budget, tables

TODAY = Capability("today", 2.0, ("tests",))
QUEUES = Capability("queues", 1.0, ("tests/e2e/queues",))


def report(name: str, outcome: str, seconds: float = 1.0) -> Any:
    return SimpleNamespace(
        nodeid=name,
        outcome=outcome,
        duration=seconds,
        failed=outcome == "failed",
        skipped=outcome == "skipped",
    )


def test_a_folder_belongs_to_the_capability_that_names_the_nearest_one() -> None:
    found = [
        capability_of(folder, [TODAY, QUEUES])
        for folder in ("tests", "tests/e2e", "tests/e2e/queues", "tests/e2e/queues/deep", "bench")
    ]
    assert found == [TODAY, TODAY, QUEUES, QUEUES, None]


def test_the_tables_have_the_minutes_of_each_folder_and_say_what_is_over_its_budget() -> None:
    tests = [
        Timed("tests/a/test_a.py::test_x", seconds=60),
        Timed("tests/a/test_b.py::test_x[1]", seconds=30),
        Timed("tests/e2e/queues/test_q.py::test_x", seconds=90),
    ]
    lines = tables(tests, [TODAY, QUEUES])
    assert lines[1:5] == [
        "    1.5     2.0  today",
        "    1.5            tests/a",
        "    1.5     1.0  queues, 0.5 too many",
        "    1.5            tests/e2e/queues",
    ]
    assert lines[-3:] == [
        "   90.0  tests/e2e/queues/test_q.py::test_x",
        "   60.0  tests/a/test_a.py::test_x",
        "   30.0  tests/a/test_b.py::test_x[1]",
    ]


def test_only_the_slowest_tests_are_named() -> None:
    tests = [Timed(f"tests/test_a.py::test_{number}", seconds=number) for number in range(100)]
    lines = tables(tests, [TODAY])
    assert [line.split()[1] for line in lines[-SLOWEST:]] == [
        f"tests/test_a.py::test_{number}" for number in range(99, 99 - SLOWEST, -1)
    ]


def test_a_tests_time_is_that_of_its_steps_and_one_failed_step_is_a_failure(tmp_path: Path) -> None:
    file = tmp_path / "times.json"
    recorder = Recorder(file)
    for outcome in ("passed", "failed", "passed"):
        recorder.pytest_runtest_logreport(report("tests/test_a.py::test_x@control", outcome))
    recorder.pytest_runtest_logreport(report("tests/test_a.py::test_y[a@b]", "skipped"))
    recorder.pytest_runtest_logreport(report("tests/test_a.py::test_y[a@b]", "passed"))
    recorder.pytest_terminal_summary(None)  # type: ignore[arg-type]
    assert load(file) == [
        Timed("tests/test_a.py::test_x", "failed", 3.0),
        Timed("tests/test_a.py::test_y[a@b]", "skipped", 2.0),
    ]


def test_a_run_that_wrote_no_times_has_none(tmp_path: Path) -> None:
    assert load(tmp_path / "missing.json") == []


def test_the_budget_reads_and_covers_every_folder() -> None:
    budget = read_budget()
    assert capability_of("tests/e2e/platform", budget) is not None
    assert all(each.minutes > 0 for each in budget)
