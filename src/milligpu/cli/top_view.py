"""What `top` shows, for a terminal of any width: GPUs, shares with their processes, what waits, and problems."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, TypeVar

from rich.console import Group, RenderableType
from rich.text import Text

from milligpu.cli.columns import Column, fit_table, wrap_words
from milligpu.cli.tables import show_share, user_name
from milligpu.model.units import BYTES_PER_MIB, WHOLE, show_mib, show_milli
from milligpu.wire.status import GpuStatus, MachineStatus, ProcessUsage, ShareUsage, gpu_utilization

if TYPE_CHECKING:
    from milligpu.status.cluster import ClusterStatus

_T = TypeVar("_T")
_UNKNOWN = "-"
_BAR = 8
_INDENT = 2
_GIB = 1 << 30
# From these fractions on, a bar is yellow, and red.
_MUCH, _ALL = 0.6, 0.9
_STATES = {"ok": "green", "cordoned": "yellow"}
_BRANDS = ("NVIDIA ", "Tesla ")
# A column with less than this of a name is no longer worth its place.
_NAME_MIN = 8


class SortKey(StrEnum):
    """By what GPUs and shares are sorted; the first letter is the key on the keyboard."""

    NAME = "name"
    USE = "use"
    MEMORY = "memory"
    SHARE = "share"


@dataclass(frozen=True, slots=True)
class TopView:
    """How the status is shown."""

    width: int
    sort: SortKey = SortKey.NAME
    processes: bool = False
    wide: bool = False

    def machine(self, status: MachineStatus) -> RenderableType:
        """Show one machine."""
        index = _indices(status.gpus)
        sessions = {each.id: each for each in status.sessions}
        columns = [
            Column("ID", importance=20),
            Column("PID", right=True, importance=3),
            Column("USER", least=4, importance=2),
            Column("GPU"),
            Column("SHARE", right=True),
            Column("MEASURED"),
            Column("MEMORY", right=True),
            *([Column("PRIORITY", right=True, importance=1)] if self.wide else []),
            Column("COMMAND", least=_NAME_MIN, importance=4),
        ]
        rows: list[list[Text]] = []
        for use in self._sorted_shares([use for use in status.shares if use.session in sessions]):
            session = sessions[use.session]
            rows.append(
                [
                    Text(session.id, "bold"),
                    Text(str(session.pid)),
                    Text(user_name(session.uid)),
                    *_use_cells(use, index),
                    *([Text(str(session.priority))] if self.wide else []),
                    Text(" ".join(session.command)),
                ]
            )
            for each in self._processes(status.processes, lambda p, use=use: (p.session, p.gpu) == _of(use)):
                cells = ["", str(each.pid), "", index.get(each.gpu, "?"), ""]
                wide = [Text()] if self.wide else []
                rows.append([*map(_dim, cells), *_process_cells(each), *wide, _dim(f"└ {each.name}")])
        waiting = [
            (f"PID {each.pid} {user_name(each.uid)}: {' '.join(each.command)}", f"{each.request}: {each.message}")
            for each in status.waiting
        ]
        problems = [f"{each.kind}: {each.message}" for each in status.violations]
        parts = [self._gpus(status.gpus, status.shares), self._table(columns, rows)]
        return _stack([*parts, *self._section("WAITING", waiting), *self._problems(status.gpus, problems)])

    def cluster(self, status: "ClusterStatus") -> RenderableType:
        """Show a cluster."""
        index = _indices(status.gpus)
        columns = [
            Column("POD", least=16, middle=True, importance=20),
            Column("CONTAINER", importance=1),
            Column("NODE", middle=True, least=_NAME_MIN, importance=3),
            Column("GPU"),
            Column("SHARE", right=True),
            Column("MEASURED"),
            Column("MEMORY", right=True),
        ]
        rows: list[list[Text]] = []
        for use in self._sorted_shares(status.shares):
            name = f"{use.namespace}/{use.pod}" if use.pod else f"session {use.session}"
            rows.append(
                [
                    Text(name, "bold"),
                    Text(use.container or _UNKNOWN),
                    Text(use.node),
                    *_use_cells(use, index),
                ]
            )
            for each in self._processes(status.processes, lambda p, use=use: _belongs(p, use)):
                cells = [f"└ {each.pid} {each.name}", "", "", index.get(each.gpu, "?"), ""]
                rows.append([*map(_dim, cells), *_process_cells(each)])
        waiting = [(f"{each.namespace}/{each.pod}", each.message) for each in status.waiting]
        parts = [self._gpus(status.gpus, status.shares), self._table(columns, rows)]
        return _stack([*parts, *self._section("WAITING", waiting), *self._problems(status.gpus, status.problems)])

    def _table(self, columns: Sequence[Column], rows: Sequence[Sequence[Text]]) -> RenderableType | None:
        return Group(*fit_table(columns, rows, self.width)) if rows else None

    def _gpus(self, gpus: Sequence[GpuStatus], shares: Sequence[ShareUsage]) -> RenderableType:
        if not gpus:
            return Text("no GPU found", "yellow")
        cluster = any(gpu.node for gpu in gpus)
        columns = [
            *([Column("NODE", middle=True, least=_NAME_MIN)] if cluster else []),
            Column("GPU"),
            Column("MODEL", least=_NAME_MIN, importance=3),
            Column("BUSY"),
            Column("MEMORY", right=True),
            Column("FREE", right=True),
            Column("TEMP", right=True, importance=4),
            Column("POWER", right=True, importance=4),
            Column("POLICY", importance=2),
            Column("STATE"),
        ]
        found: list[tuple[GpuStatus, float | None]] = []
        for gpu in gpus:
            busy = gpu_utilization(shares, gpu.uuid, gpu.milli)
            found.append((gpu, gpu.utilization if busy is None else busy))
        rows = [
            [
                *([Text(gpu.node)] if cluster else []),
                Text(str(gpu.index), "bold"),
                Text(_short(gpu.model)),
                _bar(busy),
                _memory(gpu.memory_used, gpu.mib),
                Text(f"{show_milli(max(0, gpu.free_milli))} {_size(max(0, gpu.free_mib))}"),
                Text(_UNKNOWN if gpu.temperature is None else f"{gpu.temperature}°C"),
                Text(_UNKNOWN if gpu.power is None else f"{gpu.power:.0f} W"),
                Text(str(gpu.policy or _UNKNOWN)),
                Text(gpu.state, _STATES.get(gpu.state, "bold red")),
            ]
            for gpu, busy in self._sorted(found, _GPU_KEYS)
        ]
        return Group(*fit_table(columns, rows, self.width))

    def _section(self, title: str, items: Sequence[tuple[str, str]]) -> list[RenderableType]:
        """A name on one line and its sentence below, which may take several."""
        lines = [Text(title, "bold")]
        for name, sentence in items:
            lines.append(Text(name, "yellow", no_wrap=True, overflow="ellipsis"))
            wrapped = wrap_words(sentence, self.width - _INDENT).splitlines()
            lines += [Text(" " * _INDENT + line, no_wrap=True) for line in wrapped]
        return [Group(*lines)] if items else []

    def _problems(self, gpus: Sequence[GpuStatus], others: Sequence[str]) -> list[RenderableType]:
        bad = [(f"{gpu.node} GPU {gpu.index}".strip(), f"{gpu.state}: {gpu.message}") for gpu in _bad(gpus)]
        problems = [*(f"{name} is {what}" for name, what in bad), *others]
        lines = [Text(line, "red") for each in problems for line in wrap_words(each, self.width).splitlines()]
        return [Group(Text("PROBLEMS", "bold"), *lines)] if problems else []

    def _sorted_shares(self, shares: Sequence[ShareUsage]) -> list[ShareUsage]:
        return self._sorted(shares, _SHARE_KEYS)

    def _sorted(self, items: Iterable[_T], keys: Mapping[SortKey, Callable[[_T], float]]) -> list[_T]:
        """Sort the largest first; sorted by name, items keep their order."""
        found = list(items)
        return found if self.sort not in keys else sorted(found, key=keys[self.sort], reverse=True)

    def _processes(
        self, processes: Iterable[ProcessUsage], owned: Callable[[ProcessUsage], bool]
    ) -> list[ProcessUsage]:
        if not self.processes:
            return []
        return sorted((each for each in processes if owned(each)), key=lambda each: -(each.memory or 0))


_SHARE_KEYS: Mapping[SortKey, Callable[[ShareUsage], float]] = {
    SortKey.USE: lambda use: use.utilization or 0.0,
    SortKey.MEMORY: lambda use: use.memory_used or 0,
    SortKey.SHARE: lambda use: WHOLE if use.whole else use.milli,
}
_GPU_KEYS: Mapping[SortKey, Callable[[tuple[GpuStatus, float | None]], float]] = {
    SortKey.USE: lambda each: each[1] or 0.0,
    SortKey.MEMORY: lambda each: each[0].memory_used or 0,
    SortKey.SHARE: lambda each: each[0].milli - each[0].free_milli,
}


def _use_cells(use: ShareUsage, index: Mapping[str, str]) -> list[Text]:
    measured = _bar(use.utilization, (use.limit or use.milli or WHOLE) / WHOLE)
    if use.waiting:
        measured.append(" waits", "magenta")
    memory = _memory(use.memory_used, use.mib) if use.mib else Text(_UNKNOWN)
    return [Text(index.get(use.gpu, "?")), Text(show_share(use)), measured, memory]


def _process_cells(process: ProcessUsage) -> list[Text]:
    busy = _UNKNOWN if process.utilization is None else f"{process.utilization:>{_BAR + 5}.0%}"
    memory = _UNKNOWN if process.memory is None else _gib(process.memory)
    return [_dim(busy), _dim(memory)]


def _of(use: ShareUsage) -> tuple[str, str]:
    return use.session, use.gpu


def _belongs(process: ProcessUsage, use: ShareUsage) -> bool:
    mine = (
        process.session == use.session
        if use.session
        else (process.namespace, process.pod) == (use.namespace, use.pod)
    )
    return mine and process.gpu == use.gpu


def _bar(fraction: float | None, limit: float = 1.0) -> Text:
    """A bar and the fraction of the GPU's time in percent; the color says how near it is to the limit."""
    if fraction is None:
        return Text(_UNKNOWN, "dim")
    full = min(_BAR, round(fraction * _BAR))
    part = fraction / limit
    color = "red" if part >= _ALL else "yellow" if part >= _MUCH else "green"
    return Text.assemble(("█" * full, color), ("░" * (_BAR - full), "dim"), (f"{fraction:5.0%}", color))


def _memory(used: int | None, mib: int) -> Text:
    if used is None:
        return Text(f"{_UNKNOWN}/{_size(mib)}")
    part = used / (mib * BYTES_PER_MIB)
    color = "red" if part >= _ALL else "yellow" if part >= _MUCH else ""
    return Text(f"{_gib(used)}/{_size(mib)}", color)


def _size(mib: int) -> str:
    return show_mib(mib) if mib % 1024 == 0 else _gib(mib * BYTES_PER_MIB)


def _gib(size: int) -> str:
    return f"{size / _GIB:.1f}Gi" if size >= _GIB else f"{round(size / BYTES_PER_MIB)}Mi"


def _short(model: str) -> str:
    for brand in _BRANDS:
        model = model.removeprefix(brand)
    return model


def _dim(text: str) -> Text:
    return Text(text, "dim")


def _bad(gpus: Sequence[GpuStatus]) -> list[GpuStatus]:
    """GPUs with a message; for a node without its agent, the status has the message once."""
    return [gpu for gpu in gpus if gpu.message and gpu.state != "no-agent"]


def _stack(parts: Sequence[RenderableType | None]) -> Group:
    lines: list[RenderableType] = []
    for part in parts:
        if part is not None:
            lines += [Text(), part] if lines else [part]
    return Group(*lines)


def _indices(gpus: Sequence[GpuStatus]) -> Mapping[str, str]:
    return {gpu.uuid: str(gpu.index) for gpu in gpus}
