"""A command in this process's place: its exit code, signals and terminal are its own."""

import os
import signal
from collections.abc import Mapping

import click

# As shells answer.
_NOT_FOUND, _NOT_RUNNABLE = 127, 126


def become(argv: tuple[str, ...], environment: Mapping[str, str]) -> int:
    """Replace this process; only what cannot be run comes back, with an exit code."""
    # Python ignores it; a program that is started expects to be ended by a closed pipe.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        os.execvpe(argv[0], argv, environment)
    except FileNotFoundError:
        click.echo(f"error: {argv[0]}: no such command", err=True)
        return _NOT_FOUND
    except OSError as error:
        click.echo(f"error: {argv[0]}: {error.strerror}", err=True)
        return _NOT_RUNNABLE
