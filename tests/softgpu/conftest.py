"""Run programs on a software GPU as a user does: through `milligpu softgpu exec`, in processes of their own."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.softgpu.machine import CLIENTS, ROOT, Machine

PROGRAM = Path(sys.executable).parent / "milligpu"

Softgpu = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def softgpu(tmp_path_factory: pytest.TempPathFactory) -> Softgpu:
    """Run `milligpu softgpu …` with directories of this test run."""
    folder = tmp_path_factory.mktemp("softgpu")
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(folder / "run"), "XDG_CACHE_HOME": str(folder / "cache")}

    def run(*arguments: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
        command = [PROGRAM, "softgpu", *arguments]
        environ = {**environment, **options.pop("env", {})}
        return subprocess.run(
            command, capture_output=True, text=True, cwd=ROOT, env=environ, timeout=200, check=False, **options
        )

    return run


@pytest.fixture(scope="session")
def client(softgpu: Softgpu) -> Callable[..., dict[str, Any]]:
    """Run one of the programs in `clients/` and read the JSON that it prints."""

    def run(name: str, *options: str) -> dict[str, Any]:
        done = softgpu("exec", *options, "--", sys.executable, CLIENTS / name)
        assert done.returncode == 0, done.stderr[-2000:]
        return json.loads(done.stdout.splitlines()[-1])

    return run


@pytest.fixture(scope="session")
def machine(softgpu: Softgpu, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """Four GPUs that stay up for all tests."""
    machine = Machine(softgpu, tmp_path_factory.mktemp("fleet"))
    yield machine
    machine.end()


@pytest.fixture
def sound(machine: Machine) -> Iterator[None]:
    """Clear all faults after a test."""
    yield
    for index in range(4):
        machine.fault(index, clear=True)
