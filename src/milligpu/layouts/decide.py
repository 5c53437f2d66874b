"""What a calendar's switch needs now: begin, do or undo a step, or nothing."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from milligpu.layouts.journal import NextStep, SwitchJournal, SwitchPhase
from milligpu.layouts.layout import CardLayout
from milligpu.layouts.machine_plan import machine_steps, plan_machines, resumes_at
from milligpu.layouts.plan import LayoutNode, plan_switch
from milligpu.layouts.spec import CalendarSpec
from milligpu.model.machines import Machine
from milligpu.model.reasons import CalendarReason

HISTORY_MAX = 20


@dataclass(frozen=True, slots=True)
class PastSwitch:
    """A switch that has ended."""

    before: str
    after: str
    why: str
    started: datetime
    ended: datetime
    phase: SwitchPhase
    message: str = ""

    @property
    def seconds(self) -> float:
        return (self.ended - self.started).total_seconds()


@dataclass(frozen=True, slots=True)
class CalendarState:
    """What the status of a calendar remembers."""

    layout: str = ""
    """The layout that holds; empty before the first switch has ended."""
    switch: SwitchJournal | None = None
    """The switch that runs, or the last one."""
    history: tuple[PastSwitch, ...] = ()
    """Switches that ended, the latest first."""


@dataclass(frozen=True, slots=True)
class LayoutDecision:
    """What to do for one calendar: write this state, then do the step."""

    state: CalendarState
    step: NextStep | None = None


def decide(
    spec: CalendarSpec,
    generation: int,
    state: CalendarState,
    *,
    layouts: Mapping[str, CardLayout],
    nodes: Sequence[LayoutNode],
    now: datetime,
    machines: Mapping[str, Machine] | None = None,
) -> LayoutDecision:
    """Return the state that the calendar should have now, and the step to do next.

    `machines` are the VMs that `machines_needed` named; None if their hypervisor does not answer.
    """
    journal = state.switch
    if journal is not None and journal.phase.active:
        journal = _continued(spec, journal, now)
        state = settled(state, journal)
        return LayoutDecision(state, journal.next_step())
    layout = _due(spec, generation, state, layouts, now)
    moves = layout is not None and _moves_machines(state, layout)
    if layout is None or (moves and machines is None):
        return LayoutDecision(state)
    cards = plan_switch(layout, spec.name, nodes)
    plan = plan_machines(layout, machines if moves and machines is not None else {}, only_found=not moves)
    vms = machine_steps(plan, layout, lambda node: resumes_at(node, spec.calendar, layouts, now))
    if not cards and not vms and not plan.problems and state.layout == layout.name and not _held(state):
        return LayoutDecision(state)
    why = _why(spec, state, layout.name, now)
    steps = () if plan.problems else (*vms, *cards)
    begun = SwitchJournal(state.layout, layout.name, why, now, now + spec.deadline, steps, generation)
    journal = begun.refuse("; ".join(plan.problems), now) if plan.problems else begun.settle(now)
    state = settled(state, journal)
    return LayoutDecision(state, journal.next_step())


def machines_needed(
    spec: CalendarSpec, generation: int, state: CalendarState, layouts: Mapping[str, CardLayout], now: datetime
) -> tuple[str, ...]:
    """Return the VMs whose present state decides what comes next; none while no switch of VMs is due."""
    if state.switch is not None and state.switch.phase.active:
        return ()
    layout = _due(spec, generation, state, layouts, now)
    found = layout is not None and _moves_machines(state, layout)
    return tuple(each.name for each in layout.machines) if layout is not None and found else ()


def _due(
    spec: CalendarSpec, generation: int, state: CalendarState, layouts: Mapping[str, CardLayout], now: datetime
) -> CardLayout | None:
    """Return the layout that should hold, unless the switch to it was given up."""
    wanted, journal = spec.wanted(now, state.layout), state.switch
    given_up = journal is not None and _given_up(spec, generation, journal, wanted, now)
    return None if given_up else layouts.get(wanted)


def _moves_machines(state: CalendarState, layout: CardLayout) -> bool:
    """Whether VMs are put into their states: on the way to another layout, and after a switch that was held.

    While a layout holds, VMs are left alone: an admin who powers one off means it.
    """
    return bool(layout.machines) and (state.layout != layout.name or _held(state))


def _held(state: CalendarState) -> bool:
    return state.switch is not None and state.switch.phase is SwitchPhase.HELD


def _continued(spec: CalendarSpec, journal: SwitchJournal, now: datetime) -> SwitchJournal:
    """Go on, or back: a person wants the layout before, or the time is over."""
    found = journal.next_step()
    if journal.phase is not SwitchPhase.SWITCHING or found is None:
        return journal.settle(now)
    override = spec.override
    back = override is not None and override.layout == journal.before != journal.after
    if back and spec.wanted(now, "") == journal.before:
        return journal.abort(f"aborted: layout {journal.before} was asked for", now)
    if now >= journal.deadline:
        seconds = int(spec.deadline.total_seconds())
        detail = f": {found.step.message}" if found.step.message else ""
        message = f"{found.step.kind} was not done within {seconds} s{detail}"
        return journal.fail(found.number, message, now, spec.on_failure)
    return journal


def settled(state: CalendarState, journal: SwitchJournal) -> CalendarState:
    """Take over a journal; a switch that just ended becomes history, and its layout the present one."""
    known = state.switch
    state = replace(state, switch=journal)
    if journal.phase.active or journal.ended is None or (known is not None and known == journal):
        return state
    if journal.phase is SwitchPhase.DONE:
        state = replace(state, layout=journal.after)
    if journal.before == journal.after:
        return state
    past = PastSwitch(
        journal.before, journal.after, journal.why, journal.started, journal.ended, journal.phase, journal.message
    )
    return replace(state, history=(past, *state.history)[:HISTORY_MAX])


def _given_up(spec: CalendarSpec, generation: int, journal: SwitchJournal, wanted: str, now: datetime) -> bool:
    """Whether this switch failed and nothing has changed since: no later switch was due, and nobody wrote it."""
    if not journal.phase.failed or journal.generation != generation:
        return False
    due = next(spec.calendar.switches(journal.started), None)
    passed = due is not None and due.at <= now
    # What is held needs a person; the next switch would start from an unknown state.
    return journal.phase is SwitchPhase.HELD or (journal.after == wanted and not passed)


def _why(spec: CalendarSpec, state: CalendarState, wanted: str, now: datetime) -> str:
    if state.layout == wanted:
        return "nodes or layout changed"
    override = spec.override
    if override is not None and override.layout == wanted and (override.until is None or now < override.until):
        return "a person asked for it"
    return "first layout" if not state.layout else "calendar"


@dataclass(frozen=True, slots=True)
class CalendarCondition:
    """The condition `Ready` of a calendar."""

    reason: CalendarReason
    message: str = ""

    @property
    def ready(self) -> bool:
        return self.reason in {CalendarReason.IN_FORCE, CalendarReason.PAUSED}


def calendar_condition(
    spec: CalendarSpec,
    state: CalendarState,
    layouts: Mapping[str, CardLayout],
    problems: Mapping[str, str],
    taken: Mapping[str, str],
    *,
    unknown: str = "",
) -> CalendarCondition:
    """Return whether the calendar is obeyed; `problems` are of layouts that cannot be read, `taken` of nodes.

    `unknown` is why a switch of VMs that is due cannot begin.
    """
    for name in spec.calendar.layouts + ((spec.override.layout,) if spec.override else ()):
        if name in problems:
            return CalendarCondition(CalendarReason.LAYOUT_INVALID, f"layout {name}: {problems[name]}")
        if name not in layouts:
            return CalendarCondition(CalendarReason.LAYOUT_GONE, f"layout {name} does not exist")
    if unknown:
        return CalendarCondition(CalendarReason.HYPERVISOR_AWAY, unknown)
    journal = state.switch
    if journal is not None and journal.phase.failed:
        action = "rolled back" if journal.phase is SwitchPhase.ROLLED_BACK else "held"
        message = f"switch to {journal.after} was {action}: {journal.message}"
        return CalendarCondition(CalendarReason.SWITCH_FAILED, message)
    if journal is not None and journal.phase.active:
        done, all_steps = journal.progress
        message = f"{journal.before or 'no layout'} to {journal.after}: {done} of {all_steps} steps"
        return CalendarCondition(CalendarReason.SWITCHING, message)
    if taken:
        node, owner = next(iter(sorted(taken.items())))
        more = f" and {len(taken) - 1} more" if len(taken) > 1 else ""
        return CalendarCondition(CalendarReason.NODES_TAKEN, f"calendar {owner} has node {node}{more}")
    if spec.paused:
        return CalendarCondition(CalendarReason.PAUSED, f"layout {state.layout} holds until the pause ends")
    return CalendarCondition(CalendarReason.IN_FORCE, f"layout {state.layout}")
