"""`status` of a `GpuCalendar`: the present layout, the journal, past switches and the next ones.

The journal is kept here, so it is read strictly: a status that cannot be read counts as none, and the next switch
starts from what the nodes have.
"""

from datetime import UTC, datetime

import msgspec

from milligpu.layouts.calendar import LayoutSwitch
from milligpu.layouts.decide import CalendarState, PastSwitch
from milligpu.layouts.journal import StepKind, StepState, SwitchJournal, SwitchPhase, SwitchStep
from milligpu.model.errors import BadFormat
from milligpu.wire.kubernetes import KubeCondition


class StepStatus(msgspec.Struct, frozen=True, omit_defaults=True):
    """One of `status.switch.steps`."""

    kind: StepKind
    targets: list[str]
    state: StepState
    before: str = ""
    after: str = ""
    startedAt: datetime | None = None
    endedAt: datetime | None = None
    message: str = ""


class SwitchStatus(msgspec.Struct, frozen=True, omit_defaults=True):
    """`status.switch`: the switch that runs, or the last one."""

    to: str
    phase: SwitchPhase
    startedAt: datetime
    deadline: datetime
    from_: str = msgspec.field(name="from", default="")
    why: str = ""
    steps: list[StepStatus] = []
    generation: int = 0
    endedAt: datetime | None = None
    message: str = ""


class PastSwitchStatus(msgspec.Struct, frozen=True, omit_defaults=True):
    """One of `status.history`."""

    to: str
    phase: SwitchPhase
    startedAt: datetime
    endedAt: datetime
    from_: str = msgspec.field(name="from", default="")
    why: str = ""
    message: str = ""


class NextSwitchStatus(msgspec.Struct, frozen=True, omit_defaults=True):
    """One of `status.next`."""

    at: datetime
    local: str
    to: str
    odd: str = ""


class CalendarStatus(msgspec.Struct, frozen=True, omit_defaults=True):
    """`status` of a `GpuCalendar`."""

    layout: str = ""
    switch: SwitchStatus | None = None
    history: list[PastSwitchStatus] = []
    next: list[NextSwitchStatus] = []
    conditions: list[KubeCondition] = []


def decode_status(text: bytes) -> CalendarStatus:
    """Read a status."""
    try:
        return msgspec.json.decode(text, type=CalendarStatus)
    except msgspec.DecodeError as error:
        raise BadFormat("status of GpuCalendar", str(error)) from None


def state_of(status: CalendarStatus) -> CalendarState:
    """Return what the status remembers."""
    history = tuple(
        PastSwitch(each.from_, each.to, each.why, each.startedAt, each.endedAt, each.phase, each.message)
        for each in status.history
    )
    return CalendarState(status.layout, None if status.switch is None else _journal(status.switch), history)


def _journal(found: SwitchStatus) -> SwitchJournal:
    steps = tuple(
        SwitchStep(
            each.kind,
            tuple(each.targets),
            each.before,
            each.after,
            each.state,
            each.startedAt,
            each.endedAt,
            each.message,
        )
        for each in found.steps
    )
    return SwitchJournal(
        found.from_,
        found.to,
        found.why,
        found.startedAt,
        found.deadline,
        steps,
        found.generation,
        found.phase,
        found.endedAt,
        found.message,
    )


def status_of(state: CalendarState, upcoming: tuple[LayoutSwitch, ...]) -> CalendarStatus:
    """Return the status that says a state, without its conditions."""
    return CalendarStatus(
        state.layout,
        None if state.switch is None else _switch_status(state.switch),
        [
            PastSwitchStatus(
                each.after,
                each.phase,
                _whole(each.started),
                _whole(each.ended),
                each.before,
                each.why,
                each.message,
            )
            for each in state.history
        ],
        [
            NextSwitchStatus(each.at, f"{each.local:%a %Y-%m-%d %H:%M %Z}", each.after, each.odd)
            for each in upcoming
        ],
    )


def _switch_status(journal: SwitchJournal) -> SwitchStatus:
    steps = [
        StepStatus(
            each.kind,
            list(each.targets),
            each.state,
            each.before,
            each.after,
            None if each.started is None else _whole(each.started),
            None if each.ended is None else _whole(each.ended),
            each.message,
        )
        for each in journal.steps
    ]
    return SwitchStatus(
        journal.after,
        journal.phase,
        _whole(journal.started),
        _whole(journal.deadline),
        journal.before,
        journal.why,
        steps,
        journal.generation,
        None if journal.ended is None else _whole(journal.ended),
        journal.message,
    )


def _whole(at: datetime) -> datetime:
    """Kubernetes' times have no fractions of seconds finer than this."""
    return at.astimezone(UTC).replace(microsecond=at.microsecond // 1000 * 1000)
