"""Running a command whose CUDA calls go to a GPU server."""

import os
from collections.abc import Sequence

import click

from milligpu.cli.replace_process import replace_process
from milligpu.remote.client import OpenedSession, open_session, remote_environment
from milligpu.remote.filters import GpuFilter
from milligpu.remote.keeper import keep_open
from milligpu.remote.protocol import OpenSession
from milligpu.remote.token_file import PoolAccess


def run_remote(
    access: PoolAccess,
    request: OpenSession,
    described: str,
    timeout: float | None,
    *,
    plain: bool,
    filters: Sequence[GpuFilter] = (),
) -> int:
    """Wait for the share, then replace this process with the command."""
    session = wait_for_session(access, request, described, timeout, plain=plain, filters=filters)
    environment = remote_environment(session.variables, os.environ)
    keep_open(session.connection)
    return replace_process(tuple(request.command), environment)


def wait_for_session(
    access: PoolAccess,
    request: OpenSession,
    described: str,
    timeout: float | None,
    *,
    plain: bool,
    filters: Sequence[GpuFilter],
) -> OpenedSession:
    """Return the session; say on stderr what it waits for."""

    def waits(message: str) -> None:
        click.echo(f"milligpu: waiting for {described}: {message}", err=True)

    choose = None
    if len(access.servers) > 1:
        from milligpu.remote.choose import choose_server as choose
    return open_session(access, request, timeout, waits, choose, plain=plain, filters=filters)
