"""Replacing this process with a program, which then has its own exit code, signals and terminal."""

import os
import signal
from collections.abc import Mapping

import click

from milligpu.cli.exit_codes import ExitCode


def replace_process(argv: tuple[str, ...], environment: Mapping[str, str]) -> int:
    """Replace this process; returns only if that fails, with an exit code."""
    # Python ignores SIGPIPE, but programs expect that a closed pipe ends them.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        os.execvpe(argv[0], argv, environment)
    except FileNotFoundError:
        click.echo(f"error: {argv[0]}: command not found", err=True)
        return ExitCode.NOT_FOUND
    except OSError as error:
        click.echo(f"error: {argv[0]}: {error.strerror}", err=True)
        return ExitCode.NOT_EXECUTABLE
