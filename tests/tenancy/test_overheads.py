"""What the driver takes for a process is measured once for each GPU model and driver version."""

import os
from pathlib import Path

import pytest

from milligpu.model.errors import Unavailable
from milligpu.model.gpu import Gpu
from milligpu.model.overheads import GpuOverheads
from milligpu.model.units import Mib
from milligpu.native import library
from milligpu.softgpu.start import client_environment
from milligpu.tenancy import overheads
from milligpu.tenancy.overheads import MeasuredOverheads, judge
from tests.enforce.rig import CONTEXT, MIB, MODEL, soft_gpus

GPU = Gpu("GPU-a", "A10", Mib(8192))


def test_a_new_driver_version_is_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = iter((100, 200, 300))

    def measured(*_: object) -> GpuOverheads:
        return GpuOverheads(next(sizes))

    monkeypatch.setattr(overheads, "_measured", measured)
    driver, file = tmp_path / "libcuda.so.1", tmp_path / "overheads.json"
    driver.symlink_to(tmp_path / "libcuda.so.550.54")
    assert MeasuredOverheads(file).of(GPU, driver, {}).context_bytes == 100
    assert MeasuredOverheads(file).of(GPU, driver, {}).context_bytes == 100
    driver.unlink()
    driver.symlink_to(tmp_path / "libcuda.so.560.35")
    assert MeasuredOverheads(file).of(GPU, driver, {}).context_bytes == 200
    # Where the file's name does not tell the version, the driver does.
    assert MeasuredOverheads(file).of(GPU, driver, {}, version="560.35.05").context_bytes == 300


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        # What NVIDIA's drivers show: granules of 2 MiB, some MiB for streams and code.
        ((300 * MIB, 2 * MIB, 12 * MIB), GpuOverheads(300 * MIB, 2 * MIB, 40 * MIB)),
        ((300 * MIB, 2 * MIB, 0), GpuOverheads(300 * MIB, 2 * MIB, 16 * MIB)),
        # No power of two, because another allocation of the driver fell into it: the next one.
        ((300 * MIB, 65536 + 4096, 0), GpuOverheads(300 * MIB, 131072, 16 * MIB)),
        ((300 * MIB, 1, 0), GpuOverheads(300 * MIB, 4096, 16 * MIB)),
        # Pieces that never grow the count, or grow it by more than a granule can be: as NVIDIA's drivers do.
        ((300 * MIB, 0, 0), GpuOverheads(300 * MIB, 2 * MIB, 16 * MIB)),
        ((300 * MIB, 1 << 30, 0), GpuOverheads(300 * MIB, 2 * MIB, 16 * MIB)),
        # A driver that does not count processes.
        ((0, 0, 0), GpuOverheads(0, 2 * MIB, 64 * MIB)),
    ],
)
def test_granule_and_slack_follow_from_the_drivers_counts(
    counts: tuple[int, int, int], expected: GpuOverheads
) -> None:
    assert judge(*counts) == expected


def test_a_software_gpu_is_measured(tmp_path: Path) -> None:
    with soft_gpus(tmp_path) as gpus:
        gpu = Gpu(gpus.uuids[0], MODEL, Mib(2048))
        env = {**os.environ, **client_environment(gpus.folder, os.environ)}
        driver, nvml = library("softgpu/libcuda.so.1"), library("softgpu/libnvidia-ml.so.1")
        found = MeasuredOverheads(tmp_path / "overheads.json").of(gpu, driver, env, nvml)
        assert found == GpuOverheads(CONTEXT, 4096, 16 * MIB)
        # The next service reads it from the file: no process is started.
        assert MeasuredOverheads(tmp_path / "overheads.json").of(gpu, driver, {}) == found


def python(folder: Path, deaths: int) -> Path:
    """A Python that is killed so many times before it answers."""
    program = folder / "python"
    program.write_text(
        f"#!/bin/sh\necho >> {folder}/starts\n[ $(wc -l < {folder}/starts) -gt {deaths} ] || kill -9 $$\n"
        "echo 7 4096 0\n"
    )
    program.chmod(0o755)
    return program


def test_a_measurement_that_was_killed_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overheads.sys, "executable", str(python(tmp_path, deaths=2)))
    assert MeasuredOverheads(tmp_path / "overheads.json").of(GPU, tmp_path / "libcuda.so.1", {}).context_bytes == 7


def test_a_measurement_that_is_always_killed_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overheads.sys, "executable", str(python(tmp_path, deaths=9)))
    with pytest.raises(Unavailable, match="no context can be opened on GPU-a: .*SIGKILL"):
        MeasuredOverheads(tmp_path / "overheads.json").of(GPU, tmp_path / "libcuda.so.1", {})
