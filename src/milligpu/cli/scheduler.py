"""`milligpu scheduler`: the service, and the files that a cluster needs for it."""

import os
import socket
from pathlib import Path

import click

from milligpu.cli.output import Format, format_option, show_data


@click.group()
def command() -> None:
    """Serve kube-scheduler, and write what a cluster needs for it."""


@command.command()
@click.option("--kubeconfig", metavar="FILE", help="Default: the pod's service account, else as kubectl.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Where kube-scheduler reaches the service.")
@click.option("--port", type=click.IntRange(1, 65535), default=8888, show_default=True)
@click.option(
    "--scheduler-name",
    "schedulers",
    multiple=True,
    default=["default-scheduler"],
    show_default=True,
    help="The schedulerName of pods that come to us; may be repeated.",
)
@click.option("--namespace", default="milligpu", show_default=True, help="Of the service, for its Lease.")
@click.option("--identity", default="", help="Who this instance is; default: host name and process.")
@click.option("--lease-seconds", type=click.FloatRange(1.0), default=15.0, show_default=True)
@click.option("--tls-cert", type=click.Path(path_type=Path, exists=True), help="Serve HTTPS with this certificate.")
@click.option("--tls-key", type=click.Path(path_type=Path, exists=True))
@click.option(
    "--tls-client-ca", type=click.Path(path_type=Path, exists=True), help="Let in only clients of this authority."
)
@click.option("--webhook-port", type=click.IntRange(1, 65535), help="Serve admission, and SharePods, here.")
@click.option("--webhook-host", default="127.0.0.1", show_default=True)
@click.option(
    "--webhook-name",
    "webhook_names",
    multiple=True,
    default=["127.0.0.1"],
    show_default=True,
    help="How the API server calls the webhook, for its certificate; may be repeated.",
)
@click.option(
    "--gpushare-unit",
    type=click.Choice(["auto", "GiB", "MiB"]),
    default="auto",
    show_default=True,
    help="The unit of aliyun.com/gpu-mem; auto reads up to 512 as GiB.",
)
@click.option(
    "--parts",
    type=click.IntRange(1, 1000),
    default=10,
    show_default=True,
    help="Parts of a card for deepomatic.com/shared-gpu and nvidia.com/gpu.shared.",
)
def serve(  # noqa: PLR0917 - as click calls it
    kubeconfig: str | None,
    host: str,
    port: int,
    schedulers: tuple[str, ...],
    namespace: str,
    identity: str,
    lease_seconds: float,
    tls_cert: Path | None,
    tls_key: Path | None,
    tls_client_ca: Path | None,
    webhook_port: int | None,
    webhook_host: str,
    webhook_names: tuple[str, ...],
    gpushare_unit: str,
    parts: int,
) -> None:
    """Answer kube-scheduler's questions, until SIGTERM. Of several instances one leads and is ready."""
    from milligpu.dialects.normal import Form
    from milligpu.dialects.settings import GpushareUnit, Settings
    from milligpu.scheduler import admission, service
    from milligpu.scheduler.leader import Timing
    from milligpu.scheduler.server import Tls

    if (tls_cert is None) != (tls_key is None) or (tls_client_ca is not None and tls_cert is None):
        raise click.UsageError("--tls-cert and --tls-key go together, and --tls-client-ca with both")
    dialects = Settings(GpushareUnit(gpushare_unit), parts)
    form = Form(dialects, schedulers[0])
    webhook = admission.Settings(webhook_host, webhook_port, webhook_names, form) if webhook_port else None
    service.main(
        service.Settings(
            identity=identity or f"{socket.gethostname()}-{os.getpid()}",
            kubeconfig=kubeconfig,
            host=host,
            port=port,
            schedulers=schedulers,
            namespace=namespace,
            timing=Timing(lease_seconds, lease_seconds * 2 / 3, lease_seconds * 2 / 15),
            tls=None if tls_cert is None or tls_key is None else Tls(tls_cert, tls_key, tls_client_ca),
            dialects=dialects,
            admission=webhook,
        )
    )


@command.command()
@click.option("--url", default="http://127.0.0.1:8888", show_default=True, help="Where the service is.")
@click.option(
    "--scheduler-name", metavar="NAME", help="For a second scheduler of this name; without, for the default one."
)
@click.option("--tls-ca", default="", metavar="FILE", help="With https: the service's authority.")
@click.option("--tls-cert", default="", metavar="FILE", help="kube-scheduler's certificate for --tls-client-ca.")
@click.option("--tls-key", default="", metavar="FILE")
@format_option(Format.YAML, Format.JSON)
def config(  # noqa: PLR0917 - as click calls it
    url: str,
    scheduler_name: str | None,
    tls_ca: str,
    tls_cert: str,
    tls_key: str,
    output: Format,
) -> None:
    """Print the KubeSchedulerConfiguration that makes kube-scheduler ask the service."""
    from milligpu.scheduler import config as configs

    trust = configs.Trust(tls_ca, tls_cert, tls_key)
    if bool(tls_cert) != bool(tls_key) or (trust != configs.Trust() and not url.startswith("https://")):
        raise click.UsageError("--tls-cert and --tls-key go together, and all three with a --url of https")
    if scheduler_name is None:
        show_data(configs.in_default_scheduler(url, trust), output)
    else:
        show_data(configs.second_scheduler(url, scheduler_name, trust), output)


@command.command()
@click.option("--namespace", default="milligpu", show_default=True, help="Of the services.")
@click.option("--webhook/--no-webhook", default=True, show_default=True, help="Whether admission is served.")
@click.option("--webhook-url", default="", help="Where; default: the Service milligpu-webhook.")
def manifests(namespace: str, webhook: bool, webhook_url: str) -> None:
    """Print the accounts, rights, admission policies and webhook that a cluster needs, for `kubectl apply -f -`."""
    import yaml

    from milligpu.scheduler.manifests import manifests as objects
    from milligpu.scheduler.webhook_objects import Target

    target = Target(namespace=namespace, url=webhook_url) if webhook else None
    click.echo(yaml.safe_dump_all(objects(namespace, target), sort_keys=False), nl=False)
