"""`milligpu run`: a command with a share of one of this machine's GPUs."""

import os
import time

import click

from milligpu.agent.client import Client
from milligpu.agent.environment import session_environment
from milligpu.agent.protocol import Granted, Take
from milligpu.agent.wish import Wish, describe_share, share_request
from milligpu.cli.become import become
from milligpu.cli.shares import share_options
from milligpu.model.errors import NoCapacity, Unavailable
from milligpu.model.qos import PRIORITY_MAX, PRIORITY_MIN, Policy
from milligpu.model.units import GPUS_MAX, WHOLE, Mib, Milli


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option(
    "-n", "--count", type=click.IntRange(1, GPUS_MAX), default=1, show_default=True, help="So many GPUs, each so."
)
@share_options
@click.option("--policy", type=click.Choice([str(each) for each in Policy]), help="How the GPU's time is divided.")
@click.option(
    "--priority",
    type=click.IntRange(PRIORITY_MIN, PRIORITY_MAX),
    default=PRIORITY_MIN,
    show_default=True,
    help="A higher one goes first.",
)
@click.option("--timeout", type=click.FloatRange(0), metavar="SECONDS", help="Wait no longer than this (exit 75).")
@click.option("--no-wait", is_flag=True, help="Do not wait at all (exit 75).")
@click.argument("argv", nargs=-1, required=True, type=click.UNPROCESSED, metavar="[--] COMMAND…")
def command(
    *,
    count: int,
    milli: Milli | None,
    mib: Mib | None,
    limit: Milli | None,
    policy: str | None,
    priority: int,
    timeout: float | None,
    no_wait: bool,
    argv: tuple[str, ...],
) -> int:
    """Run a command with a share of a GPU of this machine, or with whole ones (-p 1, also the default).

    The command takes the place of this process: its exit code, signals and terminal are its own. The share is held
    for as long as it lives, and free however it ends.
    """
    if milli is None and mib is None:
        milli = WHOLE
    wish = Wish(share_request(count, milli, mib, limit), None if policy is None else Policy(policy), priority)
    request = Take(list(argv), count, milli, mib, limit, wish.policy, priority, not no_wait)
    granted = _wait(request, describe_share(wish.share), timeout)
    if granted.softgpu is not None:
        click.echo("milligpu: no GPU here; this is one in software", err=True)
    return become(argv, {**os.environ, **session_environment(granted, os.environ)})


def _wait(request: Take, described: str, timeout: float | None) -> Granted:
    deadline = None if timeout is None else time.monotonic() + timeout
    try:
        for answer in Client(os.environ).take(request, deadline):
            if isinstance(answer, Granted):
                return answer
            click.echo(f"milligpu: waiting for {described}: {answer.line}", err=True)
    except TimeoutError:
        raise NoCapacity(f"{described} did not become free within {timeout:g} s") from None
    raise Unavailable("the agent gave no answer")
