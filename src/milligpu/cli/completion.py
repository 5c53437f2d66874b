"""`milligpu completion`: the completion script of a shell."""

import click
from click.shell_completion import get_completion_class

from milligpu.model.errors import Unavailable

SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
def command(shell: str) -> None:
    """Print the script with which a shell completes the commands and options of milligpu."""
    kind = get_completion_class(shell)
    if kind is None:
        raise Unavailable(f"this version of click does not support completion for {shell}")
    root = click.get_current_context().find_root().command
    click.echo(kind(root, {}, "milligpu", "_MILLIGPU_COMPLETE").source())
