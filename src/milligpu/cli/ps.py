"""`milligpu ps`: the sessions or pods that hold a share or wait for one."""

import click

from milligpu.cli.output import OutputFormat, TableData, format_option, show_data, show_table
from milligpu.cli.scope import is_cluster_scope, scope_options
from milligpu.cli.tables import session_table, share_table, waiting_pod_table, waiting_session_table


@click.command()
@scope_options
@format_option(OutputFormat.TABLE, OutputFormat.WIDE, OutputFormat.JSON, OutputFormat.YAML, OutputFormat.NAME)
def command(cluster: bool | None, kubeconfig: str | None, namespace: str | None, output: OutputFormat) -> None:
    """List the sessions of this machine or the pods of the cluster that hold a share of a GPU or wait for one."""
    if is_cluster_scope(cluster, kubeconfig, namespace):
        _cluster(kubeconfig, namespace, output)
    else:
        _machine(output)


def _machine(output: OutputFormat) -> None:
    from milligpu.status.machine import machine_data, read_machine_status

    state = read_machine_status()
    match output:
        case OutputFormat.JSON | OutputFormat.YAML:
            data = machine_data(state)
            show_data({"sessions": data["sessions"], "waiting": data["waiting"]}, output)
        case OutputFormat.NAME:
            for session in state.sessions:
                click.echo(session.id)
        case OutputFormat.TABLE | OutputFormat.WIDE:
            _show(
                session_table(state, wide=output is OutputFormat.WIDE), waiting_session_table(state), "no sessions"
            )


def _cluster(kubeconfig: str | None, namespace: str | None, output: OutputFormat) -> None:
    from milligpu.status.cluster import read_cluster_status

    found = read_cluster_status(kubeconfig, namespace)
    match output:
        case OutputFormat.JSON | OutputFormat.YAML:
            data = found.as_data()
            show_data({"shares": data["shares"], "waiting": data["waiting"]}, output)
        case OutputFormat.NAME:
            for name in dict.fromkeys(f"{each.namespace}/{each.pod}" for each in found.shares if each.pod):
                click.echo(name)
        case OutputFormat.TABLE | OutputFormat.WIDE:
            _show(share_table(found), waiting_pod_table(found), "no pods with a GPU")


def _show(holders: TableData, waiting: TableData, none: str) -> None:
    if holders.rows:
        show_table(holders.columns, holders.rows, right=holders.right)
    else:
        click.echo(none, err=True)
    if waiting.rows:
        click.echo()
        show_table(waiting.columns, waiting.rows)
