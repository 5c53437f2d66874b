"""`milligpu top`: GPUs and what is made of each share, again and again; of this machine or of the cluster."""

import sys
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import click

from milligpu.agent.protocol import State
from milligpu.cli import machine
from milligpu.cli.output import Format, format_option, make_table, show_data, show_table
from milligpu.cli.sight import cluster_options, means_cluster

if TYPE_CHECKING:
    from milligpu.cli.cluster import Picture

_T = TypeVar("_T")


@click.command()
@click.option("--once", is_flag=True, help="Show it once; so it is when nobody looks at a terminal.")
@click.option(
    "-i", "--interval", type=click.FloatRange(0.2, 60), default=1.0, show_default=True, help="Seconds between two."
)
@cluster_options
@format_option(Format.TABLE, Format.WIDE, Format.JSON, Format.YAML)
def command(  # noqa: PLR0917 - as click calls it
    once: bool, interval: float, cluster: bool | None, kubeconfig: str | None, namespace: str | None, output: Format
) -> None:
    """Show GPUs, who holds what, and measured use against the share; of a cluster its pods and those that wait.

    MEASURED is the part of the GPU's time that a session or container had within the last ten seconds.
    """
    show = partial(_show, interval=interval, once=once, output=output)
    if not means_cluster(cluster, kubeconfig):
        show(machine.ask_state, machine.as_data, partial(_machine_views, output=output))
        return
    from milligpu.cli import cluster as whole

    show(partial(whole.picture, kubeconfig, namespace), whole.Picture.as_data, _cluster_views)


def _show(
    ask: Callable[[], _T],
    data: Callable[[_T], object],
    views: Callable[[_T], list[machine.View]],
    *,
    interval: float,
    once: bool,
    output: Format,
) -> None:
    if output in (Format.JSON, Format.YAML):
        show_data(data(ask()), output)
    elif once or not sys.stdout.isatty():
        for number, view in enumerate(views(ask())):
            if number:
                click.echo()
            show_table(view.columns, view.rows, right=view.right)
    else:
        _live(interval, lambda: views(ask()))


def _machine_views(state: State, output: Format) -> list[machine.View]:
    views = [machine.gpus(state)]
    if state.sessions:
        views.append(machine.sessions(state, wide=output is Format.WIDE))
    if state.waiting:
        views.append(machine.waiting(state))
    if state.outside:
        views.append(machine.outside(state))
    return views


def _cluster_views(found: "Picture") -> list[machine.View]:
    from milligpu.cli import cluster

    views = [cluster.gpus(found)]
    if found.pods:
        views.append(cluster.pods(found))
    if found.waiting:
        views.append(cluster.waiting(found))
    return views


def _live(interval: float, views: Callable[[], list[machine.View]]) -> None:
    from rich.console import Group
    from rich.live import Live

    def drawn() -> Group:
        return Group(
            *(part for view in views() for part in (make_table(view.columns, view.rows, right=view.right), ""))
        )

    with Live(drawn(), screen=True, auto_refresh=False) as live:
        while True:
            time.sleep(interval)
            live.update(drawn(), refresh=True)
