"""`milligpu top`: this machine's GPUs and what is made of each share, again and again."""

import sys
import time

import click

from milligpu.agent.protocol import State
from milligpu.cli import machine
from milligpu.cli.output import Format, format_option, make_table, show_data, show_table


@click.command()
@click.option("--once", is_flag=True, help="Show it once; so it is when nobody looks at a terminal.")
@click.option(
    "-i", "--interval", type=click.FloatRange(0.2, 60), default=1.0, show_default=True, help="Seconds between two."
)
@format_option(Format.TABLE, Format.WIDE, Format.JSON, Format.YAML)
def command(once: bool, interval: float, output: Format) -> None:
    """Show this machine's GPUs, who holds what, and measured use against the share.

    MEASURED is the part of the GPU's time that a session had within the last ten seconds.
    """
    if output in (Format.JSON, Format.YAML):
        show_data(machine.as_data(machine.ask_state()), output)
    elif once or not sys.stdout.isatty():
        for number, view in enumerate(_views(machine.ask_state(), output)):
            if number:
                click.echo()
            show_table(view.columns, view.rows, right=view.right)
    else:
        _live(interval, output)


def _views(state: State, output: Format) -> list[machine.View]:
    views = [machine.gpus(state)]
    if state.sessions:
        views.append(machine.sessions(state, wide=output is Format.WIDE))
    if state.waiting:
        views.append(machine.waiting(state))
    if state.outside:
        views.append(machine.outside(state))
    return views


def _live(interval: float, output: Format) -> None:
    from rich.console import Group  # noqa: PLC0415
    from rich.live import Live  # noqa: PLC0415

    def drawn() -> Group:
        views = _views(machine.ask_state(), output)
        return Group(
            *(part for view in views for part in (make_table(view.columns, view.rows, right=view.right), ""))
        )

    with Live(drawn(), screen=True, auto_refresh=False) as live:
        while True:
            time.sleep(interval)
            live.update(drawn(), refresh=True)
