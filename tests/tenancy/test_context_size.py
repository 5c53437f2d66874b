"""The memory that a context takes is measured once for each GPU model and driver version."""

from pathlib import Path

import pytest

from milligpu.model.errors import Unavailable
from milligpu.model.gpu import Gpu
from milligpu.model.units import Mib
from milligpu.tenancy import context_size
from milligpu.tenancy.context_size import ContextSizes

GPU = Gpu("GPU-a", "A10", Mib(8192))


def test_a_new_driver_version_is_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = iter((100, 200))

    def measured(*_: object) -> int:
        return next(sizes)

    monkeypatch.setattr(context_size, "_measured", measured)
    driver, file = tmp_path / "libcuda.so.1", tmp_path / "contexts.json"
    driver.symlink_to(tmp_path / "libcuda.so.550.54")
    assert ContextSizes(file).bytes_of(GPU, driver, {}) == 100
    assert ContextSizes(file).bytes_of(GPU, driver, {}) == 100
    driver.unlink()
    driver.symlink_to(tmp_path / "libcuda.so.560.35")
    assert ContextSizes(file).bytes_of(GPU, driver, {}) == 200


def python(folder: Path, deaths: int) -> Path:
    """A Python that is killed so many times before it answers."""
    program = folder / "python"
    program.write_text(
        f"#!/bin/sh\necho >> {folder}/starts\n[ $(wc -l < {folder}/starts) -gt {deaths} ] || kill -9 $$\necho 7\n"
    )
    program.chmod(0o755)
    return program


def test_a_measurement_that_was_killed_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context_size.sys, "executable", str(python(tmp_path, deaths=2)))
    assert ContextSizes(tmp_path / "contexts.json").bytes_of(GPU, tmp_path / "libcuda.so.1", {}) == 7


def test_a_measurement_that_is_always_killed_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context_size.sys, "executable", str(python(tmp_path, deaths=9)))
    with pytest.raises(Unavailable, match="no context can be opened on GPU-a: .*SIGKILL"):
        ContextSizes(tmp_path / "contexts.json").bytes_of(GPU, tmp_path / "libcuda.so.1", {})
