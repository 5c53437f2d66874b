"""A pytest plugin that adds up how long tests take, and the tables that show it.

The time of a test is that of its set-up, its call and its teardown. What a shared fixture takes counts for the
first test that uses it. The times are serial: with two workers the tests are over in about half of their sum.

`--times FILE` writes the times to a file, for a summary of several runs; without it pytest ends with the tables.
"""

import json
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath

import pytest

BUDGET = Path(__file__).parents[1] / "tests/budget.toml"
SLOWEST = 20


@dataclass
class Timed:
    """A test that ran."""

    name: str
    outcome: str = "passed"
    seconds: float = 0.0

    @property
    def folder(self) -> str:
        """Where the test's file is."""
        return str(PurePosixPath(self.name.partition("::")[0]).parent)


@dataclass(frozen=True)
class Capability:
    """A part of the project with a budget of its own."""

    name: str
    minutes: float
    folders: tuple[str, ...]


def read_budget(path: Path = BUDGET) -> list[Capability]:
    """Read the capabilities in the order of the file."""
    content = tomllib.loads(path.read_text())
    return [Capability(name, float(each["minutes"]), tuple(each["folders"])) for name, each in content.items()]


def capability_of(folder: str, capabilities: Iterable[Capability]) -> Capability | None:
    """Find the capability that names the folder, or the nearest folder above it."""
    owners = {named: each for each in capabilities for named in each.folders}
    where = PurePosixPath(folder)
    return next((owners[str(each)] for each in (where, *where.parents) if str(each) in owners), None)


def tables(tests: Iterable[Timed], capabilities: Iterable[Capability]) -> list[str]:
    """Lines that show the time per folder against the budget, and the slowest tests."""
    known, timed = list(capabilities), list(tests)
    folders: Counter[str] = Counter()
    for test in timed:
        folders[test.folder] += test.seconds  # pyright: ignore[reportArgumentType] - a Counter of floats
    lines = ["minutes  budget  folder (times of all tests, as if they ran one after the other)"]
    for each in (*known, None):
        mine = {name: spent for name, spent in folders.items() if capability_of(name, known) == each}
        if mine:
            lines += _capability(each, mine)
    lines += ["", f"seconds  the {SLOWEST} slowest tests"]
    slowest = sorted(timed, key=lambda test: -test.seconds)[:SLOWEST]
    return lines + [f"{test.seconds:7.1f}  {test.name}" for test in slowest]


def _capability(capability: Capability | None, folders: Mapping[str, float]) -> list[str]:
    name, budget = (capability.name, capability.minutes) if capability else ("without a budget", 0.0)
    spent = sum(folders.values()) / 60
    over = f", {spent - budget:.1f} too many" if spent > budget else ""
    lines = [f"{spent:7.1f}  {budget:6.1f}  {name}{over}"]
    return lines + [f"{seconds / 60:7.1f}            {each}" for each, seconds in sorted(folders.items())]


def save(tests: Iterable[Timed], path: Path) -> None:
    """Write times for `load`."""
    path.write_text(json.dumps([asdict(test) for test in tests]))


def load(path: Path) -> list[Timed]:
    """Read what `save` wrote; empty if pytest ended before it could save."""
    return [Timed(**each) for each in json.loads(path.read_text())] if path.exists() else []


def _without_group(name: str) -> str:
    """Remove the group, which xdist writes after the name and its parameters."""
    return name[: name.rfind("@")] if name.rfind("@") > name.rfind("]") else name


class Recorder:
    """Collects the reports of one run, those of its workers included."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._tests: dict[str, Timed] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add one step of a test. A test with a failed step failed, whatever became of its other steps."""
        test = self._tests.setdefault(report.nodeid, Timed(_without_group(report.nodeid)))
        test.seconds += report.duration
        if report.failed or (report.skipped and test.outcome == "passed"):
            test.outcome = report.outcome

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Write the times, or show them after a run of many tests."""
        if self._path is not None:
            save(self._tests.values(), self._path)
        elif len(self._tests) > SLOWEST:
            terminalreporter.section("times")
            for line in tables(self._tests.values(), read_budget()):
                terminalreporter.write_line(line)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--times`."""
    parser.addoption("--times", type=Path, metavar="FILE", help="write how long each test took to FILE")


def pytest_configure(config: pytest.Config) -> None:
    """Record in the process that prints: a worker's reports arrive there, too."""
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Recorder(config.getoption("--times")), "times")
