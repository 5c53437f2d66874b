"""Running a command whose CUDA calls go to a GPU server."""

import os

import click

from milligpu.cli.replace_process import replace_process
from milligpu.remote.client import SessionRace, keep_open
from milligpu.remote.protocol import OpenSession
from milligpu.remote.token_file import PoolAccess


def run_remote(
    access: PoolAccess, request: OpenSession, described: str, timeout: float | None, *, plain: bool
) -> int:
    """Wait for the share, then replace this process with the command."""

    def waits(message: str) -> None:
        click.echo(f"milligpu: waiting for {described}: {message}", err=True)

    session = SessionRace(access, plain=plain).run(request, timeout, waits)
    environment = session.environment(dict(os.environ))
    keep_open(session)
    return replace_process(tuple(request.command), environment)
