"""`milligpu run`: run a command with a share of one of this machine's GPUs, or of a GPU server's (`--remote`)."""

import os
import time
from pathlib import Path

import click

from milligpu.cli.output import warn_renamed
from milligpu.cli.remote_options import pool_access, remote_options
from milligpu.cli.replace_process import replace_process
from milligpu.cli.share_options import share_options
from milligpu.model.errors import BadRequest, NoCapacity, Unavailable
from milligpu.model.policy import PRIORITY_MAX, PRIORITY_MIN, SharePolicy
from milligpu.model.request import describe_share
from milligpu.model.units import GPUS_MAX, WHOLE, Mib, Milli
from milligpu.sessions.client import SessionClient
from milligpu.sessions.environment import session_environment
from milligpu.sessions.protocol import RequestShare, ShareGranted
from milligpu.sessions.request import SessionRequest, session_share


@click.command(context_settings={"allow_interspersed_args": False})
@click.option(
    "--gpus",
    "count",
    type=click.IntRange(1, GPUS_MAX),
    default=1,
    show_default=True,
    metavar="COUNT",
    help="Number of GPUs; the requested share applies to each.",
)
@click.option("-n", "--count", "former_count", type=click.IntRange(1, GPUS_MAX), hidden=True)
@share_options
@click.option(
    "--policy",
    type=click.Choice([str(each) for each in SharePolicy]),
    help="best-effort: all idle time, or up to --limit; fixed: the share and no more, the default without --limit; "
    "equal: an equal part of a GPU that is divided so.",
)
@click.option(
    "--priority",
    type=click.IntRange(PRIORITY_MIN, PRIORITY_MAX),
    default=PRIORITY_MIN,
    show_default=True,
    metavar="NUMBER",
    help="GPU priority; higher runs first, in the queue and on the GPU.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(0),
    metavar="SECONDS",
    help="Give up after this many seconds and exit with code 75.",
)
@click.option("--no-wait", is_flag=True, help="Exit with code 75 at once if no GPU has enough free capacity.")
@click.option("--remote", is_flag=True, help="On a GPU server instead of this machine; needs a token file.")
@remote_options
@click.option(
    "--cdi",
    is_flag=True,
    help="Run nothing: print a CDI device with the share, for podman run --device. One container can use it, and"
    " holds the share until it ends.",
)
@click.option(
    "--cdi-dir",
    type=click.Path(path_type=Path),
    default=Path("/var/run/cdi"),
    show_default=True,
    metavar="DIRECTORY",
    help="With --cdi: where the container engine looks for CDI files.",
)
@click.argument("argv", nargs=-1, type=click.UNPROCESSED, metavar="[--] COMMAND…")
def command(
    *,
    count: int,
    former_count: int | None,
    milli: Milli | None,
    mib: Mib | None,
    limit: Milli | None,
    policy: str | None,
    priority: int,
    timeout: float | None,
    no_wait: bool,
    remote: bool,
    servers: str | None,
    token_file: Path | None,
    plain: bool,
    cdi: bool,
    cdi_dir: Path,
    argv: tuple[str, ...],
) -> int:
    """Run a command with a share of one of this machine's GPUs, and wait for the share if none is free.

    With --remote, the GPU is one of a GPU server: the command runs here, and its CUDA calls go over the network.

    With only one of -p and -m, the other is the same fraction of the GPU. Without both, or with -p 1, the command
    gets a whole GPU.

    The command replaces this process, so it has its own exit code, signals and terminal. The share is released when
    the command ends, however it ends.
    """
    if former_count is not None:
        warn_renamed("run -n", "run --gpus")
        count = former_count
    if cdi and (argv or remote):
        raise click.UsageError("--cdi takes no command and no --remote: it prints a device for a container")
    if not (cdi or argv):
        raise click.UsageError("Missing argument '[--] COMMAND…'.")
    if milli is None and mib is None:
        milli = WHOLE
    wanted = SessionRequest(
        session_share(count, milli, mib, limit),
        None if policy is None else SharePolicy(policy),
        priority,
    )
    if remote:
        from milligpu.cli.run_remote import run_remote
        from milligpu.remote.protocol import VERSION, OpenSession

        access = pool_access(servers, token_file)
        opening = OpenSession(
            VERSION, access.token, list(argv), count, milli, mib, limit, wanted.policy, priority, not no_wait
        )
        return run_remote(access, opening, describe_share(wanted.share), timeout, plain=plain)
    if servers is not None or token_file is not None or plain:
        raise BadRequest("--remote", None, "needed with --servers, --token and --plain")
    named = list(argv) if argv else ["container"]
    request = RequestShare(named, count, milli, mib, limit, wanted.policy, priority, not no_wait)
    if cdi:
        from milligpu.cli.run_cdi import run_cdi

        return run_cdi(cdi_dir, lambda: _wait(request, describe_share(wanted.share), timeout))
    granted = _wait(request, describe_share(wanted.share), timeout)
    if granted.softgpu is not None:
        click.echo("milligpu: this machine has no GPU; using a software GPU", err=True)
    return replace_process(argv, {**os.environ, **session_environment(granted, os.environ)})


def _wait(request: RequestShare, described: str, timeout: float | None) -> ShareGranted:
    deadline = None if timeout is None else time.monotonic() + timeout
    try:
        for answer in SessionClient(os.environ).take(request, deadline):
            if isinstance(answer, ShareGranted):
                return answer
            click.echo(f"milligpu: waiting for {described}: {answer.line}", err=True)
    except TimeoutError:
        raise NoCapacity(f"no GPU had {described} free within {timeout:g} s") from None
    raise Unavailable("the session service closed the connection without an answer")
