"""Unmodified programs compute the same on a GPU server as on this machine."""

import json
from pathlib import Path

import pytest

from tests.remote.conftest import ROOT, GpuServer

SOFTGPU = ROOT / "tests/softgpu/clients"
STEPS = 30


@pytest.fixture(scope="module")
def devices() -> int:
    return 2


def test_cuda_c_kernels_compute_the_same_as_numpy(server: GpuServer) -> None:
    results = server.results(SOFTGPU / "kernels.py", "-p", "0.5", "-m", "2Gi")
    assert len(results) > 10
    assert {name: result for name, result in results.items() if result != "ok"} == {}


def test_numba_kernels_compute_the_same_as_numpy(server: GpuServer) -> None:
    results = server.results(SOFTGPU / "numba_kernels.py", "--gpus", "2")
    assert len(results) == 10
    assert {name for name, good in results.items() if not good} == set()


def test_a_training_step_waits_once_for_the_network(server: GpuServer, tmp_path: Path) -> None:
    counts = tmp_path / "counts.json"
    output = server.program(
        ROOT / "examples/train.py", "-p", "0.5", "-m", "2Gi", env={"MILLIGPU_REMOTE_COUNTS": str(counts)}
    )
    assert float(output.split()[-1]) > 0.95
    operations = json.loads(counts.read_text())["operations"]
    waited = sum(waits for name, (_sent, waits) in operations.items() if name not in ("hello", "module_load"))
    # One for each step; the rest is starting and reading the accuracy.
    assert waited <= STEPS + 6, operations
