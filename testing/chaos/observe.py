"""What everybody holds at one moment, by four accounts: API server, agent, containers, scheduler service.

The containers' account is the kernel's: the mounts of their processes, and the limits page that they read.
"""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import httpx2
from lightkube import Client
from lightkube.resources.core_v1 import Pod

from devcluster.api import list_in
from devcluster.platform import GpuNode, SchedulerService
from milligpu.model import names
from milligpu.model.errors import BadFormat
from milligpu.model.grant import Grant
from milligpu.node.processes import pod_of
from milligpu.wire.grant import decode_grant
from milligpu.wire.limits import decode_limits

_TENANT = "/run/milligpu/tenant"
_CARD = "/run/milligpu/softgpu/gpu"
# A page that is just being written reads the next time.
_READ_TRIES = 3


Share = tuple[str, int, int]
"""GPU, milli and MiB."""
End = tuple[str, int, str]
"""How a container ended: reason, exit code and message."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A pod as the API server has it."""

    name: str
    uid: str
    phase: str
    node: str = ""
    reason: str = ""
    message: str = ""
    grant: Grant | None = None
    running: bool = False
    """Its container runs."""
    ends: tuple[End, ...] = ()
    """How its container ended, now and last time."""
    waiting: str = ""
    """Why its container does not run."""


@dataclass(frozen=True, slots=True)
class Book:
    """What the agent wrote down for one container."""

    uid: str
    grant: Grant


@dataclass(frozen=True, slots=True)
class Held:
    """What a process really has."""

    uid: str
    cards: frozenset[int]
    book: str
    """The name of its tenant's folder; empty with a whole card."""
    lost: bool
    """Its folder is gone under it."""
    shares: tuple[Share, ...]
    """What its limits page says."""


@dataclass(frozen=True, slots=True)
class OnNode:
    """The node's part."""

    books: Mapping[str, Book] = field(default_factory=dict[str, Book])
    files: frozenset[str] = frozenset()
    promised: frozenset[str] = frozenset()
    held: frozenset[Held] = frozenset()


@dataclass(frozen=True, slots=True)
class Truth:
    """All accounts."""

    pods: tuple[Asked, ...]
    node: OnNode
    stages: Mapping[str, int]


def asked(client: Client, namespace: str) -> tuple[Asked, ...]:
    """All pods, in one answer: they were so at one moment."""
    return tuple(_asked(each) for each in list_in(client, Pod, namespace))


def _asked(pod: Pod) -> Asked:
    assert pod.metadata is not None
    assert pod.spec is not None
    assert pod.status is not None
    notes: Mapping[str, str] = cast(Any, pod.metadata).annotations or {}
    text = notes.get(names.GRANT)
    states = [each for status in pod.status.containerStatuses or [] for each in (status.state, status.lastState)]
    ended = [each.terminated for each in states if each and each.terminated]
    ends = tuple((each.reason or "", each.exitCode, each.message or "") for each in ended)
    now = states[0] if states else None
    return Asked(
        name=pod.metadata.name or "",
        uid=pod.metadata.uid or "",
        phase=pod.status.phase or "",
        node=pod.spec.nodeName or "",
        reason=pod.status.reason or "",
        message=pod.status.message or "",
        grant=decode_grant(text) if text else None,
        running=bool(now and now.running),
        ends=ends,
        waiting=(now.waiting.reason or "") if now and now.waiting else "",
    )


def stages(service: SchedulerService) -> dict[str, int]:
    """How many pods the scheduler service has in each stage."""
    text = httpx2.get(f"{service.url}/metrics", timeout=5).text
    lines = [line for line in text.splitlines() if line.startswith("milligpu_scheduler_pods{")]
    return {line.split('"')[1]: int(float(line.split()[-1])) for line in lines}


def on_node(node: GpuNode) -> OnNode:
    """The agent's books and what the containers have."""
    folder = node.node.folder
    cdi = (each.name for each in _listed(node.node.cdi_dir) if each.suffix == ".json")
    return OnNode(
        books=dict(_books(folder / "run/milligpu/containers")),
        files=frozenset(name.removeprefix("milligpu-").removesuffix(".json") for name in cdi),
        promised=frozenset(each.stem for each in _listed(folder / "var/lib/milligpu/promised")),
        held=frozenset(_held(node.node.pod_cgroups)),
    )


def is_stranded(node: GpuNode, uid: str) -> bool:
    """Whether the runtime has a container of the pod that was never started, and no sandbox to start it in."""
    of_pod = f'labels."io.kubernetes.pod.uid"=={uid}'
    kind = 'labels."io.cri-containerd.kind"'
    made, sandboxes, running = (
        node.node.ctr("--namespace=k8s.io", *words)
        for words in (
            ("containers", "list", "--quiet", f"{of_pod},{kind}==container"),
            ("containers", "list", "--quiet", f"{of_pod},{kind}==sandbox"),
            ("tasks", "list", "--quiet"),
        )
    )
    if any(answer.returncode for answer in (made, sandboxes, running)):
        return False  # the runtime is away
    alive = {*running.stdout.split()}
    return bool(made.stdout.split()) and not alive & {*made.stdout.split(), *sandboxes.stdout.split()}


def common(a: OnNode, b: OnNode) -> OnNode:
    """What was so in both looks, and so all the time between them: no name is ever used twice."""
    return OnNode(
        {name: book for name, book in a.books.items() if name in b.books},
        a.files & b.files,
        a.promised & b.promised,
        a.held & b.held,
    )


def _listed(folder: Path) -> list[Path]:
    with suppress(FileNotFoundError):
        return list(folder.iterdir())
    return []


def _books(folder: Path) -> Iterator[tuple[str, Book]]:
    for entry in _listed(folder):
        # One that is just being made or taken away has another name, or is gone when it is read.
        with suppress(OSError):
            if not entry.name.startswith("."):
                raw: dict[str, Any] = json.loads((entry / "attachment.json").read_text())
                yield entry.name, Book(raw["uid"], decode_grant(raw["grant"]))


def _shares(file: Path) -> tuple[Share, ...]:
    """What a limits page says; nothing where it does not read, which is not what anybody was granted."""
    for _ in range(_READ_TRIES):
        try:
            page = decode_limits(file.read_bytes())
        except (OSError, BadFormat):
            continue
        return tuple((each.uuid, int(each.milli), each.memory_cap >> 20) for each in page.gpus)
    return ()


def _held(cgroups: Path) -> Iterator[Held]:
    for folder, _, _ in os.walk(cgroups):
        uid = pod_of(folder.encode())
        if uid is not None:
            with suppress(OSError):
                for pid in (Path(folder) / "cgroup.procs").read_text().split():
                    yield from _of_process(uid, Path("/proc", pid))


def _of_process(uid: str, process: Path) -> Iterator[Held]:
    with suppress(OSError):
        mounts = [line.split() for line in (process / "mountinfo").read_text().splitlines()]
        sources = {fields[4]: fields[3] for fields in mounts}
        cards = frozenset(
            int(inside.removeprefix(_CARD).removesuffix(".sock")) for inside in sources if inside.startswith(_CARD)
        )
        if not cards:
            return  # the pod's sandbox
        source = sources.get(_TENANT, "")
        lost = source.endswith("//deleted")
        shares = _shares(process / "root" / _TENANT[1:] / "limits") if source else ()
        name = Path(source.removesuffix("//deleted")).parent.name.removeprefix(".") if source else ""
        yield Held(uid, cards, name, lost, shares)
