"""`milligpu place`: where pods would go on a cluster, decided by the code that decides it there."""

from typing import Any

import click

from milligpu import dialects
from milligpu.cli.files import manifests
from milligpu.cli.output import Format, format_option, show_data, show_table
from milligpu.dialects import pod as pods
from milligpu.model import names
from milligpu.model.errors import BadFormat, BadRequest
from milligpu.model.gpu import Node
from milligpu.model.grant import GpuShare, Grant, NoFit
from milligpu.model.request import PodRequest
from milligpu.model.units import show_mib, show_milli
from milligpu.placement.decide import Placer
from milligpu.placement.snapshot import Holding, Snapshot
from milligpu.wire.inventory import decode_inventory

# As wide as a short word; each block is an eighth of a GPU.
_BAR_WIDTH = 8


@click.command()
@click.option("-f", "--filename", "files", multiple=True, required=True, metavar="FILE", help="Pods; - is stdin.")
@click.option(
    "--nodes", required=True, metavar="FILE", help="Nodes with their inventory, as `kubectl get nodes -o yaml` has."
)
@format_option(Format.TABLE, Format.JSON, Format.YAML)
def command(files: tuple[str, ...], nodes: str, output: Format) -> None:
    """Show which GPUs pods would get on a cluster, or why they would wait.

    Pods are placed in the order they are written, each beside those before it. Nothing is changed anywhere.
    """
    fleet = [_node(where, found) for where, found in manifests(nodes)]
    requests = [_pod(where, found) for name in files for where, found in manifests(name)]
    placer = Placer(Snapshot.of(fleet))
    answers: list[tuple[PodRequest, Grant | NoFit]] = []
    held: list[Holding] = []
    for request in requests:
        placer.observe(request)
        answer = placer.decide(request)
        if isinstance(answer, Grant):
            held.append(placer.commit(request, answer))
        answers.append((request, answer))
    if output is Format.TABLE:
        _tables(answers, _cards(fleet, held))
    else:
        show_data([_data(request, answer) for request, answer in answers], output)


def _node(where: str, found: dict[str, Any]) -> Node:
    if found["kind"] != "Node":
        raise BadFormat(where, f"kind={found['kind']}: want Node")
    metadata = pods.section(found, "metadata")
    text = pods.annotations(found).get(names.INVENTORY)
    try:
        gpus = decode_inventory(text) if text is not None else ()
    except BadFormat as error:
        raise BadFormat(f"{where}: {error.document}", error.problem, hint=error.hint) from None
    return Node(str(metadata.get("name")), gpus)


def _pod(where: str, found: dict[str, Any]) -> PodRequest:
    if found["kind"] != "Pod":
        raise BadFormat(where, f"kind={found['kind']}: want Pod")
    try:
        request = dialects.read(found)
    except BadRequest as error:
        raise error.inside(where) from None
    if not request.wants_gpu:
        raise BadFormat(where, f"pod {request.pod} asks for no GPU", hint=f"add limits: {{{names.VGPU}: 500}}")
    return request


def _tables(answers: list[tuple[PodRequest, Grant | NoFit]], cards: list[list[str]]) -> None:
    rows: list[list[str]] = []
    waiting: list[tuple[str, str]] = []
    for request, answer in answers:
        if isinstance(answer, NoFit):
            waiting.append((request.pod.name, answer.summary()))
            continue
        for container, shares in answer.containers.items():
            rows += [[request.pod.name, container, answer.node, share.gpu, *_amounts(share)] for share in shares]
    if rows:
        show_table(["POD", "CONTAINER", "NODE", "GPU", "SHARE", "MEMORY"], rows, right=["SHARE", "MEMORY"])
        click.echo()
    columns = ["NODE", "GPU", "MODEL", "USED", "", "FREE", "FREE MEMORY"]
    show_table(columns, cards, right=["", "FREE", "FREE MEMORY"])
    if waiting:
        click.echo()
        show_table(["WAITING", "WHY"], waiting)


def _amounts(share: GpuShare) -> tuple[str, str]:
    return ("whole", "all") if share.whole else (show_milli(share.milli), show_mib(share.mib))


def _cards(fleet: list[Node], held: list[Holding]) -> list[list[str]]:
    """A row for each card, with what of it the placed pods take."""
    rows: list[list[str]] = []
    for node in fleet:
        for gpu in node.gpus:
            taken = [
                demand for each in held for uuid, demand in each.cards if (each.node, uuid) == (node.name, gpu.uuid)
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
            {"gpu": share.gpu, "whole": True}
            if share.whole
            else {"gpu": share.gpu, "milli": share.milli, "limit": share.limit, "mib": share.mib}
            for share in parts
        ]
        for container, parts in answer.containers.items()
    }
    return {**pod, "placed": True, "node": answer.node, "containers": shares}
