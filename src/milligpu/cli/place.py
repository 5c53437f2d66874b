"""`milligpu place`: which GPUs pods would get, decided by the scheduler's own placement code."""

from typing import Any

import click

from milligpu import dialects
from milligpu.cli.manifest_files import filename_option, read_manifests
from milligpu.cli.output import OutputFormat, format_option, show_data, show_table
from milligpu.dialects import pod as pods
from milligpu.model import names
from milligpu.model.errors import BadFormat, BadRequest
from milligpu.model.gpu import Node
from milligpu.model.grant import Grant, NoFit
from milligpu.model.request import PodRequest, Share
from milligpu.model.units import show_mib, show_milli
from milligpu.placement.decide import Placer
from milligpu.placement.snapshot import Holding, Snapshot
from milligpu.wire.driver import gpus_of_node

# Characters; each stands for an eighth of a GPU.
_BAR_WIDTH = 8


@click.command()
@filename_option("Manifest with pods")
@click.option(
    "--nodes",
    required=True,
    metavar="FILE",
    help="File with nodes and their inventory, as printed by `kubectl get nodes -o yaml`.",
)
@format_option(OutputFormat.TABLE, OutputFormat.JSON, OutputFormat.YAML)
def command(files: tuple[str, ...], nodes: str, output: OutputFormat) -> None:
    """Show which GPUs pods would get on a cluster, or why they would wait.

    Pods are placed in the order of the files, each next to the pods before it. The cluster is not changed.
    """
    fleet = [_node(where, found) for where, found in read_manifests(nodes)]
    requests = [_pod(where, found) for name in files for where, found in read_manifests(name)]
    placer = Placer(Snapshot.of(fleet))
    answers: list[tuple[PodRequest, Grant | NoFit]] = []
    held: list[Holding] = []
    for request in requests:
        placer.observe(request)
        answer = placer.decide(request)
        if isinstance(answer, Grant):
            held.append(placer.commit(request, answer))
        answers.append((request, answer))
    if output is OutputFormat.TABLE:
        _tables(answers, _gpu_rows(fleet, held))
    else:
        show_data([_data(request, answer) for request, answer in answers], output)


def _node(where: str, found: dict[str, Any]) -> Node:
    if found["kind"] != "Node":
        raise BadRequest(f"{where}: kind", found["kind"], "Node")
    metadata = pods.section(found, "metadata")
    try:
        gpus = gpus_of_node(pods.annotations(found))
    except BadFormat as error:
        raise BadFormat(f"{where}: {error.document}", error.problem, hint=error.hint) from None
    return Node(str(metadata.get("name")), gpus)


def _pod(where: str, found: dict[str, Any]) -> PodRequest:
    if found["kind"] != "Pod":
        raise BadRequest(f"{where}: kind", found["kind"], "Pod")
    try:
        request = dialects.read_pod(found)
    except BadRequest as error:
        raise error.inside(where) from None
    if not request.wants_gpu:
        raise BadFormat(where, f"pod {request.pod} requests no GPU", hint=f"add limits: {{{names.VGPU}: 500}}")
    return request


def _tables(answers: list[tuple[PodRequest, Grant | NoFit]], gpus: list[list[str]]) -> None:
    rows: list[list[str]] = []
    waiting: list[tuple[str, str]] = []
    for request, answer in answers:
        if isinstance(answer, NoFit):
            waiting.append((request.pod.name, answer.summary()))
            continue
        for container, shares in answer.containers.items():
            rows += [[request.pod.name, container, answer.node, each.gpu, *_amounts(each.share)] for each in shares]
    if rows:
        show_table(["POD", "CONTAINER", "NODE", "GPU", "SHARE", "MEMORY"], rows, right=["SHARE", "MEMORY"])
        click.echo()
    columns = ["NODE", "GPU", "MODEL", "USED", "USED %", "FREE", "FREE MEMORY"]
    show_table(columns, gpus, right=["USED %", "FREE", "FREE MEMORY"])
    if waiting:
        click.echo()
        show_table(["WAITING POD", "REASON"], waiting)


def _amounts(share: Share) -> tuple[str, str]:
    return ("whole", "all") if share.whole else (show_milli(share.milli), show_mib(share.mib))


def _gpu_rows(fleet: list[Node], held: list[Holding]) -> list[list[str]]:
    """A row for each GPU, with the part that the placed pods take."""
    rows: list[list[str]] = []
    for node in fleet:
        for gpu in node.gpus:
            taken = [
                demand
                for each in held
                for uuid, demand in each.demands
                if (each.node, uuid) == (node.name, gpu.uuid)
            ]
            whole = any(demand.whole for demand in taken)
            milli = gpu.milli if whole else gpu.reserved + sum(demand.milli for demand in taken)
            mib = gpu.mib if whole else sum(demand.mib for demand in taken)
            used, free = f"{100 * milli // gpu.milli}%", show_milli(gpu.milli - milli)
            rows.append(
                [node.name, gpu.uuid, gpu.model, _bar(milli, gpu.milli), used, free, show_mib(gpu.mib - mib)]
            )
    return rows


def _bar(part: int, whole: int) -> str:
    eighths = 8 * _BAR_WIDTH * part // whole
    full, rest = divmod(eighths, 8)
    return ("█" * full + (" ▏▎▍▌▋▊▉"[rest] if rest else "")).ljust(_BAR_WIDTH, "·")


def _data(request: PodRequest, answer: Grant | NoFit) -> dict[str, Any]:
    pod = {"namespace": request.pod.namespace, "pod": request.pod.name}
    if isinstance(answer, NoFit):
        return {**pod, "placed": False, "reason": answer.summary(), "hopeless": answer.hopeless}
    shares = {
        container: [
            {"gpu": each.gpu, "whole": True}
            if each.share.whole
            else {"gpu": each.gpu, "milli": each.share.milli, "limit": each.share.limit, "mib": each.share.mib}
            for each in parts
        ]
        for container, parts in answer.containers.items()
    }
    return {**pod, "placed": True, "node": answer.node, "containers": shares}
