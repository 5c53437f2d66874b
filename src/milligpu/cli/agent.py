"""`milligpu agent`: the agent of this machine as a service."""

import os

import click

from milligpu.agent.places import SERVICE, Places
from milligpu.agent.process import Settings, run
from milligpu.model.errors import BadRequest


@click.command()
@click.option("--local", is_flag=True, help="For the commands of this machine's users: `milligpu run`.")
def command(local: bool) -> int:
    """Serve this machine's GPUs in the foreground, until SIGTERM.

    Run by root it serves all users, and their limits are out of their reach. Without it `milligpu run` starts an
    agent for its own user and stops it when nobody needs it.
    """
    if not local:
        raise BadRequest("agent", "", "--local (there is no other kind yet)")
    folder = SERVICE if os.geteuid() == 0 else Places.own(os.environ).folder
    return run(Settings(folder, idle=None, foreground=True))
