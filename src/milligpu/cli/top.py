"""`milligpu top`: GPUs and shares with their measured use, of this machine or of the cluster."""

import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from milligpu.cli.output import OutputFormat, format_option, show_data
from milligpu.cli.remote_options import pool_access, remote_options
from milligpu.cli.scope import is_cluster_scope, names_pod, pod_name, scope_options
from milligpu.model.errors import BadRequest, Unavailable
from milligpu.wire.status import MachineStatus

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from milligpu.cli.top_view import TopView
    from milligpu.status.cluster import ClusterStatus

_T = TypeVar("_T")
SORT_KEYS = ("name", "use", "memory", "share")
_PIPE_WIDTH = 200


@click.command()
@click.option("--once", is_flag=True, help="Print once and exit (default if stdout is not a terminal).")
@click.option(
    "-i",
    "--interval",
    type=click.FloatRange(0.2, 60),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="Time between updates.",
)
@click.option(
    "--sort",
    type=click.Choice(SORT_KEYS),
    default=SORT_KEYS[0],
    show_default=True,
    help="Order of GPUs and shares; largest first, except by name.",
)
@click.option("--processes", is_flag=True, help="Show the processes of each share.")
@click.option("--pool", is_flag=True, help="Show GPU servers and your sessions there, instead of this machine.")
@remote_options
@click.argument("name", required=False, metavar="[ID|[pod/]NAME]")
@scope_options
@format_option(OutputFormat.TABLE, OutputFormat.WIDE, OutputFormat.JSON, OutputFormat.YAML)
def command(  # noqa: PLR0917 - as click calls it
    once: bool,
    interval: float,
    sort: str,
    processes: bool,
    pool: bool,
    servers: str | None,
    token_file: Path | None,
    plain: bool,
    name: str | None,
    cluster: bool | None,
    kubeconfig: str | None,
    namespace: str | None,
    output: OutputFormat,
) -> None:
    """Show GPUs, shares with their measured use, and what waits for a share; updated until you press q.

    With ID or NAME, show only this session or pod and its GPUs. MEASURED is the fraction of the GPU's time that a
    session or container used within the last ten seconds; its color says how near that is to the limit.

    \b
    Keys: q quits, p shows the processes of each share,
    n, u, m and s sort by name, use, memory and share.
    """
    from milligpu.cli.top_view import SortKey, TopView

    wide = output is OutputFormat.WIDE
    view = TopView(0, SortKey(sort), processes=processes or wide, wide=wide)
    show = partial(_show, view, interval=interval, once=once, output=output)
    if pool:
        if name is not None:
            raise BadRequest("NAME", name, "left out with --pool")
        from milligpu.cli.pool_view import pool_data, read_pool_status, view_pool

        access = pool_access(servers, token_file)
        show(lambda: read_pool_status(access, plain=plain), pool_data, view_pool)
        return
    if servers is not None or token_file is not None or plain:
        raise BadRequest("--pool", None, "needed with --servers, --token and --plain")
    if not (name is not None and names_pod(name)) and not is_cluster_scope(cluster, kubeconfig, namespace):
        from milligpu.status.machine import machine_data

        show(lambda: _read_machine(name), machine_data, lambda view, status: view.machine(status))
        return
    from milligpu.status.cluster import ClusterStatus

    pod = None if name is None else pod_name(name)
    show(
        lambda: _read_cluster(kubeconfig, namespace, pod),
        ClusterStatus.as_data,
        lambda view, status: view.cluster(status),
    )


def _read_machine(session: str | None) -> MachineStatus:
    from milligpu.status.machine import read_machine_status, session_only

    status = read_machine_status()
    return status if session is None else session_only(status, session)


def _read_cluster(kubeconfig: str | None, namespace: str | None, pod: str | None) -> "ClusterStatus":
    from milligpu.kube.config import find_cluster
    from milligpu.status.cluster import pod_only, read_cluster_status

    if pod is None:
        return read_cluster_status(kubeconfig, namespace)
    namespace = namespace or find_cluster(kubeconfig).namespace or "default"
    return pod_only(read_cluster_status(kubeconfig, namespace), namespace, pod)


def _show(
    view: "TopView",
    ask: Callable[[], _T],
    data: Callable[[_T], object],
    draw: "Callable[[TopView, _T], RenderableType]",
    *,
    interval: float,
    once: bool,
    output: OutputFormat,
) -> None:
    from rich.console import Console

    if output in (OutputFormat.JSON, OutputFormat.YAML):
        show_data(data(ask()), output)
        return
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=max(_PIPE_WIDTH, console.width), no_color=True)
    if once or not sys.stdout.isatty():
        console.print(draw(replace(view, width=console.width), ask()))
        return
    _live(console, view, ask, draw, interval)


def _live(
    console: "Console",
    view: "TopView",
    ask: Callable[[], _T],
    draw: "Callable[[TopView, _T], RenderableType]",
    interval: float,
) -> None:
    """Show the status until `q` or Ctrl-C; a key acts at once, and a failed update keeps what was shown."""
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    from milligpu.cli.keys import KeyReader
    from milligpu.cli.top_view import SortKey

    status, problem = ask(), ""

    def screen() -> Group:
        keys = f"q quit  p processes  sort: n u m s ({view.sort})"
        head = Text.assemble(("milligpu top ", "bold"), time.strftime("%H:%M:%S  "), (keys, "dim"), no_wrap=True)
        lines = [head, *([Text(f"not updated: {problem}", "bold red")] if problem else []), Text()]
        return Group(*lines, draw(replace(view, width=console.width), status))

    with KeyReader() as keys, Live(screen(), console=console, screen=True, auto_refresh=False) as live:
        due = time.monotonic() + interval
        while True:
            key = keys.wait(max(0.0, due - time.monotonic()))
            if key == "q":
                return
            if key == "p":
                view = replace(view, processes=not view.processes)
            view = replace(view, sort=next((each for each in SortKey if key and each[0] == key), view.sort))
            if time.monotonic() >= due:
                try:
                    status, problem = ask(), ""
                except Unavailable as error:
                    problem = error.message
                due = time.monotonic() + interval
            live.update(screen(), refresh=True)
