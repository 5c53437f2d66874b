"""The tables of `ps` and `top`: this machine's GPUs, who holds what of them, who waits."""

import os
import pwd
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import cast

import msgspec

from milligpu.agent.client import Client
from milligpu.agent.protocol import Ask, State, Use
from milligpu.model.errors import Unavailable
from milligpu.model.units import WHOLE, show_mib, show_milli

_UNKNOWN = "-"


@dataclass(frozen=True, slots=True)
class View:
    """A table ready to be shown."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    right: Sequence[str] = ()


def ask_state() -> State:
    """How this machine stands."""
    answer = Client(os.environ).ask(Ask())
    if not isinstance(answer, State):
        raise Unavailable("the agent gave another answer than asked for")
    return answer


def as_data(state: State) -> dict[str, object]:
    """The same for programs."""
    return {field: _plain(getattr(state, field)) for field in state.__struct_fields__}


def _plain(value: object) -> object:
    if isinstance(value, msgspec.Struct):
        return {field: _plain(getattr(value, field)) for field in value.__struct_fields__}
    return [_plain(each) for each in cast("list[object]", value)] if isinstance(value, list) else value


def gpus(state: State) -> View:
    """A row for each GPU."""
    rows = [
        [
            str(card.index),
            card.model,
            card.uuid,
            show_milli(card.free_milli),
            show_mib(card.free_mib),
            measured(
                _sum(use.measured for session in state.sessions for use in session.uses if use.gpu == card.uuid)
            ),
            used(card.used_mib, card.mib),
            _UNKNOWN if card.policy is None else str(card.policy),
        ]
        for card in state.gpus
    ]
    columns = ["GPU", "MODEL", "UUID", "FREE", "FREE MEMORY", "BUSY", "MEMORY", "POLICY"]
    return View(columns, rows, ["FREE", "FREE MEMORY", "BUSY", "MEMORY"])


def sessions(state: State, *, wide: bool = False) -> View:
    """A row for each session and GPU of it."""
    index = {card.uuid: str(card.index) for card in state.gpus}
    rows = [
        [
            session.id,
            str(session.pid),
            _user(session.uid),
            index.get(use.gpu, "?"),
            _share(use),
            measured(use.measured),
            used(use.used_mib, use.mib),
            *([str(session.policy), str(session.priority)] if wide else []),
            " ".join(session.command),
        ]
        for session in state.sessions
        for use in session.uses
    ]
    extra = ["POLICY", "PRIORITY"] if wide else []
    columns = ["ID", "PID", "USER", "GPU", "SHARE", "MEASURED", "MEMORY", *extra, "COMMAND"]
    return View(columns, rows, ["PID", "SHARE", "MEASURED", "MEMORY", "PRIORITY"])


def waiting(state: State) -> View:
    """A row for each command that waits."""
    rows = [
        [
            str(each.pid),
            _user(each.uid),
            each.asks,
            each.reason + (f"; behind {each.behind[-1]}" if each.behind else ""),
            " ".join(each.command),
        ]
        for each in state.waiting
    ]
    return View(["WAITING", "USER", "FOR", "WHY", "COMMAND"], rows)


def outside(state: State) -> View:
    """A row for each whom the audit found."""
    rows = [
        [str(each.offence), each.session or _UNKNOWN, _UNKNOWN if each.pid is None else str(each.pid), each.detail]
        for each in state.outside
    ]
    return View(["OUTSIDE", "ID", "PID", "WHAT"], rows)


def _share(use: Use) -> str:
    if use.whole:
        return "whole"
    return show_milli(use.milli) + (f" to {show_milli(use.limit)}" if use.limit not in (use.milli, WHOLE) else "")


def measured(part: float | None) -> str:
    """A part of a GPU's time."""
    return _UNKNOWN if part is None else f"{part:.2f}"


def _sum(parts: Iterable[float | None]) -> float | None:
    known = [part for part in parts if part is not None]
    return sum(known) if known else None


def used(mib: float | None, of: int) -> str:
    """Memory against what there is of it."""
    return f"{_UNKNOWN if mib is None else round(mib)} / {of} MiB"


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
