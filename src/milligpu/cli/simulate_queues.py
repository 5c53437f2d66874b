"""`milligpu simulate --queues`: how long pods wait by our rule and by others, in one run."""

import csv
import json
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import click
import numpy as np

from milligpu.cli.manifest_files import read_manifests
from milligpu.model.errors import BadRequest
from milligpu.model.gpu_queue import GpuQueues
from milligpu.sim.queue_replay import LIMIT_MAX, USERS, ZIPF, QueueRun, QueueSetup, replay_queues
from milligpu.sim.queue_rules import RULES
from milligpu.sim.trace import Trace
from milligpu.wire.gpu_queue import read_queue

_Progress = Callable[[int], AbstractContextManager[Callable[[str], Callable[[], object]]]]
_COLUMNS = {
    "wait_mean_s": "MEAN WAIT",
    "wait_p95_s": "P95",
    "small_p95_s": "P95 SMALL",
    "large_p95_s": "P95 LARGE",
    "fairness": "FAIRNESS",
    "allocated_percent": "ALLOCATED",
}
_HOUR, _MINUTE = 3600, 60


def read_queues(path: Path) -> GpuQueues:
    """Read all queues of a file."""
    queues = [read_queue(where, document) for where, document in read_manifests(str(path))]
    if not queues:
        raise BadRequest("--queues", str(path), "a file with at least one GpuQueue")
    names = [queue.name for queue in queues]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise BadRequest("metadata.name", twice, "a name that no other queue of the file has")
    return GpuQueues(queues)


def simulate_queues(
    trace: Trace, queues: GpuQueues, seeds: Sequence[int], setup: QueueSetup, *, output: str, progress: _Progress
) -> None:
    """Run every rule with every seed, and show the means over the seeds."""
    runs: list[QueueRun] = []
    with progress(setup.arrivals * len(RULES) * len(seeds)) as bar:
        for rule in RULES:
            for seed in seeds:
                runs.append(replay_queues(trace, queues, rule, seed, setup, step=bar(f"{rule}, seed {seed}")))
    if output == "json":
        click.echo(json.dumps([run.data() for run in runs], indent=2))
    elif output == "csv":
        rows = [run.data() for run in runs]
        csv.writer(sys.stdout, lineterminator="\n").writerows(
            [list(rows[0]), *(list(row.values()) for row in rows)]
        )
    else:
        _table(runs, queues)


def _table(runs: Sequence[QueueRun], queues: GpuQueues) -> None:
    rows = [["RULE", *_COLUMNS.values()]]
    for rule in dict.fromkeys(run.rule for run in runs):
        found = [run.data() for run in runs if run.rule == rule]
        rows.append([rule, *(_shown(name, _mean([row[name] for row in found])) for name in _COLUMNS)])
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    for row in rows:
        cells = [
            cell.rjust(width) if at else cell.ljust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        click.echo("  ".join(cells))
    ours = [run for run in runs if run.promised]
    click.echo(
        f"\nDrawn by the seed: {USERS} users (Zipf {ZIPF:g}) in {len(queues.leaves)} queues; time limits up to "
        f"{LIMIT_MAX:g} times what a pod takes."
        "\nSmall pods request less than one GPU, large ones several. Fairness: Jain's index over users, 1 is best."
    )
    if ours:
        promised, late = sum(run.promised for run in ours), sum(run.late for run in ours)
        click.echo(f"milligpu promised {promised} pods a latest start; {promised - late} started by then.")


def _mean(values: Sequence[str | float]) -> float:
    return float(np.mean([float(value) for value in values]))


def _shown(column: str, value: float) -> str:
    if column == "fairness":
        return f"{value:.4f}"
    if column == "allocated_percent":
        return f"{value:.1f} %"
    if value >= 10 * _HOUR:
        return f"{value / _HOUR:.0f} h"
    return f"{value / _MINUTE:.0f} min" if value >= 10 * _MINUTE else f"{value:.0f} s"
