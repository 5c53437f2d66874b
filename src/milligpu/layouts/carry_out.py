"""Carries out a switch, one step after the other: each is written into the journal before it begins."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import datetime
from enum import Enum, auto

from milligpu.layouts.actuator import LayoutActuator, StepFailed
from milligpu.layouts.decide import CalendarState, LayoutDecision, settled
from milligpu.layouts.journal import NextStep
from milligpu.layouts.spec import CalendarSpec
from milligpu.model.errors import Unavailable

Write = Callable[[CalendarState], Awaitable[bool]]
"""Writes the state; False if it may not be written any more."""


class Progress(Enum):
    """How far a switch has come."""

    DONE = auto()
    """Nothing is left to do."""
    WAITING = auto()
    """A step waits for something."""
    NOT_WRITTEN = auto()
    """The state could not be written, so nothing more was done."""


async def carry_out(
    spec: CalendarSpec,
    decision: LayoutDecision,
    actuator: LayoutActuator,
    write: Write,
    now: Callable[[], datetime],
) -> tuple[CalendarState, Progress]:
    """Do or undo steps until one waits or none is left; return the state that was written last."""
    state, step = decision.state, decision.step
    while step is not None:
        assert state.switch is not None
        state = replace(state, switch=state.switch.begin(step.number, now()))
        if not await write(state):
            return state, Progress.NOT_WRITTEN
        state, waits = await _act(spec, state, step, actuator, now)
        if waits:
            return state, Progress.WAITING if await write(state) else Progress.NOT_WRITTEN
        step = state.switch.next_step() if state.switch else None
    return state, Progress.DONE if await write(state) else Progress.NOT_WRITTEN


async def _act(
    spec: CalendarSpec, state: CalendarState, found: NextStep, actuator: LayoutActuator, now: Callable[[], datetime]
) -> tuple[CalendarState, bool]:
    """Do or undo a step; return the state afterwards, and whether the step waits for something."""
    journal = state.switch
    assert journal is not None
    try:
        left = await (actuator.undo(found.step) if found.undo else actuator.do(found.step))
    except StepFailed as error:
        return settled(state, journal.fail(found.number, error.message, now(), spec.on_failure)), False
    except Unavailable as error:
        left = error.message
    if left:
        return replace(state, switch=journal.wait(found.number, left)), True
    return settled(state, journal.end(found.number, now())), False
