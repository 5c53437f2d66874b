"""The cluster as `top` and `ps` show it: who was granted what, what agents measured of it, who waits and why."""

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any
from urllib.request import urlopen

from milligpu import dialects
from milligpu.cli.machine import View, measured, used
from milligpu.kube import config, fetch, objects
from milligpu.model import names
from milligpu.model.grant import GpuShare
from milligpu.model.units import WHOLE, show_mib, show_milli
from milligpu.scheduler.books import Books
from milligpu.scheduler.explain import explain
from milligpu.scheduler.sight import PodReader
from milligpu.scheduler.view import view

# A node whose agent does not answer is shown without measurements; nobody should wait long for that.
_TIMEOUT_S = 2.0
_AT_ONCE = 32
# Each is worked out anew; whoever has more waiting wants `milligpu free`.
_EXPLAINED = 50
_MIB = 1 << 20

Measured = Mapping[tuple[str, str, str, str], Mapping[str, Any]]
"""What agents say, by namespace, pod, container and GPU."""


@dataclass(frozen=True, slots=True)
class Card:
    """A GPU of the cluster."""

    node: str
    index: int
    uuid: str
    model: str
    state: str
    reason: str
    milli: int
    mib: int
    free_milli: int
    free_mib: int
    busy: float | None


@dataclass(frozen=True, slots=True)
class Holder:
    """What one container has of one GPU, and makes of it; what nobody measured is None."""

    namespace: str
    pod: str
    container: str
    node: str
    gpu: str
    milli: int
    limit: int
    mib: int
    whole: bool
    busy: float | None
    used_mib: float | None
    wanting: bool | None
    """Whether it wants the GPU now and others have it."""


@dataclass(frozen=True, slots=True)
class Waiter:
    """A pod that waits."""

    namespace: str
    pod: str
    why: str


@dataclass(frozen=True, slots=True)
class Picture:
    """All of it at one moment."""

    gpus: Sequence[Card]
    pods: Sequence[Holder]
    waiting: Sequence[Waiter]

    def as_data(self) -> dict[str, object]:
        """The same for programs."""
        return asdict(self)


def picture(kubeconfig: str | None, namespace: str | None = None) -> Picture:
    """Ask the API server and the agents; `namespace` narrows the pods, not the GPUs."""
    found = config.find(kubeconfig)
    with config.blocking_client(found) as client:
        nodes, pods = fetch.nodes(client), fetch.pods(client)
    books = view(nodes, pods)
    measurements = _measurements(nodes)
    reader = PodReader(dialects.read)
    sights = [reader.sight(pod) for pod in pods]
    holders = [
        _holder((sight.wish.pod.namespace, sight.wish.pod.name, name), sight.node, share, measurements)
        for sight in sights
        if sight.node and sight.grant is not None and not sight.ended
        for name, shares in sight.grant.containers.items()
        for share in shares
    ]
    waiting = [
        Waiter(entry.wish.pod.namespace, entry.wish.pod.name, explain(books, entry.wish) if at < _EXPLAINED else "")
        for at, entry in enumerate(books.waiting())
        if namespace in {None, entry.wish.pod.namespace}
    ]
    cards = _cards(books, holders)
    return Picture(cards, [each for each in holders if namespace in {None, each.namespace}], waiting)


def _cards(books: Books, holders: Sequence[Holder]) -> list[Card]:
    snap = books.placer.snapshot
    found: list[Card] = []
    for node in snap.nodes.values():
        for at, gpu in enumerate(node.gpus):
            parts = [each.busy for each in holders if each.gpu == gpu.uuid and each.busy is not None]
            cell = snap.cell_of[node.name, gpu.uuid]
            free = int(snap.milli[cell]), int(snap.mib[cell])
            what = (gpu.uuid, gpu.model, str(gpu.state), gpu.reason, gpu.milli, gpu.mib)
            found.append(Card(node.name, at, *what, *free, sum(parts) if parts else None))
    return found


def _holder(who: tuple[str, str, str], node: str, share: GpuShare, measurements: Measured) -> Holder:
    said = measurements.get((*who, share.gpu), {})
    memory, duty, total = said.get("memoryUsed"), said.get("dutyCycle"), said.get("memoryTotal")
    return Holder(
        *who,
        node,
        share.gpu,
        WHOLE if share.whole else share.milli,
        WHOLE if share.whole else share.limit,
        (total or 0) // _MIB if share.whole else share.mib,
        share.whole,
        None if duty is None else duty / 100,
        None if memory is None else memory / _MIB,
        said.get("waiting"),
    )


def _measurements(nodes: Sequence[objects.Node]) -> Measured:
    addresses = [address for node in nodes if (address := _address(node))]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        answers = list(pool.map(_ask, addresses))
    return {
        (each["namespace"], each["pod"], each["container"], one["id"]): one
        for answer in answers
        for each in answer
        for one in each["accelerators"]
    }


def _address(node: objects.Node) -> str | None:
    """Where its agent listens; one that listens everywhere is reached at the node's own address."""
    listen = (node.metadata.annotations or {}).get(names.AGENT, "")
    host, _, port = listen.rpartition(":")
    if not port.isdigit():
        return None
    if host not in {"", "0.0.0.0", "[::]"}:
        return f"{host}:{port}"
    inside = [each.address for each in node.status.addresses or () if each.type == "InternalIP"]
    return f"{inside[0]}:{port}" if inside else None


def _ask(address: str) -> list[dict[str, Any]]:
    try:
        with urlopen(f"http://{address}/stats", timeout=_TIMEOUT_S) as answer:
            return json.load(answer)
    except (OSError, ValueError):
        return []


def gpus(found: Picture) -> View:
    """A row for each GPU."""
    rows = [
        [
            card.node,
            str(card.index),
            card.model,
            f"{card.state}: {card.reason}" if card.reason else card.state,
            show_milli(max(0, card.free_milli)),
            show_mib(max(0, card.free_mib)),
            measured(card.busy),
        ]
        for card in found.gpus
    ]
    columns = ["NODE", "GPU", "MODEL", "STATE", "FREE", "FREE MEMORY", "BUSY"]
    return View(columns, rows, ["FREE", "FREE MEMORY", "BUSY"])


def pods(found: Picture) -> View:
    """A row for each container and GPU of it."""
    index = {card.uuid: str(card.index) for card in found.gpus}
    rows = [
        [
            each.namespace,
            each.pod,
            each.container,
            each.node,
            index.get(each.gpu, "?"),
            _share(each),
            measured(each.busy) + (" waits" if each.wanting else ""),
            used(each.used_mib, each.mib) if each.mib else "-",
        ]
        for each in found.pods
    ]
    columns = ["NAMESPACE", "POD", "CONTAINER", "NODE", "GPU", "SHARE", "MEASURED", "MEMORY"]
    return View(columns, rows, ["SHARE", "MEASURED", "MEMORY"])


def waiting(found: Picture) -> View:
    """A row for each pod that waits."""
    rows = [[each.namespace, each.pod, each.why] for each in found.waiting]
    return View(["NAMESPACE", "WAITING", "WHY"], rows)


def _share(each: Holder) -> str:
    if each.whole:
        return "whole"
    ceiling = f" to {show_milli(each.limit)}" if each.limit not in (each.milli, WHOLE) else ""
    return show_milli(each.milli) + ceiling
