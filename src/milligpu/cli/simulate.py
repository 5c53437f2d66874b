"""`milligpu simulate`: replay a trace or a generated workload and compare placement strategies."""

import csv
import json
import re
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, TypeVar

import click

from milligpu.cli.output import warn_renamed
from milligpu.cli.simulate_queues import read_queues, simulate_queues
from milligpu.model.errors import BadRequest
from milligpu.model.policy import PlacementStrategy
from milligpu.placement.score import STRATEGIES, StrategyName
from milligpu.sim.departures import ChurnResult, churn
from milligpu.sim.generate import generate
from milligpu.sim.plot import save_plot
from milligpu.sim.queue_replay import QueueSetup
from milligpu.sim.replay import MARKS, ReplayResult, ReplaySetup, SeedRun, arrivals, replay
from milligpu.sim.trace import GROUPS, Trace, read_trace, write_trace

# More seeds only cost time: the mean of ten is exact to a few hundredths of a percent.
_SEEDS_MAX = 1000
_SEEDS = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")
_Command = TypeVar("_Command", bound=Callable[..., Any])
_BY_NAME: dict[str, StrategyName] = {str(each): each for each in STRATEGIES}


def _read_seeds(_ctx: click.Context, _param: click.Parameter, text: str) -> tuple[int, ...]:
    seeds: list[int] = []
    for part in text.split(","):
        match = _SEEDS.fullmatch(part.strip())
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if last < first or last - first >= _SEEDS_MAX:
            raise BadRequest("--seeds", text, f"numbers or ranges such as 42-51 or 1,2,7 (at most {_SEEDS_MAX})")
        seeds += range(first, last + 1)
    return tuple(dict.fromkeys(seeds))


def _path_option(name: str, metavar: str, text: str) -> Callable[[_Command], _Command]:
    return click.option(name, type=click.Path(path_type=Path), metavar=metavar, help=text)


def _number_option(
    name: str, default: float, allowed: click.ParamType[Any], metavar: str, text: str
) -> Callable[[_Command], _Command]:
    return click.option(name, default=default, show_default=True, type=allowed, metavar=metavar, help=text)


@click.command(name="simulate")
@_path_option("--nodes", "FILE", "Nodes as CSV in the format of the openb trace.")
@_path_option("--pods", "FILE", "Pods as CSV in the format of the openb trace.")
@click.option(
    "--generate",
    "make",
    type=click.IntRange(1, 100_000),
    metavar="NODES",
    help="Generate a cluster of this many nodes, and its pods.",
)
@_path_option("--save", "DIR", "Directory for the generated nodes and pods, as CSV.")
@click.option(
    "--strategy",
    "strategies",
    multiple=True,
    type=click.Choice(list(_BY_NAME)),
    metavar="NAME",
    help=f"Placement strategy to run: {', '.join(_BY_NAME)}; can be repeated.  [default: packing]",
)
@click.option("--policy", "former_strategies", multiple=True, type=click.Choice(list(_BY_NAME)), hidden=True)
@click.option(
    "--seeds",
    default="42",
    show_default=True,
    callback=_read_seeds,
    metavar="SEEDS",
    help="Seeds of the runs, such as 42-51 or 1,2,7; one run per seed.",
)
@_number_option(
    "--arrival",
    1.3,
    click.FloatRange(0.01, 10),
    "FACTOR",
    "Total request of all pods, as a multiple of the GPUs.",
)
@click.option(
    "--shuffle-nodes",
    is_flag=True,
    help="Shuffle the nodes for each seed. Changes only the strategy random: the others do not depend on the order "
    "of nodes. Not used with --queues.",
)
@click.option(
    "--online",
    is_flag=True,
    help="Learn the expected workload from the arriving pods instead of knowing it in advance.",
)
@click.option("--departures", is_flag=True, help="Let pods end after their lifetime, in a long run.")
@_number_option(
    "--load",
    0.9,
    click.FloatRange(0.01, 2),
    "FRACTION",
    "Target load as a fraction of all GPUs; used only with --departures and --queues.",
)
@_number_option(
    "--events",
    10_000,
    click.IntRange(10, 10_000_000),
    "COUNT",
    "Number of arriving pods; used only with --departures and --queues.",
)
@click.option(
    "--defrag",
    is_flag=True,
    help="Move simulated pods to make room for a pod that does not fit; used only with --departures. "
    "On a cluster no pod is moved.",
)
@_path_option(
    "--queues",
    "FILE",
    "GpuQueue objects as YAML: let pods wait in these queues, and compare milligpu's rule with others.",
)
@click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "json", "csv"]),
    default="table",
    show_default=True,
    help="Output format.",
)
@_path_option("--plot", "FILE", "Write a plot of the allocation to this .svg or .png file.")
def command(
    *,
    nodes: Path | None,
    pods: Path | None,
    make: int | None,
    save: Path | None,
    strategies: tuple[str, ...],
    former_strategies: tuple[str, ...],
    seeds: tuple[int, ...],
    arrival: float,
    shuffle_nodes: bool,
    online: bool,
    departures: bool,
    load: float,
    events: int,
    defrag: bool,
    queues: Path | None,
    output: str,
    plot: Path | None,
) -> None:
    """Replay a workload on a simulated cluster and compare how much of its GPUs each strategy allocates.

    Pods arrive in an order given by the seed until they have requested --arrival times all GPUs. Each pod is placed
    at once or fails.
    """
    if queues is not None and (departures or online or plot is not None):
        raise click.UsageError("--queues goes without --departures, --online and --plot")
    if former_strategies:
        warn_renamed("simulate --policy", "simulate --strategy")
    if plot is not None:
        _check_plot(plot)
    if defrag and not departures:
        raise click.UsageError("--defrag needs --departures")
    trace = _trace(nodes, pods, make, seeds[0])
    if save is not None:
        write_trace(save, trace)
    names = dict.fromkeys((*strategies, *former_strategies))
    chosen = [_BY_NAME[name] for name in names] or [PlacementStrategy.PACKING]
    if queues is not None:
        if len(chosen) > 1:
            raise click.UsageError("--queues takes one --strategy")
        setup = QueueSetup(load, events, chosen[0])
        simulate_queues(trace, read_queues(queues), seeds, setup, output=output, progress=_progress)
        return
    how = ChurnResult(load, events, defrag) if departures else None
    results = _run(trace, chosen, seeds, ReplaySetup(arrival, shuffle_nodes, online), how)
    _show(results, output)
    if plot is not None:
        many = "1 seed" if len(seeds) == 1 else f"mean of {len(seeds)} seeds"
        save_plot(plot, results, f"{len(trace.nodes)} nodes, {trace.capacity // 1000} GPUs, {many}")


def _check_plot(path: Path) -> None:
    """Refuse a file that cannot be written before the long simulation; its directory is created."""
    if path.suffix not in {".svg", ".png"}:
        raise BadRequest("--plot", str(path), "a file that ends in .svg or .png")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadRequest("--plot", str(path), f"in a directory that can be created ({error.strerror})") from None


def _trace(nodes: Path | None, pods: Path | None, make: int | None, seed: int) -> Trace:
    if make is not None:
        if nodes is not None or pods is not None:
            raise click.UsageError("--generate replaces --nodes and --pods: leave them out")
        return generate(make, seed)
    if nodes is None or pods is None:
        raise click.UsageError("either --nodes and --pods or --generate is required")
    return read_trace(nodes, pods)


def _run(
    trace: Trace,
    strategies: Sequence[StrategyName],
    seeds: Sequence[int],
    setup: ReplaySetup,
    how: ChurnResult | None,
) -> list[ReplayResult]:
    steps = how.arrivals if how else len(arrivals(trace, seeds[0], setup.arrival))
    last = round(100 * (how.load if how else setup.arrival))
    marks = (last,) if how else (*(mark for mark in MARKS if mark < last), last)
    results: list[ReplayResult] = []
    with _progress(steps * len(strategies) * len(seeds)) as bar:
        for strategy in strategies:
            runs: list[SeedRun] = []
            for seed in seeds:
                step = bar(f"{strategy}, seed {seed}")
                if how is None:
                    runs.append(replay(trace, strategy, seed, setup, now=time.perf_counter, step=step))
                else:
                    runs.append(churn(trace, strategy, seed, setup, how, now=time.perf_counter, step=step))
            results.append(ReplayResult(strategy, tuple(runs), marks, moved=how is not None and how.defrag))
    return results


_Step = Callable[[], object]


def _progress(total: int) -> AbstractContextManager[Callable[[str], _Step]]:
    """A progress bar on stderr if it is a terminal, else nothing."""
    if not sys.stderr.isatty():
        return nullcontext(lambda _name: lambda: None)
    return _Bar(total)


class _Bar:
    """One progress bar for all runs."""

    def __init__(self, total: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f}%"))
        self._progress = Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True)
        self._task = self._progress.add_task("", total=total)

    def __enter__(self) -> Callable[[str], _Step]:
        self._progress.start()
        return self._begin

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def _begin(self, name: str) -> _Step:
        self._progress.update(self._task, description=name)
        return lambda: self._progress.advance(self._task)


def _show(results: Sequence[ReplayResult], output: str) -> None:
    data = [result.data() for result in results]
    if output == "json":
        click.echo(json.dumps(data, indent=2))
        return
    columns, rows = _cells(data)
    if output == "csv":
        csv.writer(sys.stdout, lineterminator="\n").writerows([columns, *rows])
        return
    widths = [max(len(row[at]) for row in [columns, *rows]) for at in range(len(columns))]
    for row in [columns, *rows]:
        first, *rest = (
            cell.ljust(width) if not at else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        click.echo("  ".join([first, *rest]))
    click.echo(
        "@N: percent of all GPUs allocated when N percent were requested. Next columns: pods that did not fit."
    )


def _cells(data: Sequence[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    marks = sorted({int(mark) for each in data for mark in each["alloc"]})
    moves = ["moves"] if any("moves" in each for each in data) else []
    columns = ["policy", *(f"@{mark}" for mark in marks), *GROUPS, *moves, "decisions/s"]
    rows: list[list[str]] = []
    for each in data:
        alloc = [f"{each['alloc'][str(mark)]:.2f}" if str(mark) in each["alloc"] else "" for mark in marks]
        failed = [f"{each['failed'][group]:g}" for group in GROUPS]
        speed = f"{1e6 / each['us_per_decision']:.0f}" if each["us_per_decision"] else ""
        rows.append([each["policy"], *alloc, *failed, *(f"{each[name]:g}" for name in moves), speed])
    return columns, rows
