"""Running a command whose CUDA calls go to a GPU server."""

import os

import click

from milligpu.cli.replace_process import replace_process
from milligpu.remote.client import open_session
from milligpu.remote.keeper import keep_open
from milligpu.remote.protocol import OpenSession
from milligpu.remote.token_file import PoolAccess


def run_remote(
    access: PoolAccess, request: OpenSession, described: str, timeout: float | None, *, plain: bool
) -> int:
    """Wait for the share, then replace this process with the command."""

    def waits(message: str) -> None:
        click.echo(f"milligpu: waiting for {described}: {message}", err=True)

    choose = None
    if len(access.servers) > 1:
        from milligpu.remote.choose import choose_server as choose
    session = open_session(access, request, timeout, waits, choose, plain=plain)
    environment = session.environment(dict(os.environ))
    keep_open(session.connection)
    return replace_process(tuple(request.command), environment)
