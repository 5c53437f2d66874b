"""`milligpu simulate`: replay a trace, or a made-up workload, and compare policies."""

import csv
import json
import re
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import click

from milligpu.model.errors import BadRequest
from milligpu.model.qos import Strategy
from milligpu.placement.score import POLICIES, PolicyName
from milligpu.sim.departures import Churn, churn
from milligpu.sim.generate import generate
from milligpu.sim.plot import save_plot
from milligpu.sim.replay import MARKS, Result, Run, Setup, arrivals, replay
from milligpu.sim.trace import GROUPS, Trace, read_trace, write_trace

# More seeds than this only cost time: the mean of ten is good to a few hundredths of a percent.
_SEEDS_MAX = 1000
_SEEDS = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")
_BY_NAME: dict[str, PolicyName] = {str(policy): policy for policy in POLICIES}


def _read_seeds(_ctx: click.Context, _param: click.Parameter, text: str) -> tuple[int, ...]:
    seeds: list[int] = []
    for part in text.split(","):
        match = _SEEDS.fullmatch(part.strip())
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if last < first or last - first >= _SEEDS_MAX:
            raise BadRequest("--seeds", text, f"numbers or ranges such as 42-51 or 1,2,7 (at most {_SEEDS_MAX})")
        seeds += range(first, last + 1)
    return tuple(dict.fromkeys(seeds))


@click.command(name="simulate")
@click.option("--nodes", type=click.Path(path_type=Path), metavar="FILE", help="Nodes, as openb CSV.")
@click.option("--pods", type=click.Path(path_type=Path), metavar="FILE", help="Pods, as openb CSV.")
@click.option(
    "--generate", "make", type=click.IntRange(1, 100_000), metavar="NODES", help="Make up a cluster and its pods."
)
@click.option("--save", type=click.Path(path_type=Path), metavar="DIR", help="Write what --generate made as CSV.")
@click.option(
    "--policy", "policies", multiple=True, type=click.Choice(list(_BY_NAME)), help="Which to run; may repeat."
)
@click.option(
    "--seeds", default="42", show_default=True, callback=_read_seeds, help="One run each: 42-51 or 1,2,7."
)
@click.option(
    "--arrival",
    default=1.3,
    show_default=True,
    type=click.FloatRange(0.01, 10),
    help="Demand, relative to the GPUs.",
)
@click.option("--shuffle-nodes", is_flag=True, help="Put the nodes into another order for every seed.")
@click.option("--online", is_flag=True, help="Learn the expected workload from the arrivals instead of knowing it.")
@click.option("--departures", is_flag=True, help="Let pods leave after their lifetimes, in a long run.")
@click.option(
    "--load", default=0.9, show_default=True, type=click.FloatRange(0.01, 2), help="With --departures: demand."
)
@click.option(
    "--events",
    default=10_000,
    show_default=True,
    type=click.IntRange(10, 10_000_000),
    help="With --departures: pods.",
)
@click.option("--defrag", is_flag=True, help="With --departures: move running pods when one finds no place.")
@click.option("-o", "--output", type=click.Choice(["table", "json", "csv"]), default="table", show_default=True)
@click.option("--plot", type=click.Path(path_type=Path), metavar="FILE", help="Draw allocation, .svg or .png.")
def command(
    *,
    nodes: Path | None,
    pods: Path | None,
    make: int | None,
    save: Path | None,
    policies: tuple[str, ...],
    seeds: tuple[int, ...],
    arrival: float,
    shuffle_nodes: bool,
    online: bool,
    departures: bool,
    load: float,
    events: int,
    defrag: bool,
    output: str,
    plot: Path | None,
) -> None:
    """Replay pods on a cluster and show how much of its GPUs each policy gets allocated.

    Pods are offered once each, in an order that the seed decides, until they asked for ARRIVAL times the GPUs.
    """
    if plot is not None:
        _check_plot(plot)
    if defrag and not departures:
        raise click.UsageError("--defrag moves pods of a long run: it needs --departures")
    trace = _trace(nodes, pods, make, seeds[0])
    if save is not None:
        write_trace(save, trace)
    setup = Setup(arrival, shuffle_nodes, online)
    chosen = [_BY_NAME[name] for name in dict.fromkeys(policies)] or [Strategy.PACKING]
    how = Churn(load, events, defrag) if departures else None
    results = _run(trace, chosen, seeds, setup, how)
    _show(results, output)
    if plot is not None:
        many = "1 seed" if len(seeds) == 1 else f"mean of {len(seeds)} seeds"
        save_plot(plot, results, f"{len(trace.nodes)} nodes, {trace.capacity // 1000} GPUs, {many}")


def _check_plot(path: Path) -> None:
    """Refuse a picture that could not be written before minutes are spent on it; its folder is made."""
    if path.suffix not in {".svg", ".png"}:
        raise BadRequest("--plot", str(path), "a file that ends in .svg or .png")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadRequest("--plot", str(path), f"a file in a folder that can be made ({error.strerror})") from None


def _trace(nodes: Path | None, pods: Path | None, make: int | None, seed: int) -> Trace:
    if make is not None:
        if nodes is not None or pods is not None:
            raise click.UsageError("--generate makes nodes and pods: leave out --nodes and --pods")
        return generate(make, seed)
    if nodes is None or pods is None:
        raise click.UsageError("--nodes and --pods are needed, or --generate")
    return read_trace(nodes, pods)


def _run(
    trace: Trace, policies: Sequence[PolicyName], seeds: Sequence[int], setup: Setup, how: Churn | None
) -> list[Result]:
    steps = how.arrivals if how else len(arrivals(trace, seeds[0], setup.arrival))
    last = round(100 * (how.load if how else setup.arrival))
    marks = (last,) if how else (*(mark for mark in MARKS if mark < last), last)
    results: list[Result] = []
    with _progress(steps * len(policies) * len(seeds)) as bar:
        for policy in policies:
            runs: list[Run] = []
            for seed in seeds:
                step = bar(f"{policy}, seed {seed}")
                if how is None:
                    runs.append(replay(trace, policy, seed, setup, now=time.perf_counter, step=step))
                else:
                    runs.append(churn(trace, policy, seed, setup, how, now=time.perf_counter, step=step))
            results.append(Result(policy, tuple(runs), marks, moved=how is not None and how.defrag))
    return results


_Step = Callable[[], object]


def _progress(total: int) -> AbstractContextManager[Callable[[str], _Step]]:
    """A bar on stderr while somebody watches; nothing otherwise."""
    if not sys.stderr.isatty():
        return nullcontext(lambda _name: lambda: None)
    return _Bar(total)


class _Bar:
    """A progress bar of all runs together."""

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


def _show(results: Sequence[Result], output: str) -> None:
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
    click.echo("@N: percent of the GPUs allocated when N percent were asked for; then pods that found no place.")


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
