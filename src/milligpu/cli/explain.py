"""`milligpu explain`: why a pod waits for a GPU, or which GPUs it has."""

from dataclasses import asdict

import click

from milligpu.cli.output import OutputFormat, format_option, show_data
from milligpu.cli.scope import pod_name


@click.command()
@click.argument("pod", metavar="[pod/]NAME")
@click.option(
    "-n", "--namespace", metavar="NAME", help="Namespace of the pod (default: that of the kubeconfig's context)."
)
@click.option("--kubeconfig", metavar="FILE", help="Kubeconfig of the cluster (default: as kubectl).")
@format_option(OutputFormat.TABLE, OutputFormat.JSON, OutputFormat.YAML)
def command(pod: str, namespace: str | None, kubeconfig: str | None, output: OutputFormat) -> None:
    """Explain why a pod waits for a GPU and what would help, or show which GPUs it has.

    With permission to list nodes and pods, the reason is computed from the current state of the cluster. Without
    it, the scheduler's last event for the pod is shown.
    """
    from milligpu.kube import config
    from milligpu.status.pod import explain_pod

    found = config.find_cluster(kubeconfig)
    with config.blocking_client(found) as client:
        result = explain_pod(client, namespace or found.namespace or "default", pod_name(pod))
    if output is OutputFormat.TABLE:
        click.echo(result.text)
    else:
        show_data(asdict(result), output)
