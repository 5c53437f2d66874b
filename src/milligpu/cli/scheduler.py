"""`milligpu scheduler`: the scheduler service, and the files that a cluster needs for it."""

import asyncio
import gc
import os
import signal
import socket
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from milligpu.cli.dialect_options import dialect_options
from milligpu.cli.output import OutputFormat, format_option, show_data, warn_renamed
from milligpu.dialects.settings import DialectSettings
from milligpu.model.errors import BadRequest

if TYPE_CHECKING:
    from milligpu.scheduler.leader import FollowedLease
    from milligpu.scheduler.settings import SchedulerSettings
    from milligpu.webhook.service import WebhookSettings

_F = TypeVar("_F", bound=Callable[..., Any])


def _file_option(name: str, what: str) -> Callable[[_F], _F]:
    return click.option(name, type=click.Path(path_type=Path, exists=True), metavar="FILE", help=what)


@click.group()
def command() -> None:
    """Run the scheduler service, or print its configuration."""


@command.command()
@click.option(
    "--kubeconfig", metavar="FILE", help="Kubeconfig (default: the pod's service account, else as kubectl)."
)
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    metavar="ADDRESS",
    help="Address to listen on for kube-scheduler.",
)
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    default=8888,
    show_default=True,
    metavar="PORT",
    help="Port for kube-scheduler.",
)
@click.option(
    "--scheduler-name",
    "schedulers",
    multiple=True,
    default=["default-scheduler"],
    show_default=True,
    metavar="NAME",
    help="Serve pods with this spec.schedulerName; can be repeated.",
)
@click.option(
    "--namespace", default="milligpu", show_default=True, metavar="NAME", help="Namespace of the leader Lease."
)
@click.option(
    "--identity",
    default="",
    metavar="NAME",
    help="Name of this instance in leader election (default: HOSTNAME-PID).",
)
@click.option(
    "--follow-lease",
    metavar="[NAMESPACE/]NAME",
    help="Lead only while the kube-scheduler on this host or in this pod holds this leader Lease"
    " (default namespace: kube-system).",
)
@click.option(
    "--lease-seconds",
    type=click.FloatRange(1.0),
    default=15.0,
    show_default=True,
    metavar="SECONDS",
    help="Another instance takes over after the leader has been silent for this long.",
)
@_file_option("--tls-cert", "Serve HTTPS with this certificate; needs --tls-key.")
@_file_option("--tls-key", "Private key of --tls-cert.")
@_file_option("--tls-client-ca", "Require client certificates signed by this CA; needs --tls-cert.")
@click.option(
    "--webhook-port",
    type=click.IntRange(1, 65535),
    metavar="PORT",
    help="Also run the admission webhook and the SharePod controller, on this port.",
)
@click.option(
    "--webhook-host", default="127.0.0.1", show_default=True, metavar="ADDRESS", help="Address of the webhook."
)
@click.option(
    "--webhook-name",
    "webhook_names",
    multiple=True,
    default=["127.0.0.1"],
    show_default=True,
    metavar="NAME",
    help="DNS name or IP address for the webhook's certificate; can be repeated.",
)
@click.option(
    "--classes",
    metavar="JSON",
    help='Classes to keep in the cluster, such as [{"name": "gold", "requirements": "memory>=16Gi"}]. Others that'
    " were declared here before are deleted; classes that you created are not touched.",
)
@click.option(
    "--client-image",
    default="",
    metavar="IMAGE",
    help="Image with the client of GPU servers, for pods with the annotation milligpu.dev/attach; without it they "
    "are refused.",
)
@click.option(
    "--vsphere",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    metavar="DIR",
    help="Directory with vCenter's login, for layouts with worker VMs: the files server, username, password, and "
    "ca.crt unless the system trusts vCenter's certificate.",
)
@dialect_options()
def serve(  # noqa: PLR0917 - as click calls it
    kubeconfig: str | None,
    host: str,
    port: int,
    schedulers: tuple[str, ...],
    namespace: str,
    identity: str,
    follow_lease: str | None,
    lease_seconds: float,
    tls_cert: Path | None,
    tls_key: Path | None,
    tls_client_ca: Path | None,
    webhook_port: int | None,
    webhook_host: str,
    webhook_names: tuple[str, ...],
    classes: str | None,
    client_image: str,
    vsphere: Path | None,
    settings: DialectSettings,
) -> None:
    """Run the scheduler service until SIGTERM.

    kube-scheduler asks the service which GPUs a pod gets, and the service binds the pod. Several instances elect a
    leader: /leading answers 200 on the leader only, /readyz on standbys, too.
    """
    import uvloop

    from milligpu.dialects.normal import NormalForm
    from milligpu.http_server import TlsServerFiles
    from milligpu.hypervisors.connect import connect
    from milligpu.logs import configure_logs
    from milligpu.scheduler.declared_classes import parse_declared
    from milligpu.scheduler.leader import LeaderTiming
    from milligpu.scheduler.settings import SchedulerSettings
    from milligpu.webhook.service import WebhookSettings

    if (tls_cert is None) != (tls_key is None) or (tls_client_ca is not None and tls_cert is None):
        raise click.UsageError("--tls-cert and --tls-key need each other, and --tls-client-ca needs both")
    form = NormalForm(settings, schedulers[0], client_image=client_image)
    webhook = WebhookSettings(webhook_host, webhook_port, webhook_names, form) if webhook_port else None
    service = SchedulerSettings(
        identity=identity or f"{socket.gethostname()}-{os.getpid()}",
        host=host,
        port=port,
        schedulers=schedulers,
        namespace=namespace,
        follow=None if follow_lease is None else _followed(follow_lease),
        timing=LeaderTiming(lease_seconds, lease_seconds * 2 / 3, lease_seconds * 2 / 15),
        tls=None if tls_cert is None or tls_key is None else TlsServerFiles(tls_cert, tls_key, tls_client_ca),
        dialects=settings,
        classes=None if classes is None else parse_declared(classes),
        vsphere=vsphere,
        sharepods=webhook is not None,
    )
    connect(vsphere)  # what is wrong with the login shows now, not when this instance leads
    configure_logs(structured=True)
    uvloop.run(_serve(kubeconfig, service, webhook))


def _followed(name: str) -> "FollowedLease":
    from milligpu.scheduler.leader import FollowedLease

    namespace, _, lease = name.rpartition("/")
    if not lease:
        raise BadRequest("--follow-lease", name, "NAMESPACE/NAME or NAME")
    return FollowedLease(namespace or "kube-system", lease, socket.gethostname())


async def _serve(kubeconfig: str | None, settings: "SchedulerSettings", webhook: "WebhookSettings | None") -> None:
    """Run the scheduler service, and the webhook in a thread of its own, until SIGTERM or SIGINT.

    If one of both ends, for whatever reason, so does the other.
    """
    from milligpu.kube.api import ApiClient
    from milligpu.kube.config import find_cluster
    from milligpu.kube.watch import ABSENT_S, SharedWatch, Watch
    from milligpu.model.names import CLASSES_PATH, QUEUES_PATH
    from milligpu.scheduler import service as scheduler
    from milligpu.webhook.own_thread import run_in_thread
    from milligpu.wire.kubernetes import KubeGpuClass, KubeGpuQueue, KubeNode

    # Modules and their functions stay: a search for garbage among them would stop all answers for some 0.1 s.
    gc.freeze()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with ApiClient(find_cluster(kubeconfig)) as api:
        nodes = SharedWatch(Watch(api, "/api/v1/nodes", KubeNode))
        listed = Watch(api, CLASSES_PATH, KubeGpuClass, retry_s=ABSENT_S, optional=True)
        classes = SharedWatch(listed)
        queues = SharedWatch(Watch(api, QUEUES_PATH, KubeGpuQueue, retry_s=ABSENT_S, optional=True))
        programs: list[Coroutine[Any, Any, object]] = [nodes.run(), classes.run(), queues.run()]
        programs.append(scheduler.serve(api, settings, nodes, classes, queues))
        if webhook is not None:
            programs.append(run_in_thread("webhook", partial(_serve_webhook, kubeconfig, webhook)))
        tasks = {asyncio.create_task(program) for program in (*programs, stop.wait())}
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for task in done:
            task.result()


async def _serve_webhook(kubeconfig: str | None, settings: "WebhookSettings") -> None:
    """Review pods until cancelled, with a client and watches of its own: nothing is shared between the threads."""
    from milligpu.kube.api import ApiClient
    from milligpu.kube.config import find_cluster
    from milligpu.webhook import service as admission

    async with ApiClient(find_cluster(kubeconfig)) as api:
        await admission.serve(api, settings)


@command.command()
@click.option(
    "--url", default="http://127.0.0.1:8888", show_default=True, metavar="URL", help="URL of the scheduler service."
)
@click.option(
    "--scheduler-name",
    metavar="NAME",
    help="Configure a second scheduler of this name (default: the cluster's default scheduler).",
)
@click.option("--tls-ca", default="", metavar="FILE", help="CA certificate of the service; only with an https URL.")
@click.option(
    "--tls-cert",
    default="",
    metavar="FILE",
    help="Certificate with which kube-scheduler identifies itself (see serve --tls-client-ca).",
)
@click.option("--tls-key", default="", metavar="FILE", help="Private key of --tls-cert.")
@format_option(OutputFormat.YAML, OutputFormat.JSON)
def config(  # noqa: PLR0917 - as click calls it
    url: str,
    scheduler_name: str | None,
    tls_ca: str,
    tls_cert: str,
    tls_key: str,
    output: OutputFormat,
) -> None:
    """Print the configuration of kube-scheduler.

    With this KubeSchedulerConfiguration, kube-scheduler calls the scheduler service.
    """
    from milligpu.manifests import kube_scheduler as configs

    tls = configs.TlsClientFiles(tls_ca, tls_cert, tls_key)
    if bool(tls_cert) != bool(tls_key) or (tls != configs.TlsClientFiles() and not url.startswith("https://")):
        raise click.UsageError(
            "--tls-cert and --tls-key need each other, and all --tls options need an https --url"
        )
    if scheduler_name is None:
        show_data(configs.in_default_scheduler(url, tls), output)
    else:
        show_data(configs.second_scheduler(url, scheduler_name, tls), output)


@command.command(hidden=True)
@click.option("--namespace", default="milligpu")
@click.option("--webhook/--no-webhook", default=True)
@click.option("--webhook-url", default="")
def manifests(namespace: str, webhook: bool, webhook_url: str) -> None:
    """Print what `milligpu manifests --no-workloads` prints: the spelling of version 0.1."""
    from milligpu.cli.manifests import show_objects, without_workloads

    warn_renamed("milligpu scheduler manifests", "milligpu manifests --no-workloads")
    show_objects(without_workloads(namespace, "1.36.0", webhook=webhook, url=webhook_url), OutputFormat.YAML)
