"""Switches of VMs over a hypervisor in memory and over a simulated vCenter, with faults and kills."""

import asyncio
import random
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from milligpu.hypervisors.host import MachineHost
from milligpu.hypervisors.vsphere import VsphereHost, read_login
from milligpu.layouts.journal import StepKind, SwitchPhase
from milligpu.layouts.layout import CardLayout
from milligpu.layouts.machine_plan import machine_steps, plan_machines, resumes_at
from milligpu.layouts.spec import parse_layout
from milligpu.model.errors import BadRequest
from milligpu.model.machines import Machine, MachineState
from testing.vcenter import SimulatedVcenter, vcenter
from tests.layouts.machine_world import (
    DAY_MACHINES,
    LAYOUTS,
    NIGHT_MACHINES,
    QUARTER,
    START,
    WHOLE,
    WORKERS,
    MachineWorld,
    run_switches,
    wanted_now,
)
from tests.layouts.model_hypervisor import ModelHypervisor

_STATES = {"poweredOn": "running", "poweredOff": "off", "suspended": "suspended"}
_CALLS = ("SuspendVM_Task", "PowerOnVM_Task")


class SimulatedHypervisor:
    """A simulated vCenter, with faults."""

    def __init__(self, simulated: SimulatedVcenter) -> None:
        self._simulated = simulated
        self._passes_away = 0

    def connect(self) -> MachineHost:
        return VsphereHost(partial(read_login, self._simulated.folder))

    def break_something(self, dice: random.Random) -> str:
        kind = dice.choice(("call", "task", "lie", "hang", "slow"))
        method, vm, count = dice.choice(_CALLS), dice.choice((*WORKERS, "w5", "")), dice.randint(1, 5)
        delay_ms = 3_600_000 if kind == "hang" else dice.randint(1, 200)
        self._simulated.fault(method, kind, vm=vm, count=count, delay_ms=delay_ms, message="no space")
        return f"{kind} of {method} on {vm or 'any'} {count} times"

    def heal(self) -> None:
        self._simulated.heal()

    def states(self) -> Mapping[str, str]:
        return {name: _STATES[state] for name, state in self._simulated.states().items()}

    def refused(self) -> list[str]:
        return self._simulated.refused()


@pytest.fixture(scope="module")
def campus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimulatedVcenter]:
    with vcenter(tmp_path_factory.mktemp("vcenter") / "login") as found:
        yield found


@pytest.fixture
def simulated(campus: SimulatedVcenter) -> SimulatedHypervisor:
    campus.heal()
    campus.set(*((name, QUARTER, "poweredOn") for name in WORKERS), ("w5", WHOLE, "suspended"))
    return SimulatedHypervisor(campus)


@settings(max_examples=60, deadline=None)
@given(st.integers(0))
def test_whatever_goes_wrong_one_layout_is_on_and_no_card_is_given_twice(seed: int) -> None:
    asyncio.run(run_switches(ModelHypervisor(), random.Random(seed), 6))


def test_ten_switches_over_a_vcenter_with_faults_and_kills(simulated: SimulatedHypervisor) -> None:
    ended = asyncio.run(run_switches(simulated, random.Random(24), 10))
    assert ended[SwitchPhase.DONE] > 0


@pytest.mark.long
@pytest.mark.alone
@pytest.mark.timeout(3600)
def test_two_hundred_switches_over_a_vcenter_with_faults_and_kills(simulated: SimulatedHypervisor) -> None:
    ended = asyncio.run(run_switches(simulated, random.Random(2024), 200))
    assert min(ended[SwitchPhase.DONE], ended[SwitchPhase.ROLLED_BACK]) > 0


def test_a_vcenter_that_goes_away_in_the_middle_delays_the_switch(
    simulated: SimulatedHypervisor, campus: SimulatedVcenter
) -> None:
    async def run() -> None:
        world = MachineWorld(simulated, random.Random(1), kills=0.0)
        await world.switch(wanted_now("day"))

        def each_pass() -> None:
            if world.passes in {1, 11}:
                campus.away(world.passes == 1)

        state = await world.switch(wanted_now("night"), each_pass)
        assert state.layout == "night"
        assert world.passes >= 11
        assert simulated.states() == NIGHT_MACHINES

    asyncio.run(run())


def test_a_task_that_hangs_is_canceled_when_the_deadline_is_over_and_the_day_goes_on(
    simulated: SimulatedHypervisor, campus: SimulatedVcenter
) -> None:
    async def run() -> None:
        world = MachineWorld(simulated, random.Random(1), kills=0.0)
        await world.switch(wanted_now("day"))
        campus.fault("PowerOnVM_Task", "hang", vm="w5", delay_ms=3_600_000)
        state = await world.switch(wanted_now("night"))
        assert state.switch is not None
        assert state.switch.phase is SwitchPhase.ROLLED_BACK
        late = "Acquire was not done within 60 s: VM w5: task VirtualMachine.powerOn"
        assert state.switch.message.startswith(late)
        assert simulated.states() == DAY_MACHINES

    asyncio.run(run())


def test_a_held_switch_of_vms_is_taken_up_again_when_a_person_asks_for_a_layout(
    simulated: SimulatedHypervisor, campus: SimulatedVcenter
) -> None:
    async def run() -> None:
        world = MachineWorld(simulated, random.Random(1), kills=0.0)
        await world.switch(wanted_now("day"))
        campus.fault("PowerOnVM_Task", "task", vm="w5", count=3, message="no host")
        state = await world.switch(wanted_now("night", onFailure="hold"))
        assert state.switch is not None
        assert (state.switch.phase, state.layout) == (SwitchPhase.HELD, "day")
        assert state.switch.message == "VM w5: GenericVmConfigFault: no host"
        assert (await world.switch(wanted_now("day", onFailure="hold"))).switch != state.switch
        assert simulated.states() == DAY_MACHINES

    asyncio.run(run())


# -- plans -----------------------------------------------------------------------------------------------------


def layout(*machines: dict[str, Any]) -> CardLayout:
    return parse_layout({"metadata": {"name": "x"}, "spec": {"machines": list(machines)}})


def found(**states: str) -> dict[str, Machine]:
    return {name: Machine(name, MachineState(state), QUARTER) for name, state in states.items()}


def test_cards_are_released_before_others_resume_and_nodes_are_marked_around_it() -> None:
    machines = {name: Machine(name, MachineState(state)) for name, state in DAY_MACHINES.items()}
    steps = machine_steps(plan_machines(LAYOUTS["night"], machines), LAYOUTS["night"], lambda node: f"later {node}")
    assert [(each.kind, len(each.targets), each.before, each.after) for each in steps] == [
        (StepKind.CORDON, 4, "", ""),
        (StepKind.DRAIN, 4, "", "keep"),
        *((StepKind.MARK, 1, "", f"later {name}") for name in WORKERS),
        (StepKind.RELEASE, 4, "running", "suspended"),
        (StepKind.ACQUIRE, 1, "suspended", "running"),
        (StepKind.AWAIT, 1, "", ""),
        (StepKind.UNCORDON, 1, "", ""),
        (StepKind.CAPACITY, 5, "", "night"),
    ]


def test_a_vm_with_another_profile_is_emptied_powered_off_changed_and_powered_on() -> None:
    wanted = layout({"name": "w1", "state": "running", "profile": "grid_v100-8q"})
    steps = machine_steps(plan_machines(wanted, found(w1="running")), wanted, lambda _: "")
    assert [(each.kind, each.before, each.after) for each in steps] == [
        (StepKind.CORDON, "", ""),
        (StepKind.DRAIN, "", "drain"),
        (StepKind.MARK, "", ""),
        (StepKind.RELEASE, "running", "off"),
        (StepKind.RESHAPE, QUARTER, "grid_v100-8q"),
        (StepKind.ACQUIRE, "off", "running"),
        (StepKind.AWAIT, "", ""),
        (StepKind.UNCORDON, "", ""),
        (StepKind.CAPACITY, "", "x"),
    ]


@pytest.mark.parametrize(
    ("machine", "present", "problem"),
    [
        ({"state": "running"}, {}, "VM w1 does not exist"),
        (
            {"state": "off", "pods": "drain"},
            found(w1="suspended"),
            "w1 is suspended, and to be powered off would lose what it holds: resume it first",
        ),
        (
            {"state": "running", "profile": WHOLE},
            found(w1="suspended"),
            f"w1 is suspended, and to get profile {WHOLE} would lose what it holds: resume it first",
        ),
        (
            {"state": "suspended", "profile": WHOLE},
            found(w1="running"),
            f"w1 has profile {QUARTER}, and a VM with another one is not suspended: ask for state off, or leave "
            f"profile {WHOLE} out",
        ),
        (
            {"state": "suspended"},
            {"w1": Machine("w1", MachineState.RUNNING, "grid_v100-2b", suspends=False)},
            "w1 cannot be suspended with profile grid_v100-2b: ask for state off with pods drain",
        ),
    ],
)
def test_what_cannot_be_done_or_undone_is_refused_before_anything_happens(
    machine: dict[str, Any], present: Mapping[str, Machine], problem: str
) -> None:
    assert plan_machines(layout({"name": "w1", **machine}), present).problems == (problem,)


def test_a_node_resumes_when_a_layout_comes_that_runs_its_vm() -> None:
    spec = wanted_now("night", zone="Europe/Berlin", default="night", windows=[
        {"days": ["Mon-Sun"], "from": "07:00", "to": "20:00", "layout": "day"},
    ])  # fmt: skip
    assert resumes_at("w1", spec.calendar, LAYOUTS, START) == "resumes at Thu 07:00 (2026-11-19T06:00:00Z)"
    assert resumes_at("w5", spec.calendar, LAYOUTS, START) == "resumes at 20:00 (2026-11-18T19:00:00Z)"
    assert resumes_at("w9", spec.calendar, LAYOUTS, START) == ""


@pytest.mark.parametrize(
    ("machines", "field"),
    [
        ([{"name": "w1", "state": "paused"}], "spec.machines[0].state"),
        ([{"state": "running"}], "spec.machines[0].name"),
        ([{"name": "W 1", "state": "running"}], "spec.machines[0].node"),
        ([{"name": "w1", "state": "running", "profile": "v100-4q"}], "spec.machines[0].profile"),
        ([{"name": "w1", "state": "running", "vgpu": QUARTER}], "spec.machines[0].vgpu"),
        ([{"name": "w1", "state": "running", "pods": "freeze"}], "spec.machines[0].pods"),
        ([{"name": "w1", "state": "off"}], "spec.machines[0].pods"),
        ([{"name": "w1", "state": "running"}, {"name": "w1", "state": "suspended"}], "spec.machines[1].name"),
        (
            [{"name": "a", "node": "w1", "state": "running"}, {"name": "w1", "state": "running"}],
            "spec.machines[1].node",
        ),
    ],
)
def test_a_bad_machine_is_refused_with_its_field(machines: list[dict[str, Any]], field: str) -> None:
    with pytest.raises(BadRequest) as refused:
        layout(*machines)
    assert refused.value.field == field
