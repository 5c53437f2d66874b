"""Calendars in the leader: reads the objects, decides, does a step, writes the journal into the object's status.

All that is remembered is in the objects, so a leader that dies at any point leaves the rest to the next one.
Without a calendar in the cluster nothing is decided, and nothing is read but the two lists.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

import structlog

from milligpu.hypervisors.host import MachineHost, MachineRefused
from milligpu.kube.api import ApiClient
from milligpu.kube.events import EventRecorder, ObjectEvent
from milligpu.kube.watch import Watch, follow_all
from milligpu.layouts.actuator import ActuatorOfEachKind, LayoutActuator, StepFailed
from milligpu.layouts.carry_out import Progress, carry_out
from milligpu.layouts.decide import CalendarCondition, CalendarState, calendar_condition, decide, machines_needed
from milligpu.layouts.journal import StepKind, SwitchPhase
from milligpu.layouts.layout import CardLayout
from milligpu.layouts.plan import LayoutNode, contested, nodes_of, stale_nodes
from milligpu.layouts.spec import CalendarSpec
from milligpu.model import names
from milligpu.model.errors import Unavailable
from milligpu.model.machines import Machine
from milligpu.model.reasons import CalendarReason, EventReason
from milligpu.scheduler.card_actuator import CardActuator, layout_node
from milligpu.scheduler.layout_objects import (
    DecidedCalendar,
    FoundCalendar,
    read_calendar,
    read_layouts,
    write_calendar,
    write_layout_conditions,
)
from milligpu.scheduler.machine_actuator import MACHINE_STEPS, MachineActuator
from milligpu.scheduler.node_actuator import NODE_STEPS, NodeActuator
from milligpu.wait import wait_for_event
from milligpu.wire.kubernetes import KubeNode, RawObject

# A step that waits for nodes is looked at again at least this often; a change of a node wakes it at once.
_LOOK_S = 1.0
# Also without any change, so that a clock that was set is noticed.
_IDLE_S = 30.0
# Long enough not to flood an API server that refuses the write.
_RETRY_S = 2.0

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class _Surroundings:
    """What a calendar is decided with."""

    layouts: Mapping[str, CardLayout]
    problems: Mapping[str, str]
    """Of layouts that cannot be read."""
    owned: Mapping[str, list[LayoutNode]]
    """The nodes of each calendar."""
    taken: Mapping[str, Mapping[str, str]]
    """Nodes that a calendar selects and another one has."""
    actuator: LayoutActuator


class LayoutController:
    """Follows layouts and calendars and keeps the nodes in the layout that holds."""

    def __init__(
        self,
        api: ApiClient,
        events: EventRecorder,
        valid: Callable[[], bool],
        *,
        hypervisor: MachineHost | None = None,
        wall: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """`valid` says whether this instance still leads; `wall` is the time of day in UTC."""
        self._machines = None if hypervisor is None else MachineActuator(hypervisor)
        self._marks = NodeActuator(api, wall)
        self._api = api
        self._events = events
        self._valid = valid
        self._wall = wall
        self._layouts: list[RawObject] | None = None
        self._calendars: dict[str, RawObject] | None = None
        self._nodes: dict[str, KubeNode] = {}
        self._read: dict[str, tuple[KubeNode, LayoutNode]] = {}
        self._wake = asyncio.Event()

    # -- what the cluster has ----------------------------------------------------------------------------------

    def put_node(self, node: KubeNode) -> None:
        """Take over a node; it is read only when a calendar needs it."""
        known = self._nodes.get(node.metadata.name)
        self._nodes[node.metadata.name] = node
        if self._calendars and (known is None or known.metadata.annotations != node.metadata.annotations):
            self._wake.set()

    def drop_node(self, name: str) -> None:
        """Forget a node that is gone."""
        self._nodes.pop(name, None)
        self._read.pop(name, None)

    def _layout_nodes(self) -> dict[str, LayoutNode]:
        for name, node in self._nodes.items():
            known = self._read.get(name)
            if known is None or known[0] is not node:
                self._read[name] = node, layout_node(node)
        return {name: found for name, (_, found) in self._read.items()}

    async def run(self) -> None:
        """Follow and switch, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow_layouts())
            tasks.create_task(self._follow_calendars())
            tasks.create_task(self._work())

    async def _follow_layouts(self) -> None:
        async for objects in follow_all(Watch(self._api, names.LAYOUTS_PATH, RawObject, optional=True)):
            self._layouts = objects
            self._wake.set()

    async def _follow_calendars(self) -> None:
        async for objects in follow_all(Watch(self._api, names.CALENDARS_PATH, RawObject, optional=True)):
            self._calendars = {each.metadata.uid: each for each in objects}
            self._wake.set()

    # -- work --------------------------------------------------------------------------------------------------

    async def _work(self) -> None:
        wait_s = _IDLE_S
        while True:
            await wait_for_event(self._wake, wait_s)
            self._wake.clear()
            try:
                wait_s = await self._pass() if self._valid() else _RETRY_S
            except (Unavailable, StepFailed) as error:
                log.warning("Could not follow calendars", error=error.message)
                wait_s = _RETRY_S

    async def _pass(self) -> float:
        """Do what is due for every calendar; return for how long nothing is due."""
        if self._layouts is None or self._calendars is None:
            return _IDLE_S
        now = self._wall()
        layouts, problems = read_layouts(self._layouts)
        await write_layout_conditions(self._api, self._layouts, problems, now)
        calendars = [read_calendar(each, now) for each in self._calendars.values()]
        if not calendars and not any(names.LAYOUT in (n.metadata.annotations or {}) for n in self._nodes.values()):
            return _IDLE_S
        specs = [each.spec for each in calendars if each.spec is not None]
        nodes = self._layout_nodes()
        cards = CardActuator(self._api, nodes)
        # A calendar that cannot be read may still have its nodes: the last good layout stays.
        if len(specs) == len(calendars):
            for name in stale_nodes(specs, nodes.values()):
                await cards.write(name, "")
        owned, taken = nodes_of(specs, nodes.values()), contested(specs, nodes.values())
        around = _Surroundings(layouts, problems, owned, taken, self._actuator(cards, layouts))
        waits = [await self._one(each, around) for each in calendars]
        return min([_IDLE_S, *waits])

    def _actuator(self, cards: CardActuator, layouts: Mapping[str, CardLayout]) -> LayoutActuator:
        actuators: dict[StepKind, LayoutActuator] = {StepKind.APPLY: cards, StepKind.VERIFY: cards}
        actuators |= dict.fromkeys(NODE_STEPS, self._marks)
        if self._machines is not None:
            self._machines.layouts = layouts
            actuators |= dict.fromkeys(MACHINE_STEPS, self._machines)
        return ActuatorOfEachKind(actuators)

    async def _look(self, needed: tuple[str, ...]) -> tuple[Mapping[str, Machine] | None, str]:
        """Return the VMs that a switch needs, or why they are not known."""
        if not needed:
            return None, ""
        if self._machines is None:
            return None, "the layout has VMs, and the scheduler service has no hypervisor (--vsphere)"
        try:
            return await self._machines.look(needed), ""
        except (Unavailable, MachineRefused) as error:
            return None, error.message

    async def _one(self, found: FoundCalendar, around: _Surroundings) -> float:
        """Do what is due for one calendar; return for how long nothing is due."""
        spec, state = found.spec, found.state
        if spec is None:
            problem = CalendarCondition(CalendarReason.INVALID, found.problem)
            return _IDLE_S if await self._write(found, DecidedCalendar(None, state, problem)) else _RETRY_S

        generation = found.object.metadata.generation
        needed = machines_needed(spec, generation, state, around.layouts, self._wall())
        machines, unknown = await self._look(needed)

        async def write(state: CalendarState) -> bool:
            taken = around.taken.get(spec.name, {})
            condition = calendar_condition(spec, state, around.layouts, around.problems, taken, unknown=unknown)
            written = await self._write(found, DecidedCalendar(spec, state, condition))
            return written and self._valid()

        decision = decide(
            spec,
            generation,
            state,
            layouts=around.layouts,
            nodes=around.owned[spec.name],
            now=self._wall(),
            machines=machines,
        )
        state, progress = await carry_out(spec, decision, around.actuator, write, self._wall)
        if progress is Progress.NOT_WRITTEN:
            return _RETRY_S
        if progress is Progress.WAITING:
            return _LOOK_S
        if state.switch != found.state.switch:
            self._report(found.object, state)
        return _RETRY_S if unknown else _until_due(spec, self._wall())

    async def _write(self, found: FoundCalendar, decided: DecidedCalendar) -> bool:
        """Write the status; False if the calendar is gone or asks for something else by now."""
        uid = found.object.metadata.uid
        present = (self._calendars or {}).get(uid)
        if present is None or present.metadata.generation != found.object.metadata.generation:
            return False
        written = await write_calendar(self._api, present, decided, self._wall())
        if written is not None and self._calendars is not None and uid in self._calendars:
            self._calendars[uid] = written
        return written is not None

    def _report(self, found: RawObject, state: CalendarState) -> None:
        journal = state.switch
        if journal is None or journal.phase.active or journal.before == journal.after:
            return
        meta, good = found.metadata, journal.phase is SwitchPhase.DONE
        reason = EventReason.LAYOUT_SWITCHED if good else EventReason.LAYOUT_FAILED
        message = f"{journal.before or 'no layout'} to {journal.after} ({journal.why}): {journal.phase}"
        message += f": {journal.message}" if journal.message else ""
        self._events.record(ObjectEvent("GpuCalendar", meta.name, meta.uid, reason, "Switch", message, normal=good))
        say = log.info if good else log.warning
        say("Switched layout" if good else "Could not switch layout", calendar=meta.name, message=message)


def _until_due(spec: CalendarSpec, now: datetime) -> float:
    """Return the seconds until a switch is due."""
    due = [each.at for each in spec.calendar.next_switches(now, 1)]
    if spec.override is not None and spec.override.until is not None and spec.override.until > now:
        due.append(spec.override.until)
    return min(((each - now).total_seconds() for each in due), default=_IDLE_S)
