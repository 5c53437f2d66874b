"""Switches: planned, cut off at any point, rolled back, held, aborted; and what is left then."""

import asyncio
import random
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from milligpu.layouts.actuator import StepFailed
from milligpu.layouts.carry_out import Progress, carry_out
from milligpu.layouts.decide import CalendarState, calendar_condition, decide
from milligpu.layouts.journal import StepKind, SwitchPhase, SwitchStep
from milligpu.layouts.layout import CardLayout
from milligpu.layouts.plan import LayoutNode, contested, missing_settings, nodes_of, plan_switch, stale_nodes
from milligpu.layouts.spec import CalendarSpec, parse_calendar, parse_layout
from milligpu.layouts.status import CalendarStatus, state_of, status_of
from milligpu.model.errors import BadRequest
from milligpu.model.gpu import Gpu
from milligpu.model.policy import SharePolicy
from milligpu.model.reasons import CalendarReason
from milligpu.model.units import Mib, Milli
from milligpu.wire.gpu_settings import GpuSettings
from milligpu.wire.node_layout import decode_node_layout

MORNING = datetime(2026, 11, 18, 7, tzinfo=UTC)
EVENING = datetime(2026, 11, 18, 20, tzinfo=UTC)


def layout(name: str, *cards: dict[str, Any]) -> CardLayout:
    return parse_layout({"metadata": {"name": name}, "spec": {"cards": list(cards)}})


LAYOUTS = {
    each.name: each
    for each in (
        layout("day", {"policy": "equal"}),
        layout("night", {"policy": "fixed", "nodeSelector": {"pool": "a"}}, {"limit": 500}),
    )
}


def calendar(name: str = "campus", **more: Any) -> CalendarSpec:
    windows = [{"days": ["Mon-Sun"], "from": "07:00", "to": "20:00", "layout": "day"}]
    spec = {"default": "night", "windows": windows, **more}
    return parse_calendar({"metadata": {"name": name}, "spec": spec}, MORNING)


def gpu(uuid: str = "GPU-1", **more: Any) -> Gpu:
    return Gpu(uuid, "Tesla V100-SXM2-16GB", Mib(16384), **more)


def node(name: str, text: str = "", **labels: str) -> LayoutNode:
    return LayoutNode(name, labels, (gpu(f"GPU-{name}"),), text)


class World:
    """Nodes that do what is written on them, and a controller that may die between any two writes."""

    def __init__(self, dice: random.Random, *names: str, kills: float = 0.0) -> None:
        self.nodes = {name: node(name, pool="a" if number % 2 else "b") for number, name in enumerate(names)}
        self.status = b"{}"
        self.generation = 1
        self.broken: set[str] = set()
        self._dice, self._kills = dice, kills

    @property
    def state(self) -> CalendarState:
        return state_of(msgspec.json.decode(self.status, type=CalendarStatus))

    def texts(self) -> dict[str, str]:
        return {name: each.text for name, each in self.nodes.items()}

    def run(self, spec: CalendarSpec, now: datetime, layouts: Mapping[str, CardLayout] = LAYOUTS) -> None:
        """Let controllers run until one has nothing left to do."""
        asyncio.run(self._run(spec, now, layouts))

    async def _run(self, spec: CalendarSpec, now: datetime, layouts: Mapping[str, CardLayout]) -> None:
        for number in range(1000):
            try:
                await self._live(spec, now + timedelta(milliseconds=number), layouts)
            except InterruptedError:
                continue
            return
        raise AssertionError("the switch does not end")

    async def _live(self, spec: CalendarSpec, now: datetime, layouts: Mapping[str, CardLayout]) -> None:
        nodes = list(self.nodes.values())
        decision = decide(spec, self.generation, self.state, layouts=layouts, nodes=nodes, now=now)
        _, progress = await carry_out(spec, decision, self, self._write, lambda: now)
        assert progress is Progress.DONE

    async def do(self, step: SwitchStep) -> str:
        for name in step.targets if step.kind is StepKind.APPLY else ():
            if name in self.broken:
                raise StepFailed(f"{name} is broken")
            self._set(name, step.after)
        return ""

    async def undo(self, step: SwitchStep) -> str:
        for name in step.targets if step.kind is StepKind.APPLY else ():
            self._set(name, step.before)
        return ""

    def _set(self, name: str, text: str) -> None:
        self.nodes[name] = replace(self.nodes[name], text=text)
        self._die()

    async def _write(self, state: CalendarState) -> bool:
        self._die()
        self.status = msgspec.json.encode(status_of(state, ()))
        self._die()
        return True

    def _die(self) -> None:
        if self._dice.random() < self._kills:
            raise InterruptedError


@settings(max_examples=80, deadline=None)
@given(st.integers(0), st.integers(1, 120))
def test_a_controller_killed_anywhere_still_arrives(seed: int, nodes: int) -> None:
    dice = random.Random(seed)
    world = World(dice, *(f"n{number}" for number in range(nodes)), kills=0.02)
    for at, wanted in ((MORNING, "day"), (EVENING, "night")):
        world.run(calendar(), at)
        assert world.state.layout == wanted
        assert not plan_switch(LAYOUTS[wanted], "campus", world.nodes.values())
    assert [each.after for each in world.state.history] == ["night", "day"]


@settings(max_examples=80, deadline=None)
@given(st.integers(0), st.integers(1, 120))
def test_a_switch_that_fails_leaves_what_was_before_wherever_it_is_killed(seed: int, nodes: int) -> None:
    dice = random.Random(seed)
    world = World(dice, *(f"n{number}" for number in range(nodes)), kills=0.02)
    world.run(calendar(), MORNING)
    before = world.texts()
    world.broken = {f"n{dice.randrange(nodes)}"}
    world.run(calendar(), EVENING)
    assert world.state.layout == "day"
    assert world.texts() == before
    assert world.state.switch is not None
    assert world.state.switch.phase is SwitchPhase.ROLLED_BACK
    assert "is broken" in world.state.switch.message


def test_a_failed_switch_is_tried_again_at_the_next_one_or_when_somebody_writes_the_calendar() -> None:
    world = World(random.Random(1), "n1")
    world.run(calendar(), MORNING)
    world.broken = {"n1"}
    world.run(calendar(), EVENING)
    world.broken = set()
    world.run(calendar(), EVENING + timedelta(hours=1))
    assert world.state.layout == "day"
    world.generation += 1
    world.run(calendar(), EVENING + timedelta(hours=2))
    assert world.state.layout == "night"


def test_a_failed_switch_is_tried_again_the_next_evening() -> None:
    world = World(random.Random(1), "n1")
    world.run(calendar(), MORNING)
    world.broken = {"n1"}
    world.run(calendar(), EVENING)
    world.broken = set()
    world.run(calendar(), MORNING + timedelta(days=1))
    assert world.state.layout == "day"
    world.run(calendar(), EVENING + timedelta(days=1))
    assert world.state.layout == "night"


def test_a_held_switch_stays_as_it_is_until_somebody_writes_the_calendar() -> None:
    held = calendar(onFailure="hold")
    world = World(random.Random(1), "n1", "n2")
    world.run(held, MORNING)
    world.broken = {"n2"}
    world.run(held, EVENING)
    texts, world.broken = world.texts(), set()
    world.run(held, EVENING + timedelta(days=3))
    assert world.texts() == texts
    found = calendar_condition(held, world.state, LAYOUTS, {}, {})
    assert found.reason is CalendarReason.SWITCH_FAILED
    assert found.message == "switch to night was held: n2 is broken"
    world.generation += 1
    world.run(held, EVENING + timedelta(days=3))
    assert world.state.layout == "night"


def _half_way() -> tuple[World, CalendarState]:
    world = World(random.Random(1), "n1", "n2")
    world.run(calendar(), MORNING)
    started = decide(
        calendar(), 1, world.state, layouts=LAYOUTS, nodes=list(world.nodes.values()), now=EVENING
    ).state
    assert started.switch is not None
    return world, replace(started, switch=started.switch.begin(0, EVENING))


def test_a_person_aborts_a_switch_by_asking_for_the_layout_before() -> None:
    world, state = _half_way()
    back = calendar(override={"layout": "day"})
    nodes = list(world.nodes.values())
    found = decide(back, 2, state, layouts=LAYOUTS, nodes=nodes, now=EVENING + timedelta(seconds=5))
    assert found.step is not None
    assert found.step.undo
    assert found.state.switch is not None
    assert found.state.switch.message == "aborted: layout day was asked for"


def test_a_switch_that_takes_too_long_is_rolled_back_and_says_what_it_waited_for() -> None:
    world, state = _half_way()
    assert state.switch is not None
    state = replace(state, switch=state.switch.wait(0, "n1 does not answer"))
    late = EVENING + timedelta(minutes=31)
    found = decide(calendar(), 1, state, layouts=LAYOUTS, nodes=list(world.nodes.values()), now=late)
    assert found.state.switch is not None
    assert found.state.switch.phase is SwitchPhase.ROLLING_BACK
    assert found.state.switch.message == "Apply was not done within 1800 s: n1 does not answer"


def test_a_pause_keeps_the_layout_and_an_override_goes_before_it() -> None:
    world = World(random.Random(1), "n1")
    world.run(calendar(), MORNING)
    world.run(calendar(paused=True), EVENING)
    assert world.state.layout == "day"
    until = (EVENING + timedelta(hours=1)).isoformat()
    chosen = calendar(paused=True, override={"layout": "night", "until": until})
    world.run(chosen, EVENING)
    assert world.state.layout == "night"
    assert world.state.history[0].why == "a person asked for it"


def test_a_layout_that_does_not_exist_leaves_the_present_one() -> None:
    world = World(random.Random(1), "n1")
    world.run(calendar(), MORNING)
    only_day = {"day": LAYOUTS["day"]}
    world.run(calendar(), EVENING, only_day)
    assert world.state.layout == "day"
    assert calendar_condition(calendar(), world.state, only_day, {}, {}).message == "layout night does not exist"
    bad = calendar_condition(calendar(), world.state, only_day, {"night": "spec.cards"}, {})
    assert bad.reason is CalendarReason.LAYOUT_INVALID


def test_a_node_that_joins_gets_the_present_layout_without_an_entry_in_the_history() -> None:
    world = World(random.Random(1), "n1")
    world.run(calendar(), MORNING)
    world.nodes["n2"] = node("n2")
    world.run(calendar(), MORNING + timedelta(hours=1))
    assert decode_node_layout(world.nodes["n2"].text).layout == "day"
    assert len(world.state.history) == 1


def test_a_node_is_one_calendars_and_another_that_selects_it_says_so() -> None:
    first, second = calendar("a", nodeSelector={"pool": "a"}), calendar("b")
    nodes = [node("n1", pool="a"), node("n2", pool="b")]
    owned = nodes_of([second, first], nodes)
    assert {name: [each.name for each in found] for name, found in owned.items()} == {"a": ["n1"], "b": ["n2"]}
    taken = contested([second, first], nodes)
    assert taken == {"b": {"n1": "a"}}
    found = calendar_condition(second, CalendarState("day"), LAYOUTS, {}, taken["b"])
    assert (found.reason, found.message) == (CalendarReason.NODES_TAKEN, "calendar a has node n1")


def test_nodes_of_a_calendar_that_is_gone_lose_their_layout() -> None:
    world = World(random.Random(1), "n1", "n2")
    world.run(calendar(), MORNING)
    assert stale_nodes([calendar()], world.nodes.values()) == ()
    assert stale_nodes([], world.nodes.values()) == ("n1", "n2")
    assert stale_nodes([calendar(nodeSelector={"pool": "a"})], world.nodes.values()) == ("n1",)


def test_the_agent_has_arrived_when_it_reports_policy_and_limit() -> None:
    wanted = layout("x", {"gpus": "model=V100", "policy": "equal", "limit": 250}).on_node("campus", {})
    before, after = gpu(), gpu(policy=SharePolicy.EQUAL, limit=Milli(250))
    assert missing_settings(replace(node("n"), gpus=(before,)), wanted) == (
        "GPU-1 has policy best-effort, wanted equal",
        "GPU-1 has limit 1000, wanted 250",
    )
    assert missing_settings(replace(node("n"), gpus=(after,)), wanted) == ()
    admins = GpuSettings(policies={"GPU-1": SharePolicy.FIXED})
    fixed = replace(after, policy=SharePolicy.FIXED)
    assert missing_settings(replace(node("n"), gpus=(fixed,), settings=admins), wanted) == ()


@pytest.mark.parametrize(
    ("card", "field"),
    [
        ({"policy": "fair"}, "spec.cards[0].policy"),
        ({"reserved": 1001}, "spec.cards[0].reserved"),
        ({"limit": 0}, "spec.cards[0].limit"),
        ({"gpus": "colour=red", "limit": 1}, "spec.cards[0].gpus"),
        ({"gpus": "model=V100"}, "spec.cards[0]"),
        ({"polices": "fixed"}, "spec.cards[0].polices"),
    ],
)
def test_a_bad_layout_is_refused_with_its_field(card: dict[str, Any], field: str) -> None:
    with pytest.raises(BadRequest) as refused:
        layout("bad", card)
    assert refused.value.field == field
