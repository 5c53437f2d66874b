"""`milligpu service`: inference services whose shares and replicas follow their load."""

from typing import TYPE_CHECKING, Any

import click

from milligpu.cli.output import OutputFormat, format_option, show_data, show_table
from milligpu.model.errors import BadRequest, NoCapacity
from milligpu.model.gpu_service import PRESETS, REPLICAS_MAX

if TYPE_CHECKING:
    from milligpu.kube.config import BlockingClient
    from milligpu.wire.gpu_service import GpuServiceStatus

_kubeconfig = click.option("--kubeconfig", metavar="FILE", help="Kubeconfig of the cluster (default: as kubectl).")
_namespace = click.option("-n", "--namespace", metavar="NAME", help="Namespace (default: that of the context).")
_any_namespace = click.option("-n", "--namespace", metavar="NAME", help="Namespace (default: all).")
_NOT_FOUND = 404
# Words in the names of images, by which `init` knows an engine.
_IMAGES = {
    "vllm": "vllm",
    "sglang": "sglang",
    "tritonserver": "triton",
    "text-generation-inference": "tgi",
    "torchserve": "torchserve",
}


@click.group()
def command() -> None:
    """Show inference services, what they decided and why, and what an update of one would do."""


def _connect(kubeconfig: str | None, namespace: str | None) -> "tuple[BlockingClient, str]":
    from milligpu.kube import config

    found = config.find_cluster(kubeconfig)
    return config.blocking_client(found), namespace or found.namespace or "default"


def _service(client: "BlockingClient", namespace: str, name: str) -> "tuple[dict[str, Any], GpuServiceStatus]":
    import msgspec

    from milligpu.kube.api import ApiRefused
    from milligpu.kube.fetch import get_json
    from milligpu.model.names import service_path
    from milligpu.wire.gpu_service import decode_service_status

    try:
        found = get_json(client, service_path(namespace, name))
    except ApiRefused as error:
        if error.status != _NOT_FOUND:
            raise
        hint = f"list them with: milligpu service list -n {namespace}"
        raise BadRequest("service", name, f"the name of a GpuService in {namespace}", hint=hint) from None
    return found, decode_service_status(msgspec.json.encode(found.get("status", {})))


@command.command("list")
@_any_namespace
@_kubeconfig
@format_option(OutputFormat.TABLE, OutputFormat.JSON, OutputFormat.YAML, OutputFormat.NAME)
def list_(namespace: str | None, kubeconfig: str | None, output: OutputFormat) -> None:
    """List the services with their shares, pods and needs."""
    import msgspec

    from milligpu.kube.fetch import get_json
    from milligpu.model.names import GROUP_VERSION, SERVICES_PATH
    from milligpu.wire.gpu_service import decode_service_status

    path = SERVICES_PATH if namespace is None else f"/apis/{GROUP_VERSION}/namespaces/{namespace}/gpuservices"
    client, _ = _connect(kubeconfig, namespace)
    with client:
        found = get_json(client, path)["items"]
    if output is OutputFormat.NAME:
        for each in found:
            click.echo(each["metadata"]["name"])
    elif output is OutputFormat.TABLE:
        rows: list[list[str]] = []
        for each in found:
            meta, status = each["metadata"], decode_service_status(msgspec.json.encode(each.get("status", {})))
            most = each["spec"].get("replicas", {}).get("max")
            pods = f"{status.ready}/{status.replicas}" + (f" of {most}" if most else "")
            share = f"{_gpu(status.share)} of {_gpu(each['spec']['share']['max'])}"
            cells = [
                f"{meta['namespace']}/{meta['name']}",
                share,
                pods,
                _gpu(status.needed),
                _rate(status.requests),
            ]
            rows.append([*cells, _state(status)])
        show_table(["SERVICE", "SHARE", "PODS", "NEEDED", "REQ/S", "STATE"], rows, right=["NEEDED", "REQ/S"])
        if not found:
            click.echo("no service exists; docs/services.md shows how to create one", err=True)
    else:
        show_data([{"name": e["metadata"]["name"], "status": e.get("status", {})} for e in found], output)


@command.command()
@click.argument("name")
@_namespace
@_kubeconfig
def show(name: str, namespace: str | None, kubeconfig: str | None) -> None:
    """Show a service's load, shares, pods and conditions."""
    client, space = _connect(kubeconfig, namespace)
    with client:
        found, status = _service(client, space, name)
    target = found["spec"]["scaleTargetRef"]
    starts = f"{status.startSeconds:.0f} s ({status.starts} starts)" if status.startSeconds is not None else "-"
    learned = status.gpuSecondsPerRequest
    rows = [
        ["target", f"{target['kind'].lower()}/{target['name']}"],
        ["requests a second", _rate(status.requests)],
        ["running, waiting", f"{_rate(status.running)}, {_rate(status.waiting)}"],
        ["GPU time per request", "-" if learned is None else f"{learned * 1000:.2f} ms"],
        ["needed", f"{_gpu(status.needed)} GPU"],
        ["guaranteed", f"{_gpu(status.granted)} GPU; {_gpu(status.share)} wanted for each pod"],
        ["pods ready", f"{status.ready} of {status.replicas}"],
        ["start takes", starts],
    ]
    show_table(["WHAT", "VALUE"], rows)
    click.echo()
    conditions = [[each.type, each.status, each.reason, each.message or "-"] for each in status.conditions]
    show_table(["CONDITION", "STATUS", "REASON", "MESSAGE"], conditions)


@command.command()
@click.argument("name")
@_namespace
@_kubeconfig
def explain(name: str, namespace: str | None, kubeconfig: str | None) -> None:
    """Show a service's last decisions with their numbers, the latest first, and what blocks it."""
    client, space = _connect(kubeconfig, namespace)
    with client:
        _, status = _service(client, space, name)
    for each in status.conditions:
        if each.status != "True":
            click.echo(f"{each.type}: {each.reason}: {each.message}".rstrip(": "))
    show_table(["AT (UTC)", "DECISION"], [[each.at[:19], each.message] for each in status.decisions])


@command.command()
@click.argument("name")
@_namespace
@_kubeconfig
def plan(name: str, namespace: str | None, kubeconfig: str | None) -> None:
    """Say how a new pod of an update would get its place now; exit code 75 if it would wait. Changes nothing.

    The new pod is taken to request what the present pods request.
    """
    import msgspec

    from milligpu.cluster.read import read_cluster
    from milligpu.kube import fetch
    from milligpu.status.services import plan_update
    from milligpu.wire.gpu_service import parse_service
    from milligpu.wire.scale import Scale, parse_selector

    client, space = _connect(kubeconfig, namespace)
    with client:
        found, status = _service(client, space, name)
        service = parse_service(found)
        target = service.target
        path = f"/apis/apps/v1/namespaces/{space}/{target.kind.plural}/{target.name}/scale"
        scale = msgspec.convert(fetch.get_json(client, path), Scale)
        pods = fetch.list_pods(client)
        state = read_cluster(fetch.list_nodes(client), pods, fetch.list_classes(client))
    planned = plan_update(state, service, pods, parse_selector(scale.status.selector))
    if planned is None:
        raise BadRequest("service", name, "a service with a pod that holds a share")
    if not planned.possible:
        raise NoCapacity(f"{planned.reason}: {planned.message}")
    click.echo(f"{service}: {planned.message}")
    if status.startSeconds is not None:
        click.echo(f"ready in about {status.startSeconds:.0f} s ({status.starts} starts)")


@command.command()
@click.argument("name")
@_namespace
@_kubeconfig
def pause(name: str, namespace: str | None, kubeconfig: str | None) -> None:
    """Keep a service's shares and replicas as they are."""
    _set_paused(name, namespace, kubeconfig, paused=True)


@command.command()
@click.argument("name")
@_namespace
@_kubeconfig
def resume(name: str, namespace: str | None, kubeconfig: str | None) -> None:
    """Let a service follow its load again."""
    _set_paused(name, namespace, kubeconfig, paused=False)


def _set_paused(name: str, namespace: str | None, kubeconfig: str | None, *, paused: bool) -> None:
    from milligpu.kube.fetch import patch_json
    from milligpu.model.names import service_path

    client, space = _connect(kubeconfig, namespace)
    with client:
        _service(client, space, name)
        patch_json(client, service_path(space, name), {"spec": {"paused": paused}})
    click.echo(f"{space}/{name}: {'paused' if paused else 'follows its load'}")


@command.command()
@click.argument("target", metavar="KIND/NAME")
@click.option("--preset", type=click.Choice(list(PRESETS)), help="The engine (default: by the image's name).")
@click.option(
    "--max-replicas", type=click.IntRange(1, REPLICAS_MAX), help="Let the service add pods up to so many."
)
@_namespace
@_kubeconfig
def init(
    target: str, preset: str | None, max_replicas: int | None, namespace: str | None, kubeconfig: str | None
) -> None:
    """Print a GpuService for what runs, such as deployment/chat, for kubectl apply.

    Each pod may be guaranteed twice the share of its template.
    """
    from milligpu import dialects
    from milligpu.kube import fetch
    from milligpu.model.gpu_service import GpuService, LoadTarget, ReplicaRange, ScaleTarget, ShareRange
    from milligpu.model.units import WHOLE, Milli
    from milligpu.wire.gpu_service import as_object

    kind, name = _target(target)
    client, space = _connect(kubeconfig, namespace)
    with client:
        found = fetch.get_json(client, f"/apis/apps/v1/namespaces/{space}/{kind.plural}/{name}")
    template = found["spec"]["template"]
    engine = preset or _engine(template)
    request = dialects.read_pod(
        {"metadata": {"name": name, **template.get("metadata", {})}, "spec": template["spec"]}
    )
    held = [each.share.milli for each in request.containers if each.share is not None and each.share.milli]
    if not held:
        raise BadRequest(str(target), "no share of compute", "pods that request compute, such as nvidia.com/vgpu")
    present = found["spec"].get("replicas", 1)
    replicas = None if max_replicas is None else ReplicaRange(min(max(1, present), max_replicas), max_replicas)
    most = Milli(min(WHOLE, 2 * max(held)))
    service = GpuService(
        space, name, ScaleTarget(kind, name), PRESETS[engine], LoadTarget(), ShareRange(most), replicas
    )
    show_data(as_object(service, engine), OutputFormat.YAML)


def _target(text: str) -> Any:
    from milligpu.model.gpu_service import ScaleKind

    kind, _, name = text.partition("/")
    kinds = {each.lower(): each for each in ScaleKind}
    if kind.lower() not in kinds or not name:
        raise BadRequest("target", text, f"KIND/NAME, where KIND is {', '.join(kinds)}")
    return kinds[kind.lower()], name


def _engine(template: dict[str, Any]) -> str:
    images = [str(each.get("image", "")) for each in template["spec"]["containers"]]
    found = next((engine for image in images for word, engine in _IMAGES.items() if word in image), None)
    if found is None:
        want = f"one of {', '.join(PRESETS)}, or a spec.load of your own"
        raise BadRequest("--preset", None, want, hint="docs/services.md lists the fields of spec.load")
    return found


def _gpu(milli: int | None) -> str:
    return "-" if milli is None else f"{milli / 1000:.2f}".rstrip("0").rstrip(".")


def _rate(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _state(status: "GpuServiceStatus") -> str:
    """Return the reason of the first condition that is not as it should be; that of Ready if all are."""
    bad = next((each for each in status.conditions if each.status != "True"), None)
    return bad.reason if bad is not None else status.conditions[0].reason if status.conditions else "-"
