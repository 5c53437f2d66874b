"""`milligpu resize`: another share for a running command."""

import os

import click

from milligpu.agent.client import Client
from milligpu.agent.protocol import Done, Resize
from milligpu.cli.shares import share_options
from milligpu.model.errors import BadRequest
from milligpu.model.units import Mib, Milli


@click.command()
@click.argument("session", metavar="ID")
@share_options
def command(session: str, milli: Milli | None, mib: Mib | None, limit: Milli | None) -> None:
    """Change a running session's share; what is not named stays. ID is as `milligpu ps` shows it, or its beginning.

    It takes effect within a second. A memory cap below what is in use allows no new allocation until it fits.
    """
    if milli is None and mib is None and limit is None:
        raise BadRequest("resize", session, "-p, -m or --limit")
    answer = Client(os.environ).ask(Resize(session, milli, mib, limit))
    if isinstance(answer, Done):
        click.echo(answer.message)
