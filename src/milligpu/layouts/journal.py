"""The journal of a switch: idempotent steps with what was before each, and how far they got.

The journal is written before a step begins and after it ended. Whoever reads it later does a step that was begun
again, so a program that carries it out may die at any time. Undoing goes backwards over the steps that were begun.
"""

from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum

from milligpu.layouts.spec import OnFailure


class StepKind(StrEnum):
    """What a step does."""

    CORDON = "Cordon"
    """Keep new pods off the nodes of VMs that stop running."""
    DRAIN = "Drain"
    """Evict the pods that are not suspended with their VM."""
    MARK = "MarkSuspended"
    """Say on the nodes that they are suspended, and until when."""
    RELEASE = "Release"
    """Suspend VMs, or power them off: they release their cards."""
    RESHAPE = "Reshape"
    """Give VMs that are off another vGPU profile."""
    ACQUIRE = "Acquire"
    """Resume VMs, or power them on, once the others have released the cards."""
    AWAIT = "AwaitNodes"
    """Wait until the nodes in these VMs answer, with a clock in step."""
    UNCORDON = "Uncordon"
    """Take new pods on these nodes again."""
    CAPACITY = "VerifyCapacity"
    """See that all VMs are as the layout asks."""
    APPLY = "Apply"
    """Write what the layout asks of the nodes' GPUs onto the nodes."""
    VERIFY = "Verify"
    """Wait until the nodes' agents report it."""


class StepState(StrEnum):
    """How far a step got."""

    PENDING = "Pending"
    STARTED = "Started"
    DONE = "Done"
    FAILED = "Failed"
    UNDOING = "Undoing"
    UNDONE = "Undone"


_BEGUN = frozenset({StepState.STARTED, StepState.DONE, StepState.FAILED, StepState.UNDOING})


class SwitchPhase(StrEnum):
    """How far a switch got."""

    SWITCHING = "Switching"
    ROLLING_BACK = "RollingBack"
    DONE = "Done"
    ROLLED_BACK = "RolledBack"
    HELD = "Held"

    @property
    def active(self) -> bool:
        """Whether steps are left to be done or undone."""
        return self in {SwitchPhase.SWITCHING, SwitchPhase.ROLLING_BACK}

    @property
    def failed(self) -> bool:
        return self in {SwitchPhase.ROLLED_BACK, SwitchPhase.HELD}


@dataclass(frozen=True, slots=True)
class SwitchStep:
    """One step; doing it twice is the same as doing it once."""

    kind: StepKind
    targets: tuple[str, ...]
    before: str = ""
    """What the targets had before, to undo it."""
    after: str = ""
    """What they have afterwards."""
    state: StepState = StepState.PENDING
    started: datetime | None = None
    ended: datetime | None = None
    message: str = ""


@dataclass(frozen=True, slots=True)
class NextStep:
    """What to do next."""

    number: int
    step: SwitchStep
    undo: bool


@dataclass(frozen=True, slots=True)
class SwitchJournal:
    """A switch from one layout to another."""

    before: str
    """The layout before; empty the first time."""
    after: str
    why: str
    started: datetime
    deadline: datetime
    steps: tuple[SwitchStep, ...]
    generation: int = 0
    """The generation of the calendar object that asked for it."""
    phase: SwitchPhase = SwitchPhase.SWITCHING
    ended: datetime | None = None
    message: str = ""

    @property
    def progress(self) -> tuple[int, int]:
        """Return how many steps are done, and how many there are; while rolling back, those that are left."""
        return sum(step.state is StepState.DONE for step in self.steps), len(self.steps)

    def next_step(self) -> NextStep | None:
        """Return the step to do or undo; None if the switch has ended."""
        if self.phase is SwitchPhase.SWITCHING:
            for number, step in enumerate(self.steps):
                if step.state is not StepState.DONE:
                    return NextStep(number, step, undo=False)
        if self.phase is SwitchPhase.ROLLING_BACK:
            for number, step in reversed(tuple(enumerate(self.steps))):
                if step.state in _BEGUN:
                    return NextStep(number, step, undo=True)
        return None

    def begin(self, number: int, now: datetime) -> "SwitchJournal":
        """Note that a step is about to be done or undone."""
        undo = self.phase is SwitchPhase.ROLLING_BACK
        step = self.steps[number]
        state = StepState.UNDOING if undo else StepState.STARTED
        # What a step waits for counts from when it was begun, and from when its undoing was.
        started = step.started if step.started is not None and step.state is state else now
        return self._with(number, replace(step, state=state, started=started, ended=None))

    def end(self, number: int, now: datetime, message: str = "") -> "SwitchJournal":
        """Note that the step is done or undone, and with the last one that the switch is."""
        undo = self.phase is SwitchPhase.ROLLING_BACK
        state = StepState.UNDONE if undo else StepState.DONE
        journal = self._with(number, replace(self.steps[number], state=state, ended=now, message=message))
        return journal.settle(now)

    def wait(self, number: int, message: str) -> "SwitchJournal":
        """Note what a step waits for."""
        return self._with(number, replace(self.steps[number], message=message))

    def settle(self, now: datetime) -> "SwitchJournal":
        """End the switch if no step is left."""
        if not self.phase.active or self.next_step() is not None:
            return self
        phase = SwitchPhase.DONE if self.phase is SwitchPhase.SWITCHING else SwitchPhase.ROLLED_BACK
        return replace(self, phase=phase, ended=now)

    def fail(self, number: int, message: str, now: datetime, policy: OnFailure) -> "SwitchJournal":
        """Note that a step failed for good, and roll back or hold. A step that cannot be undone is held."""
        failed = replace(self.steps[number], state=StepState.FAILED, ended=now, message=message)
        journal = replace(self._with(number, failed), message=message)
        if policy is OnFailure.HOLD or self.phase is SwitchPhase.ROLLING_BACK:
            return replace(journal, phase=SwitchPhase.HELD, ended=now)
        return replace(journal, phase=SwitchPhase.ROLLING_BACK).settle(now)

    def refuse(self, message: str, now: datetime) -> "SwitchJournal":
        """Note that the switch cannot begin."""
        return replace(self, phase=SwitchPhase.ROLLED_BACK, ended=now, message=message)

    def abort(self, message: str, now: datetime) -> "SwitchJournal":
        """Undo what was done so far, because somebody asked for it."""
        if self.phase is not SwitchPhase.SWITCHING:
            return self
        return replace(self, phase=SwitchPhase.ROLLING_BACK, message=message).settle(now)

    def _with(self, number: int, step: SwitchStep) -> "SwitchJournal":
        return replace(self, steps=(*self.steps[:number], step, *self.steps[number + 1 :]))
