"""The steps by which worker VMs get from what they are to what a layout asks.

Those that stop running release their cards first, and only then others resume. Every step can be undone, so a
change that would lose what a suspended VM holds is refused before anything happens.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime

from milligpu.layouts.calendar import SHOWN_SWITCHES, LayoutCalendar
from milligpu.layouts.journal import StepKind, SwitchStep
from milligpu.layouts.layout import CardLayout, MachineRule, PodTreatment
from milligpu.model.machines import Machine, MachineState


@dataclass(frozen=True, slots=True)
class MachineChange:
    """What a switch does to one VM."""

    rule: MachineRule
    before: Machine

    @property
    def stops(self) -> bool:
        """Whether the VM stops running, if only to get another profile."""
        running = self.before.state is MachineState.RUNNING
        return running and (self.rule.state is not MachineState.RUNNING or self.reshapes)

    @property
    def released(self) -> MachineState:
        """Its state once it has released the card."""
        return MachineState.OFF if self.reshapes else self.rule.state

    @property
    def reshapes(self) -> bool:
        return self.rule.profile not in {"", self.before.profile}

    @property
    def resumes(self) -> bool:
        """Whether the VM runs afterwards, and does not run all the time."""
        return self.rule.state is MachineState.RUNNING and (
            self.reshapes or self.before.state is not MachineState.RUNNING
        )

    @property
    def pods(self) -> PodTreatment:
        """What becomes of its pods: nothing is kept in a VM that is powered off."""
        return self.rule.pods if self.released is MachineState.SUSPENDED else PodTreatment.DRAIN

    @property
    def problem(self) -> str:
        """Why it cannot be done, with the fix; empty if it can."""
        found, rule = self.before, self.rule
        if found.state is MachineState.SUSPENDED and (self.reshapes or rule.state is MachineState.OFF):
            what = f"get profile {rule.profile}" if self.reshapes else "be powered off"
            return f"{rule.name} is suspended, and to {what} would lose what it holds: resume it first"
        if self.reshapes and not found.profile:
            return f"{rule.name} has no vGPU whose profile could change: give it one first"
        if self.reshapes and rule.state is MachineState.SUSPENDED:
            return (
                f"{rule.name} has profile {found.profile}, and a VM with another one is not suspended: "
                f"ask for state off, or leave profile {rule.profile} out"
            )
        if self.stops and self.released is MachineState.SUSPENDED and not found.suspends:
            return (
                f"{rule.name} cannot be suspended with profile {found.profile}: ask for state off with pods drain"
            )
        return ""


@dataclass(frozen=True, slots=True)
class MachinePlan:
    """How VMs change, and what keeps them from it."""

    changes: tuple[MachineChange, ...] = ()
    problems: tuple[str, ...] = ()
    """With one of these, nothing is begun."""


def plan_machines(layout: CardLayout, found: Mapping[str, Machine], *, only_found: bool = False) -> MachinePlan:
    """Return what becomes of each VM that is not as the layout asks; with `only_found`, of those that are given."""
    missing = (
        ()
        if only_found
        else tuple(f"VM {each.name} does not exist" for each in layout.machines if each.name not in found)
    )
    changes = tuple(
        MachineChange(each, found[each.name])
        for each in layout.machines
        if each.name in found and not each.satisfied_by(found[each.name])
    )
    return MachinePlan(changes, (*missing, *(each.problem for each in changes if each.problem)))


def machine_steps(plan: MachinePlan, layout: CardLayout, until: Callable[[str], str]) -> tuple[SwitchStep, ...]:
    """Return the steps of a plan; `until` says of a node when it resumes."""
    stop = [each for each in plan.changes if each.stops]
    start = [each for each in plan.changes if each.resumes]
    reshape = [each for each in plan.changes if each.reshapes]

    def node(change: MachineChange) -> str:
        return change.rule.node

    def name(change: MachineChange) -> str:
        return change.rule.name

    def steps() -> Iterator[SwitchStep]:
        yield from _grouped(StepKind.CORDON, stop, node, lambda _: ("", ""))
        yield from _grouped(StepKind.DRAIN, stop, node, lambda each: ("", str(each.pods)))
        yield from _grouped(StepKind.MARK, stop, node, lambda each: ("", until(each.rule.node)))
        yield from _grouped(StepKind.RELEASE, stop, name, lambda each: (MachineState.RUNNING, each.released))
        yield from _grouped(StepKind.RESHAPE, reshape, name, lambda each: (each.before.profile, each.rule.profile))
        yield from _grouped(
            StepKind.ACQUIRE,
            start,
            name,
            lambda each: (each.released if each.stops else each.before.state, MachineState.RUNNING),
        )
        yield from _grouped(StepKind.AWAIT, start, node, lambda _: ("", ""))
        yield from _grouped(StepKind.UNCORDON, start, node, lambda _: ("", ""))
        if plan.changes:
            yield SwitchStep(StepKind.CAPACITY, tuple(each.name for each in layout.machines), "", layout.name)

    return tuple(steps())


def _grouped(
    kind: StepKind,
    changes: Iterable[MachineChange],
    target: Callable[[MachineChange], str],
    values: Callable[[MachineChange], tuple[str, str]],
) -> Iterator[SwitchStep]:
    groups: dict[tuple[str, str], list[str]] = {}
    for each in changes:
        before, after = values(each)
        groups.setdefault((str(before), str(after)), []).append(target(each))
    for (before, after), targets in groups.items():
        yield SwitchStep(kind, tuple(targets), before, after)


def resumes_at(node: str, calendar: LayoutCalendar, layouts: Mapping[str, CardLayout], now: datetime) -> str:
    """Say when the VM of a node runs again by the calendar; empty if it does not within the next switches."""
    for switch in calendar.next_switches(now, SHOWN_SWITCHES):
        layout = layouts.get(switch.after)
        rules = () if layout is None else layout.machines
        if any(each.node == node and each.state is MachineState.RUNNING for each in rules):
            day = "" if switch.local.date() == now.astimezone(switch.zone).date() else f"{switch.local:%a} "
            return f"resumes at {day}{switch.local:%H:%M} ({switch.at:%Y-%m-%dT%H:%M:%SZ})"
    return ""
