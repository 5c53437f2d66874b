"""VMs of a vCenter: govmomi's simulator, with cards and faults."""

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from milligpu.hypervisors.host import MachineRefused
from milligpu.hypervisors.vsphere import VsphereHost, read_login
from milligpu.model.errors import BadRequest, Unavailable
from milligpu.model.machines import Machine, MachineState
from testing.vcenter import PASSWORD, USER, SimulatedVcenter

QUARTER, WHOLE, NOT_SUSPENDED = "grid_v100-4q", "grid_v100-16q", "grid_v100-2b"
ON, SUSPENDED, OFF = "poweredOn", "suspended", "poweredOff"
DEADLINE_S = 60.0


@pytest.fixture
def host(simulated: SimulatedVcenter) -> Iterator[VsphereHost]:
    simulated.heal()
    simulated.set(("w1", QUARTER, ON), ("w2", QUARTER, ON), ("w5", WHOLE, SUSPENDED), ("desk", NOT_SUSPENDED, OFF))
    found = VsphereHost(partial(read_login, simulated.folder))
    yield found
    asyncio.run(found.close())


async def one(host: VsphereHost, name: str) -> Machine:
    return (await host.look([name]))[name]


async def idle(host: VsphereHost, name: str) -> Machine:
    """Wait until no task runs on a VM."""
    async with asyncio.timeout(DEADLINE_S):
        while (found := await one(host, name)).busy:
            await asyncio.sleep(0.01)
    return found


def test_vms_are_found_by_name_with_state_profile_and_whether_they_can_be_suspended(host: VsphereHost) -> None:
    found = asyncio.run(host.look(["w1", "w5", "desk", "nobody"]))
    assert found == {
        "w1": Machine("w1", MachineState.RUNNING, QUARTER),
        "w5": Machine("w5", MachineState.SUSPENDED, WHOLE),
        "desk": Machine("desk", MachineState.OFF, NOT_SUSPENDED, suspends=False),
    }


def test_suspend_resume_power_off_and_another_profile(host: VsphereHost) -> None:
    async def run() -> list[tuple[MachineState, str]]:
        seen: list[tuple[MachineState, str]] = []
        for state, profile in (
            (MachineState.SUSPENDED, ""),
            (MachineState.RUNNING, ""),
            (MachineState.OFF, ""),
            (MachineState.OFF, "grid_v100-8q"),
        ):
            await host.start(await one(host, "w1"), state, profile)
            found = await idle(host, "w1")
            seen.append((found.state, found.profile))
        return seen

    assert asyncio.run(run()) == [
        (MachineState.SUSPENDED, QUARTER),
        (MachineState.RUNNING, QUARTER),
        (MachineState.OFF, QUARTER),
        (MachineState.OFF, "grid_v100-8q"),
    ]


def test_a_task_that_fails_is_named_and_one_that_hangs_is_seen_and_can_be_canceled(
    host: VsphereHost, simulated: SimulatedVcenter
) -> None:
    async def run() -> None:
        simulated.fault("SuspendVM_Task", "task", message="no space for the suspend file")
        await host.start(await one(host, "w1"), MachineState.SUSPENDED)
        found = await idle(host, "w1")
        assert found.state is MachineState.RUNNING
        assert found.problem.endswith("no space for the suspend file")
        simulated.fault("SuspendVM_Task", "hang", delay_ms=3_600_000)
        await host.start(found, MachineState.SUSPENDED)
        busy = (await one(host, "w1")).busy
        assert busy.startswith("task VirtualMachine.suspend")
        # Another instance, such as the next leader, sees the task, too.
        other = VsphereHost(partial(read_login, simulated.folder))
        assert (await one(other, "w1")).busy == busy
        await other.cancel("w1")
        await other.close()
        assert (await idle(host, "w1")).state is MachineState.RUNNING

    asyncio.run(run())


def test_a_call_that_vcenter_refuses_is_named(host: VsphereHost, simulated: SimulatedVcenter) -> None:
    async def run() -> None:
        found = await one(host, "w1")
        simulated.fault("SuspendVM_Task", "call")
        with pytest.raises(MachineRefused) as refused:
            await host.start(found, MachineState.SUSPENDED)
        assert "ConcurrentAccess" in refused.value.message

    asyncio.run(run())


def test_a_session_that_has_expired_is_replaced(host: VsphereHost, simulated: SimulatedVcenter) -> None:
    async def run() -> None:
        before = await one(host, "w1")
        _end_other_sessions(simulated)
        assert await one(host, "w1") == before

    asyncio.run(run())


def _end_other_sessions(simulated: SimulatedVcenter) -> None:
    login = read_login(simulated.folder)
    connect: Any = import_module("pyVim.connect")
    admin: Any = connect.SmartConnect(
        host=login.host, port=login.port, user=USER, pwd=PASSWORD, disableSslCertValidation=True
    )
    sessions = admin.RetrieveContent().sessionManager
    others = [each.key for each in sessions.sessionList if each.key != sessions.currentSession.key]
    assert others
    sessions.TerminateSession(others)
    connect.Disconnect(admin)


def test_a_vcenter_that_goes_away_is_unavailable_until_it_is_back(
    host: VsphereHost, simulated: SimulatedVcenter
) -> None:
    async def run() -> None:
        before = await one(host, "w1")
        simulated.away(True)
        with pytest.raises(Unavailable) as away:
            await one(host, "w1")
        assert away.value.message.startswith("vCenter does not answer")
        simulated.away(False)
        assert await one(host, "w1") == before

    asyncio.run(run())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"password": "wrong"}, "user name or the password"),
        ({"authority": ""}, "certificate verify failed"),
        ({"port": 1}, "refused"),
    ],
)
def test_a_wrong_password_certificate_or_address_is_named(
    change: dict[str, Any], message: str, simulated: SimulatedVcenter
) -> None:
    wrong = VsphereHost(lambda: replace(read_login(simulated.folder), **change))
    with pytest.raises(Unavailable) as refused:
        asyncio.run(wrong.look(["w1"]))
    asyncio.run(wrong.close())
    assert message in refused.value.message


def test_two_vms_of_one_name_are_refused(host: VsphereHost, simulated: SimulatedVcenter) -> None:
    simulated.set(("w1", "", OFF), ("w1", "", OFF))
    with pytest.raises(MachineRefused) as refused:
        asyncio.run(host.look(["w1"]))
    assert refused.value.message == "2 VMs are named w1: rename all but one"


@pytest.mark.parametrize(
    ("files", "field"),
    [
        ({"server": "vcenter", "username": "u"}, "--vsphere"),
        ({"server": "vcenter:x", "username": "u", "password": "p"}, "server"),
        ({"server": "https://vcenter/sdk", "username": "u", "password": "p"}, "server"),
    ],
)
def test_a_bad_secret_is_refused(files: Mapping[str, str], field: str, tmp_path: Path) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(BadRequest) as refused:
        read_login(tmp_path)
    assert refused.value.field == field
