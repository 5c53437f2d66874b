"""`milligpu explain`: why a pod waits for a GPU, which GPUs it has, or what would become of it."""

from dataclasses import asdict

import click

from milligpu.cli.manifest_files import filename_option, read_manifests
from milligpu.cli.output import OutputFormat, format_option, show_data
from milligpu.cli.scope import pod_name
from milligpu.model.errors import BadRequest


@click.command()
@click.argument("pod", metavar="[[pod/]NAME]", required=False)
@filename_option("Manifest with pods that do not exist yet", required=False)
@click.option(
    "-n", "--namespace", metavar="NAME", help="Namespace of the pod (default: that of the kubeconfig's context)."
)
@click.option("--kubeconfig", metavar="FILE", help="Kubeconfig of the cluster (default: as kubectl).")
@format_option(OutputFormat.TABLE, OutputFormat.JSON, OutputFormat.YAML)
def command(
    pod: str | None, files: tuple[str, ...], namespace: str | None, kubeconfig: str | None, output: OutputFormat
) -> None:
    """Explain why a pod waits for a GPU and what would help, or show which GPUs it has.

    With permission to list nodes and pods, the reason is computed from the current state of the cluster. Without
    it, the scheduler's last event for the pod is shown.

    With -f, say for pods that do not exist yet where they would stand, when they would start, and which pods would
    be shrunk or evicted for them. Nothing is created.
    """
    from milligpu.kube import config
    from milligpu.status.pod import explain_pod
    from milligpu.status.preview import preview_pods

    if bool(pod) == bool(files):
        raise BadRequest("NAME", pod, "either the name of a pod or -f FILE")
    found = config.find_cluster(kubeconfig)
    space = namespace or found.namespace or "default"
    with config.blocking_client(found) as client:
        if pod:
            answers = [explain_pod(client, space, pod_name(pod))]
        else:
            manifests = [each for name in files for each in read_manifests(name)]
            answers = preview_pods(client, manifests, space)
    if output is not OutputFormat.TABLE:
        show_data(asdict(answers[0]) if pod else [asdict(each) for each in answers], output)
        return
    for each in answers:
        click.echo(each.text if pod else f"{each.namespace}/{each.pod}: {each.text}")
