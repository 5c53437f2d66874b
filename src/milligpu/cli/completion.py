"""`milligpu completion`: the shell's side of completing our commands."""

import click
from click.shell_completion import get_completion_class

from milligpu.model.errors import Unavailable

SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
def command(shell: str) -> None:
    """Print the script that makes SHELL complete our commands and options."""
    kind = get_completion_class(shell)
    if kind is None:
        raise Unavailable(f"click knows no completion for {shell}")
    root = click.get_current_context().find_root().command
    click.echo(kind(root, {}, "milligpu", "_MILLIGPU_COMPLETE").source())
