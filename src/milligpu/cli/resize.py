"""`milligpu resize`: another share for a running command, or for a container of a running pod."""

import os

import click

from milligpu.cli.shares import share_options
from milligpu.model.errors import BadRequest
from milligpu.model.units import Mib, Milli

_POD = "pod/"


@click.command()
@click.argument("session", metavar="ID|pod/NAME")
@share_options
@click.option("-n", "--namespace", help="Of the pod; default: that of the kubeconfig's context.")
@click.option("-c", "--container", help="Of the pod; needed where several have a share.")
@click.option("--kubeconfig", metavar="FILE", help="Default: as kubectl.")
def command(  # noqa: PLR0917 - as click calls it
    session: str,
    milli: Milli | None,
    mib: Mib | None,
    limit: Milli | None,
    namespace: str | None,
    container: str | None,
    kubeconfig: str | None,
) -> None:
    """Change a running share; what is not named stays. ID is as `milligpu ps` shows it, or its beginning.

    It takes effect within a second. A memory cap below what is in use allows no new allocation until it fits.
    """
    if milli is None and mib is None and limit is None:
        raise BadRequest("resize", session, "-p, -m or --limit")
    if session.startswith(_POD):
        from milligpu.cli.pods import resize_pod
        from milligpu.dialects.resize import Change

        change = Change(milli, mib, limit)
        name = session.removeprefix(_POD)
        click.echo(resize_pod(name, change, namespace=namespace, container=container, kubeconfig=kubeconfig))
        return
    from milligpu.agent.client import Client
    from milligpu.agent.protocol import Done, Resize

    answer = Client(os.environ).ask(Resize(session, milli, mib, limit))
    if isinstance(answer, Done):
        click.echo(answer.message)
