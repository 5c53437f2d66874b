"""`milligpu migrate`: how to move a running cluster from another system."""

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from milligpu.cli.output import OutputFormat, format_option, show_data, show_table

if TYPE_CHECKING:
    from milligpu.installation.migrate import MigrationPlan


@click.command()
@click.option(
    "--from",
    "system",
    type=click.Choice(["hami", "nvidia"]),
    required=True,
    help="System that shares the GPUs today: HAMi, or NVIDIA's device plugin and GPU Operator.",
)
@click.option("--kubeconfig", metavar="FILE", help="Kubeconfig of the cluster (default: as kubectl).")
@format_option(OutputFormat.TABLE, OutputFormat.JSON, OutputFormat.YAML)
def command(system: str, kubeconfig: str | None, output: OutputFormat) -> None:
    """Show how to move a running cluster to milligpu. Reads the cluster and changes nothing.

    Prints what the pods with GPUs will mean, what differs, which nodes to move first, and the commands.
    For other systems, pipe `kubectl get pods -A -o yaml` to `milligpu translate -f -`.
    """
    from milligpu.installation.migrate import FormerSystem, plan_migration
    from milligpu.kube.config import blocking_client, find_cluster
    from milligpu.kube.fetch import get_json

    with blocking_client(find_cluster(kubeconfig)) as client:
        nodes, pods, daemonsets = (
            get_json(client, path)["items"]
            for path in ("/api/v1/nodes", "/api/v1/pods", "/apis/apps/v1/daemonsets")
        )
    plan = plan_migration(FormerSystem(system), nodes, pods, daemonsets)
    if output is OutputFormat.TABLE:
        _show(plan)
    else:
        show_data(asdict(plan), output)


def _show(plan: "MigrationPlan") -> None:
    rows = [
        [each.namespace, each.owner, str(each.pods), each.dialect, each.meaning or f"REFUSED: {each.refused}"]
        for each in plan.workloads
    ]
    show_table(["NAMESPACE", "WORKLOAD", "PODS", "DIALECT", "MEANING"], rows, right=["PODS"])
    click.echo("\nWhat differs:")
    for text in plan.differences:
        click.echo(f"- {text}")
    for node in plan.nodes:
        click.echo(f"\n{node.name} ({node.gpu_pods} pods with GPUs):")
        for line in node.commands:
            click.echo(f"  {line}")
