"""`milligpu queue`: the queues of the cluster, who waits in them, and who had how much of late."""

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from milligpu.cli.output import OutputFormat, format_option, show_data, show_table

if TYPE_CHECKING:
    from milligpu.status.queues import QueueOverview

_kubeconfig = click.option("--kubeconfig", metavar="FILE", help="Kubeconfig of the cluster (default: as kubectl).")
_format = format_option(OutputFormat.TABLE, OutputFormat.JSON, OutputFormat.YAML)


@click.group()
def command() -> None:
    """Show the queues of the cluster, the pods that wait in them, and their users."""


@command.command("list")
@_kubeconfig
@_format
def list_(kubeconfig: str | None, output: OutputFormat) -> None:
    """List the queues with what they may have, what they hold, and how many pods wait."""
    found = _read(kubeconfig).statuses()
    if output is not OutputFormat.TABLE:
        show_data([asdict(each) for each in found], output)
        return
    columns = ["QUEUE", "PARENT", "ORDER", "WEIGHT", "GUARANTEE", "CEILING", "HELD", "MEMORY", "WAITING", "READY"]
    rows = [
        [
            each.name,
            each.parent or "-",
            each.order or "-",
            str(each.weight or "-"),
            _gpus(each.guarantee_milli),
            _gpus(each.ceiling_milli),
            _gpus(each.held_milli),
            _memory(each.held_mib),
            str(each.waiting),
            "yes" if each.ready else each.problem,
        ]
        for each in found
    ]
    show_table(columns, rows, right=["WEIGHT", "GUARANTEE", "CEILING", "HELD", "MEMORY", "WAITING"])
    if not found:
        click.echo("no queue exists; docs/queues.md shows how to create one", err=True)


@command.command()
@click.argument("queue")
@_kubeconfig
@_format
def show(queue: str, kubeconfig: str | None, output: OutputFormat) -> None:
    """Show the pods that wait in a queue, in the order of their turns, and what each waits for."""
    found = _read(kubeconfig).line(queue)
    if output is not OutputFormat.TABLE:
        show_data([asdict(each) for each in found], output)
        return
    rows = [
        [
            str(each.position),
            f"{each.namespace}/{each.pod}",
            each.user,
            _gpus(each.milli),
            _memory(each.mib),
            each.reason,
            each.message.partition("; ")[2],
        ]
        for each in found
    ]
    show_table(["TURN", "POD", "USER", "GPU", "MEMORY", "REASON", "MESSAGE"], rows, right=["TURN", "GPU", "MEMORY"])


@command.command()
@_kubeconfig
@_format
def top(kubeconfig: str | None, output: OutputFormat) -> None:
    """Show the users of all queues: what they hold, and had on average of late (half-life: a week)."""
    found = _read(kubeconfig).users()
    if output is not OutputFormat.TABLE:
        show_data([asdict(each) for each in found], output)
        return
    rows = [
        [each.user, each.queue, _gpus(each.held_milli), _gpus(round(each.average_milli)), str(each.waiting)]
        for each in found
    ]
    show_table(["USER", "QUEUE", "HELD", "OF LATE", "WAITING"], rows, right=["HELD", "OF LATE", "WAITING"])


def _read(kubeconfig: str | None) -> "QueueOverview":
    from milligpu.kube import config
    from milligpu.status.queues import read_overview

    with config.blocking_client(config.find_cluster(kubeconfig)) as client:
        return read_overview(client)


def _gpus(milli: int | None) -> str:
    from milligpu.model.units import show_milli

    return "-" if milli is None else show_milli(milli)


def _memory(mib: int) -> str:
    from milligpu.model.units import show_mib

    return show_mib(mib) if mib else "-"
