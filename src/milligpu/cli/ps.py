"""`milligpu ps`: who holds which share of this machine's GPUs, and who waits for one."""

import click

from milligpu.cli import machine
from milligpu.cli.output import Format, format_option, show_data, show_table


@click.command()
@format_option(Format.TABLE, Format.WIDE, Format.JSON, Format.YAML, Format.NAME)
def command(output: Format) -> None:
    """List the commands that hold a share of a GPU of this machine, and those that wait for one."""
    state = machine.ask_state()
    match output:
        case Format.JSON | Format.YAML:
            data = machine.as_data(state)
            show_data({"sessions": data["sessions"], "waiting": data["waiting"]}, output)
        case Format.NAME:
            for session in state.sessions:
                click.echo(session.id)
        case Format.TABLE | Format.WIDE:
            view = machine.sessions(state, wide=output is Format.WIDE)
            if view.rows:
                show_table(view.columns, view.rows, right=view.right)
            else:
                click.echo("no sessions", err=True)
            if state.waiting:
                waits = machine.waiting(state)
                click.echo()
                show_table(waits.columns, waits.rows)
