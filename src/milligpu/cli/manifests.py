"""`milligpu manifests`: the objects of the Helm chart, for people without Helm."""

import re
from pathlib import Path
from typing import Any, cast

import click

from milligpu.cli.output import OutputFormat, format_option
from milligpu.model.errors import BadRequest


def _read_version(_ctx: click.Context, _param: click.Parameter, value: str | None) -> str | None:
    if value is not None and re.match(r"v?\d{1,3}\.\d{1,3}(?![\w-])", value) is None:
        raise BadRequest("--kube-version", value, "a version such as 1.36 or v1.36.0")
    return value


@click.command()
@click.option(
    "-n", "--namespace", default="milligpu", show_default=True, metavar="NAME", help="Namespace of milligpu."
)
@click.option(
    "--values",
    "files",
    multiple=True,
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    metavar="FILE",
    help="File with values of the chart; can be repeated.",
)
@click.option(
    "--set", "settings", multiple=True, metavar="NAME=VALUE", help="One value of the chart; can be repeated."
)
@click.option(
    "--kube-version",
    metavar="VERSION",
    callback=_read_version,
    help="Version of Kubernetes (default: that of the cluster).",
)
@click.option("--kubeconfig", metavar="FILE", help="Kubeconfig of the cluster (default: as kubectl).")
@click.option(
    "--no-workloads",
    is_flag=True,
    help="Leave out Deployment and DaemonSets, for a service and agents that run outside the cluster's pods.",
)
@click.option(
    "--webhook-url", default="", metavar="URL", help="URL of a webhook that is no Service; with --no-workloads."
)
@click.option("--no-webhook", is_flag=True, help="Leave out the webhook; with --no-workloads.")
@format_option(OutputFormat.YAML, OutputFormat.JSON)
def command(
    *,
    namespace: str,
    files: tuple[Path, ...],
    settings: tuple[str, ...],
    kube_version: str | None,
    kubeconfig: str | None,
    no_workloads: bool,
    webhook_url: str,
    no_webhook: bool,
    output: OutputFormat,
) -> None:
    """Print the objects that the Helm chart installs, for `kubectl apply -f -`.

    Takes the chart's values (deploy/chart/values.yaml). Leaves out what only Helm runs: `helm test`, and the hooks
    of `helm uninstall`, for which there is `milligpu uninstall`.
    """
    if no_workloads:
        if files or settings:
            raise click.UsageError("--no-workloads does not go with --values and --set")
        version = kube_version or _cluster_version(kubeconfig)
        show_objects(without_workloads(namespace, version, webhook=not no_webhook, url=webhook_url), output)
        return
    if webhook_url or no_webhook:
        raise click.UsageError("--webhook-url and --no-webhook need --no-workloads")
    from milligpu.installation.chart import chart_objects

    version = kube_version or _cluster_version(kubeconfig)
    show_objects(chart_objects(namespace, version, _changes(files, settings)), output)


def without_workloads(namespace: str, version: str, *, webhook: bool, url: str) -> list[dict[str, Any]]:
    """Service accounts, RBAC rules, admission policies, CRDs and the webhook's configuration."""
    from milligpu.installation.chart import serves_mutating_policies
    from milligpu.manifests.bundle import cluster_manifests
    from milligpu.manifests.webhook_configuration import WebhookAddress

    target = WebhookAddress(namespace=namespace, url=url) if webhook else None
    return cluster_manifests(namespace, target, mutating=serves_mutating_policies(version))


def show_objects(objects: list[dict[str, Any]], output: OutputFormat) -> None:
    """Print objects in a form that kubectl reads."""
    import json

    import yaml

    if output is OutputFormat.JSON:
        click.echo(json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}, indent=2))
    else:
        click.echo(yaml.safe_dump_all(objects, sort_keys=False, width=1000), nl=False)


def _changes(files: tuple[Path, ...], settings: tuple[str, ...]) -> dict[str, Any]:
    import yaml

    from milligpu.installation.values import merged, read_setting

    changes: dict[str, Any] = {}
    for file in files:
        try:
            found: Any = yaml.safe_load(file.read_text())
        except yaml.YAMLError as error:
            raise BadRequest("--values", str(file), f"a YAML file: {error}") from None
        if not isinstance(found, dict | None):
            raise BadRequest("--values", str(file), "a YAML file with values by name")
        changes = merged(changes, cast(dict[str, Any], found or {}))
    for text in settings:
        changes = merged(changes, read_setting(text))
    return changes


def _cluster_version(kubeconfig: str | None) -> str:
    from milligpu.kube.config import blocking_client, find_cluster
    from milligpu.kube.fetch import server_version
    from milligpu.model.errors import Unavailable

    try:
        return server_version(blocking_client(find_cluster(kubeconfig)))
    except Unavailable as error:
        hint = "or name the version: --kube-version 1.36.0"
        raise Unavailable(error.message, hint=f"{error.hint}, {hint}" if error.hint else hint) from None
