"""`milligpu advise`: a verdict about every pod, session and GPU, with the command that helps."""

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

import click

from milligpu.cli.history_options import history_path
from milligpu.cli.output import OutputFormat, format_option, show_data, show_table
from milligpu.cli.scope import is_cluster_scope

if TYPE_CHECKING:
    from milligpu.history.samples import HistoryLine

# Older measurements say nothing about now.
_FRESH_S = 60.0
_STEP_S = 1.0


@click.command()
@click.option(
    "--cluster/--machine",
    "cluster",
    default=None,
    help="Show the cluster or this machine (default: as `milligpu top`).",
)
@click.option("--kubeconfig", metavar="FILE", help="Kubeconfig of the cluster (default: as kubectl).")
@click.option("--history", metavar="FILE", help="File of the history (default: in ~/.local/state/milligpu).")
@click.option(
    "--seconds",
    type=click.FloatRange(5, 600),
    default=10.0,
    show_default=True,
    help="How long to measure if no dashboard runs, whose last 10 minutes are used otherwise.",
)
@click.option("--all", "everything", is_flag=True, help="Also list what is healthy.")
@format_option(OutputFormat.TABLE, OutputFormat.JSON, OutputFormat.YAML)
def command(  # noqa: PLR0917 - as click calls it
    cluster: bool | None,
    kubeconfig: str | None,
    history: str | None,
    seconds: float,
    everything: bool,
    output: OutputFormat,
) -> None:
    """Say what needs attention: idle, starved and oversized pods and sessions, and GPUs that are not in order."""
    from functools import partial
    from pathlib import Path

    from milligpu.history.store import HistoryReader
    from milligpu.status.advice import advise, needs_attention
    from milligpu.status.look import cluster_name, cluster_picture, machine_picture
    from milligpu.status.measure import measured_lines, recent_lines

    wide = is_cluster_scope(cluster, kubeconfig)
    read = partial(cluster_picture, kubeconfig, cluster_name(kubeconfig)) if wide else machine_picture
    reader = HistoryReader(Path(history) if history else history_path(wide, kubeconfig))
    picture = read()
    lines: Mapping[str, HistoryLine] = recent_lines(reader, picture.at) if reader.exists() else {}
    if not any(picture.at - float(line.times[-1]) < _FRESH_S for line in lines.values()):
        click.echo(f"no dashboard measures; measuring for {seconds:g} s", err=True)
        picture, lines = measured_lines(read, seconds, _STEP_S, time.sleep)
    found = advise(picture, lines)
    shown = found if everything else needs_attention(found)
    if output is not OutputFormat.TABLE:
        fields = ("kind", "name", "verdict", "evidence", "command")
        show_data([{name: str(getattr(each, name)) for name in fields} for each in shown], output)
    elif shown:
        show_table(
            ["VERDICT", "NAME", "BECAUSE", "COMMAND"],
            [[str(each.verdict), each.name, each.evidence, each.command or "-"] for each in shown],
        )
    else:
        click.echo("nothing needs attention", err=True)
