"""The agent's GPUs when the driver hangs, or fails about some of them."""

import asyncio
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from milligpu.agent import gpus as module
from milligpu.agent.driver import find_driver, nvidia_driver, whole_edits
from milligpu.agent.gpus import ALIVE_S, GpuWatch
from milligpu.agent.host_paths import HostPaths
from milligpu.model.errors import Unavailable
from milligpu.model.gpu import Gpu, GpuState
from milligpu.model.overheads import GpuOverheads
from milligpu.nvml.gpus import NvmlGpus
from milligpu.nvml.hotplug import HotPlug
from milligpu.nvml.readings import XidEvent
from milligpu.tenancy.overheads import MeasuredOverheads
from milligpu.tenancy.tenant import CUDA, NVML
from tests.nvml.standin import StrictNvml, real

SOON_S = 0.2


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> StrictNvml:
    monkeypatch.setattr(module, "LOOK_S", 0.02)
    return StrictNvml().install(monkeypatch)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.01)


LIBRARIES = {name: Path("/", name) for name in (CUDA, NVML)}


def found_libraries(_host: HostPaths) -> dict[str, Path]:
    return LIBRARIES


def states(watch: GpuWatch) -> list[GpuState]:
    return [gpu.state for gpu in watch.gpus.values()]


def test_a_hung_call_makes_one_gpu_unhealthy_until_it_returns_and_delays_no_other(nvml: StrictNvml) -> None:
    async def run() -> None:
        watch = GpuWatch(NvmlGpus(answer_s=SOON_S), lambda: None)
        task = asyncio.create_task(watch.run())
        await until(lambda: states(watch) == [GpuState.OK, GpuState.OK])
        nvml.hangs("nvmlDeviceGetTemperature", 1)
        await until(lambda: states(watch) == [GpuState.OK, GpuState.UNHEALTHY])
        assert "has not answered for 0.2 s" in watch.gpus["GPU-1"].message
        nvml.hangs("nvmlDeviceGetMemoryInfo", 1)
        await watch.read()
        assert list(watch.readings) == ["GPU-0"]
        assert watch.alive
        nvml.answers.clear()
        nvml.hang.set()
        await until(lambda: states(watch) == [GpuState.OK, GpuState.OK])
        task.cancel()

    asyncio.run(run())


def test_the_agent_is_alive_until_no_gpu_has_answered_for_half_a_minute(nvml: StrictNvml) -> None:
    async def run() -> None:
        skipped = 0.0
        loop = asyncio.get_running_loop()
        watch = GpuWatch(NvmlGpus(answer_s=SOON_S), lambda: None, now=lambda: loop.time() + skipped)
        task = asyncio.create_task(watch.run())
        for gpu in range(2):
            nvml.hangs("nvmlDeviceGetTemperature", gpu)
        await until(lambda: states(watch) == [GpuState.UNHEALTHY, GpuState.UNHEALTHY])
        assert watch.alive
        skipped = ALIVE_S
        assert not watch.alive
        nvml.answers.clear()
        nvml.hang.set()
        await until(lambda: watch.alive)
        task.cancel()

    asyncio.run(run())


def test_the_thread_that_waits_for_xids_starts_again_after_an_error(
    nvml: StrictNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_EVENT_S", 0.01)
    turns: list[int] = []

    class Events:
        def __init__(self, _gpus: NvmlGpus) -> None:
            turns.append(1)

        def wait(self, _seconds: float) -> XidEvent | None:
            if len(turns) < 3:
                raise Unavailable("NVML events: odd")
            return XidEvent("GPU-0", 79) if len(turns) == 3 and not turns.append(1) else None

        def close(self) -> None:
            pass

    monkeypatch.setattr(module, "XidEvents", Events)

    async def run() -> None:
        watch = GpuWatch(NvmlGpus(), lambda: None)
        task = asyncio.create_task(watch.run())
        await until(lambda: watch.gpus["GPU-0"].state is GpuState.UNHEALTHY)
        assert "XID 79" in watch.gpus["GPU-0"].message
        task.cancel()

    asyncio.run(run())


def test_a_gpu_that_cannot_be_measured_at_start_is_not_shared_until_it_can(
    nvml: StrictNvml, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MEASURE_S", 0.01)
    monkeypatch.setattr("milligpu.agent.driver.find_libraries", found_libraries)
    full = {"GPU-1"}

    def measured(_self: MeasuredOverheads, gpu: Gpu, *_: object) -> GpuOverheads:
        if gpu.uuid in full:
            raise Unavailable(f"no context can be opened on {gpu.uuid}: out of memory")
        return GpuOverheads(300)

    monkeypatch.setattr(MeasuredOverheads, "of", measured)

    async def run() -> None:
        gpus = NvmlGpus()
        driver = find_driver(gpus, tmp_path, {})
        watch = GpuWatch(gpus, lambda: None, unmeasured=driver.unmeasured)
        assert states(watch) == [GpuState.OK, GpuState.UNHEALTHY]
        assert "out of memory" in watch.gpus["GPU-1"].message
        task = asyncio.create_task(watch.measure(driver.measure))
        full.clear()
        await until(lambda: states(watch) == [GpuState.OK, GpuState.OK])
        assert driver.overheads["GPU-1"].context_bytes == 300
        task.cancel()

    asyncio.run(run())


def test_an_agent_starts_although_calls_about_one_gpu_hang(
    nvml: StrictNvml, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One is not even identified then; it is measured and offered when the driver answers."""
    monkeypatch.setattr(module, "_MEASURE_S", 0.01)
    monkeypatch.setattr("milligpu.agent.driver.find_libraries", found_libraries)
    asked: list[str] = []

    def measured(_self: MeasuredOverheads, gpu: Gpu, *_: object) -> GpuOverheads:
        asked.append(gpu.uuid)
        return GpuOverheads(300)

    monkeypatch.setattr(MeasuredOverheads, "of", measured)
    nvml.count = 3
    nvml.hangs("nvmlDeviceGetUUID", 0)
    nvml.hangs("nvmlDeviceGetMinorNumber", 1)

    async def run() -> None:
        gpus = NvmlGpus(answer_s=SOON_S)
        driver = find_driver(gpus, tmp_path, {})
        assert asked == ["GPU-2"]
        watch = GpuWatch(gpus, lambda: None, unmeasured=driver.unmeasured)
        assert {uuid: gpu.state for uuid, gpu in watch.gpus.items()} == {
            "GPU-1": GpuState.UNHEALTHY,
            "GPU-2": GpuState.OK,
        }
        assert watch.gpus["GPU-1"].message == "NVML does not report its device node"
        tasks = [asyncio.create_task(watch.run()), asyncio.create_task(watch.measure(driver.measure))]
        nvml.answers.clear()
        nvml.hang.set()
        await until(lambda: sorted(states(watch)) == [GpuState.OK] * 3)
        assert driver.nodes["GPU-0"] == "/dev/nvidia0"
        for task in tasks:
            task.cancel()

    asyncio.run(run())


def test_a_gpu_in_mig_mode_does_not_stop_the_agent(
    nvml: StrictNvml, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("milligpu.agent.driver.find_libraries", found_libraries)
    nvml.answers["nvmlDeviceGetMigMode", 0] = lambda: (1, 1)
    asked: list[str] = []

    def measured(_self: MeasuredOverheads, gpu: Gpu, *_: object) -> GpuOverheads:
        asked.append(gpu.uuid)
        return GpuOverheads(300)

    monkeypatch.setattr(MeasuredOverheads, "of", measured)
    driver = find_driver(NvmlGpus(), tmp_path, {})
    assert (asked, dict(driver.unmeasured)) == (["GPU-1"], {})


def test_a_gpu_that_was_lost_at_start_is_offered_when_it_is_back(nvml: StrictNvml) -> None:
    nvml.fails("nvmlDeviceGetUUID", 0, real.NVML_ERROR_GPU_IS_LOST)

    async def run() -> None:
        watch = GpuWatch(NvmlGpus(), lambda: None)
        assert list(watch.gpus) == ["GPU-1"]
        task = asyncio.create_task(watch.run())
        nvml.answers.clear()
        await until(lambda: set(watch.gpus) == {"GPU-0", "GPU-1"})
        task.cancel()

    asyncio.run(run())


class LateNvml(StrictNvml):
    """Lists GPUs that were added only after it was opened again, as NVIDIA's does."""

    count: int
    plugged: int = 2

    def _answer(self, name: str, arguments: tuple[Any, ...]) -> Any:
        if name == "nvmlInit":
            self.count = self.plugged
        return super()._answer(name, arguments)


def test_a_gpu_that_is_plugged_in_is_shared_without_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nvml = LateNvml()
    nvml.install(monkeypatch)
    monkeypatch.setattr(module, "LOOK_S", 0.02)
    monkeypatch.setattr(module, "_EVENT_S", 0.02)
    monkeypatch.setattr("milligpu.agent.driver.find_libraries", found_libraries)

    def measured(*_: object) -> GpuOverheads:
        return GpuOverheads(300)

    monkeypatch.setattr(MeasuredOverheads, "of", measured)
    buses = tmp_path / "gpus"
    for bus in ("0000:01:00.0", "0000:02:00.0"):
        (buses / bus).mkdir(parents=True)

    async def run() -> None:
        gpus = NvmlGpus()
        driver = find_driver(gpus, tmp_path, {})
        watch = GpuWatch(gpus, lambda: None, unmeasured=driver.unmeasured, hotplug=HotPlug(buses))
        tasks = [asyncio.create_task(watch.run()), asyncio.create_task(watch.measure(driver.measure))]
        await until(lambda: states(watch) == [GpuState.OK] * 2)
        nvml.answers["nvmlDeviceGetMinorNumber", 2] = lambda: 2
        nvml.plugged = 3
        (buses / "0000:03:00.0").mkdir()
        await until(lambda: states(watch) == [GpuState.OK] * 3)
        assert driver.overheads["GPU-2"].context_bytes == 300
        assert driver.nodes["GPU-2"] == "/dev/nvidia2"
        assert nvml.asked.count("nvmlShutdown") == 1
        for task in tasks:
            task.cancel()

    asyncio.run(run())


def test_a_gpu_that_the_driver_no_longer_lists_is_unhealthy(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = LateNvml()
    nvml.install(monkeypatch)
    gpus = NvmlGpus()
    watch = GpuWatch(gpus, lambda: None)
    nvml.plugged = 1
    assert gpus.reopen() == 1

    async def run() -> None:
        task = asyncio.create_task(watch.run())
        await until(lambda: states(watch) == [GpuState.OK, GpuState.UNHEALTHY])
        assert watch.gpus["GPU-1"].message == "the driver no longer lists it"
        task.cancel()

    asyncio.run(run())


def test_nvml_is_opened_again_only_for_gpus_that_were_added_and_not_for_ever(tmp_path: Path) -> None:
    now = [0.0]
    (tmp_path / "a").mkdir()
    plug = HotPlug(tmp_path, lambda: now[0])
    assert not plug.due()
    (tmp_path / "b").mkdir()
    tries = 0
    while now[0] < 3600:
        if plug.due():
            plug.opened(1)
            tries += 1
        now[0] += 1
    assert 1 < tries <= 20
    (tmp_path / "b").rmdir()
    assert not plug.due()
    (tmp_path / "c").mkdir()
    assert plug.due()
    plug.opened(2)
    now[0] += 3600
    assert not plug.due()


def nodes(gpus: Iterable[str], dev: Path) -> tuple[str, ...]:
    driver = nvidia_driver(LIBRARIES, {"GPU-0": 0}, dev)
    return tuple(each.path for each in whole_edits(driver, list(gpus)).device_nodes)


def test_the_device_node_of_unified_memory_is_looked_up_when_a_container_needs_it(tmp_path: Path) -> None:
    (tmp_path / "nvidiactl").touch()
    driver = nvidia_driver(LIBRARIES, {"GPU-0": 0}, tmp_path)
    assert nodes(["GPU-0"], tmp_path) == ("/dev/nvidiactl", "/dev/nvidia0")
    (tmp_path / "nvidia-uvm").touch()
    found = tuple(each.path for each in whole_edits(driver, ["GPU-0"]).device_nodes)
    assert found == ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia0")


def test_a_container_whose_gpu_is_gone_does_not_stop_the_agent(tmp_path: Path) -> None:
    assert nodes(["GPU-0", "GPU-gone"], tmp_path) == ("/dev/nvidia0",)
