"""`milligpu ps`: who holds which share, and who waits for one; on this machine or in the cluster."""

import click

from milligpu.cli import machine
from milligpu.cli.output import Format, format_option, show_data, show_table
from milligpu.cli.sight import cluster_options, means_cluster


@click.command()
@cluster_options
@format_option(Format.TABLE, Format.WIDE, Format.JSON, Format.YAML, Format.NAME)
def command(cluster: bool | None, kubeconfig: str | None, namespace: str | None, output: Format) -> None:
    """List the commands or pods that hold a share of a GPU, and those that wait for one."""
    if means_cluster(cluster, kubeconfig):
        _cluster(kubeconfig, namespace, output)
    else:
        _machine(output)


def _machine(output: Format) -> None:
    state = machine.ask_state()
    match output:
        case Format.JSON | Format.YAML:
            data = machine.as_data(state)
            show_data({"sessions": data["sessions"], "waiting": data["waiting"]}, output)
        case Format.NAME:
            for session in state.sessions:
                click.echo(session.id)
        case Format.TABLE | Format.WIDE:
            _show(machine.sessions(state, wide=output is Format.WIDE), machine.waiting(state), "no sessions")


def _cluster(kubeconfig: str | None, namespace: str | None, output: Format) -> None:
    from milligpu.cli import cluster

    found = cluster.picture(kubeconfig, namespace)
    match output:
        case Format.JSON | Format.YAML:
            data = found.as_data()
            show_data({"pods": data["pods"], "waiting": data["waiting"]}, output)
        case Format.NAME:
            for name in dict.fromkeys(f"{each.namespace}/{each.pod}" for each in found.pods):
                click.echo(name)
        case Format.TABLE | Format.WIDE:
            _show(cluster.pods(found), cluster.waiting(found), "no pods with a GPU")


def _show(holders: machine.View, waiting: machine.View, none: str) -> None:
    if holders.rows:
        show_table(holders.columns, holders.rows, right=holders.right)
    else:
        click.echo(none, err=True)
    if waiting.rows:
        click.echo()
        show_table(waiting.columns, waiting.rows)
