"""Real drivers do not forgive: what they refuse, answer oddly or never answer concerns one GPU at most."""

import threading
from typing import Any

import pytest

from milligpu.model.errors import Unavailable
from milligpu.nvml import library
from milligpu.nvml.gpus import NvmlGpus
from milligpu.nvml.readings import GpuReading, GpuVitals, LostGpu
from tests.nvml.standin import StrictNvml, real


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> StrictNvml:
    return StrictNvml().install(monkeypatch)


def test_a_gpu_with_fewer_links_than_the_newest_is_discovered(nvml: StrictNvml) -> None:
    assert [gpu.uuid for gpu in NvmlGpus().gpus()] == ["GPU-0", "GPU-1"]
    assert "nvmlDeviceGetNvLinkState" in nvml.asked


def test_gpus_have_the_order_of_their_indices_whichever_answers_first(nvml: StrictNvml) -> None:
    second = threading.Event()

    def after_the_second() -> str:
        assert second.wait(10)
        return "GPU-0"

    def at_once() -> str:
        second.set()
        return "GPU-1"

    nvml.answers["nvmlDeviceGetUUID", 0] = after_the_second
    nvml.answers["nvmlDeviceGetUUID", 1] = at_once
    gpus = NvmlGpus()
    assert list(gpus.handles()) == [gpu.uuid for gpu in gpus.gpus()] == ["GPU-0", "GPU-1"]


def test_an_nvml_that_hangs_when_it_is_opened_is_reported(
    nvml: StrictNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library, "_OPEN_S", 0.1)
    nvml.hangs("nvmlInit", 0)
    with pytest.raises(Unavailable, match=r"could not be initialized for 0\.1 s"):
        NvmlGpus()
    nvml.hang.set()


@pytest.mark.parametrize("code", [real.NVML_ERROR_IRQ_ISSUE, real.NVML_ERROR_MEMORY, 998])
def test_an_unexpected_answer_about_health_concerns_that_gpu_alone(nvml: StrictNvml, code: int) -> None:
    gpus = NvmlGpus()
    nvml.fails("nvmlDeviceGetTemperature", 1, code)
    sound, odd = gpus.vitals()
    assert isinstance(sound, GpuVitals)
    assert isinstance(odd, LostGpu)
    assert odd.uuid == "GPU-1"
    assert odd.message.startswith("nvmlDeviceGetTemperature answers: ")


def test_an_unexpected_answer_about_power_leaves_the_rest_of_the_reading(nvml: StrictNvml) -> None:
    gpus = NvmlGpus()
    nvml.fails("nvmlDeviceGetPowerUsage", 1, real.NVML_ERROR_MEMORY)
    readings: list[Any] = list(gpus.read())
    assert [(type(each), each.memory_total, each.milliwatts) for each in readings] == [
        (GpuReading, 16384, None)
    ] * 2


def test_a_gpu_that_does_not_tell_its_uuid_or_memory_does_not_hide_the_others(nvml: StrictNvml) -> None:
    nvml.fails("nvmlDeviceGetUUID", 0, real.NVML_ERROR_UNKNOWN)
    nvml.count = 3
    nvml.fails("nvmlDeviceGetMemoryInfo", 2, real.NVML_ERROR_NO_PERMISSION)
    gpus = NvmlGpus()
    assert list(gpus.known()) == [1]
    lost, sound, mute = gpus.vitals()
    assert isinstance(sound, GpuVitals)
    assert (lost, mute) == (LostGpu(0, ""), LostGpu(2, "", "NVML does not report its memory"))
