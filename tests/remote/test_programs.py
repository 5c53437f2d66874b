"""What programs on a GPU server can do beyond computing: host memory, graphs, NVML, modules, compute shares."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from milligpu.native import library
from tests.remote.conftest import BIN, CLIENTS, ROOT, GpuServer, wait_for

SOFTGPU = ROOT / "tests/softgpu/clients"
# Programs that look at the error of each call need each call to wait.
STRICT = {"MILLIGPU_REMOTE_STRICT": "1"}
SECOND_NS = 1_000_000_000


@pytest.fixture(scope="module")
def devices() -> int:
    return 2


def all_true(results: dict[str, Any]) -> bool:
    return {name: result for name, result in results.items() if result not in (True, "ok")} == {}


def test_kernels_use_host_managed_and_registered_memory_and_graphs_copy_it(server: GpuServer) -> None:
    results = server.results(CLIENTS / "host_memory.py", env={"PYTHONPATH": str(SOFTGPU)})
    assert len(results) == 8
    assert all_true(results)


def test_arrays_rectangles_and_boxes_are_copied(server: GpuServer) -> None:
    assert all_true(server.results(SOFTGPU / "arrays.py"))


def test_libraries_memory_pools_and_extended_launches_work(server: GpuServer) -> None:
    results = server.results(SOFTGPU / "libraries.py", env=STRICT)
    assert len(results) > 7
    assert all_true(results)


# -- NVML --------------------------------------------------------------------------------------------------------

# They change by themselves from one moment to the next.
MOVING = {"energy", "energy_field", "temperature", "power", "power_sample", "clock", "memory_clock", "state"} | {
    "reasons",
    "utilization",
    "process_utilization",
    "pcie_sent",
    "pcie_received",
}


def test_nvml_says_on_the_client_what_it_says_on_the_server(server: GpuServer) -> None:
    remote: list[dict[str, Any]] = json.loads(server.program(SOFTGPU / "nvml.py", "--gpus", "2"))
    local = server.machine.run("run", "--gpus", "2", "--", sys.executable, str(SOFTGPU / "nvml.py"))
    expected: list[dict[str, Any]] = json.loads(local.stdout)
    assert len(remote) == len(expected) == 2
    for ours, theirs in zip(remote, expected, strict=True):
        assert ours.keys() == theirs.keys()
        assert {key: ours[key] for key in ours.keys() - MOVING} == {
            key: theirs[key] for key in ours.keys() - MOVING
        }


def test_gpustat_shows_a_share_of_a_gpu_server(server: GpuServer) -> None:
    process = server.client("-p", "0.5", "-m", "1Gi", "--", str(BIN / "gpustat"), "--json")
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    [gpu] = json.loads(output)["gpus"]
    assert gpu["memory.total"] == 1024
    assert gpu["uuid"] in {each["uuid"] for each in server.machine.ps()["gpus"]}


# -- modules -----------------------------------------------------------------------------------------------------


def load_module(server: GpuServer, tmp_path: Path, text: str) -> int:
    """Load a large module; returns the bytes that were sent for it."""
    counts = tmp_path / "counts.json"
    process = server.client(
        "-p", "0.5", "--", sys.executable, CLIENTS / "modules.py", text, env={"MILLIGPU_REMOTE_COUNTS": str(counts)}
    )
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert json.loads(output) == {"status": 0, "answer": 42}
    return int(json.loads(counts.read_text())["bytes_out"])


def test_a_module_is_sent_once_and_a_spoiled_copy_of_it_again(server: GpuServer, tmp_path: Path) -> None:
    assert load_module(server, tmp_path, "first") > 100_000
    assert load_module(server, tmp_path, "first") < 10_000
    assert load_module(server, tmp_path, "second") > 100_000
    for path in (server.folder / "state/modules").iterdir():
        path.write_bytes(path.read_bytes()[:-1] + b"x")
    assert load_module(server, tmp_path, "first") > 100_000


# -- compute -----------------------------------------------------------------------------------------------------


@pytest.fixture
def modeled() -> Iterator[GpuServer]:
    """A server whose GPU takes modeled time, so that shares do not depend on this machine's speed."""
    found = GpuServer(Path(tempfile.mkdtemp(prefix="mgt-")), 1, speed="1")
    yield found
    found.close()


def busy(server: GpuServer, *share: str) -> subprocess.Popen[str]:
    """A program that always has work for the GPU."""
    program = server.client(*share, "--", str(library("milligpu-load")), "train", "kernel=5000")
    assert program.stdin is not None
    program.stdin.write("go\n")
    program.stdin.flush()
    return program


@pytest.mark.alone
def test_compute_shares_of_a_server_are_held(modeled: GpuServer) -> None:
    for share in ("0.6", "0.2"):
        busy(modeled, "-p", share, "-m", "1Gi")

    def times() -> dict[int, int]:
        shares = [share for each in modeled.machine.sessions() for share in each["shares"]]
        return {share["milli"]: share["gpu_time_ns"] or 0 for share in shares}

    wait_for("both to compute", lambda: len(times()) == 2 and all(times().values()))
    before = times()
    wait_for("a second of GPU time", lambda: times()[200] - before[200] > SECOND_NS)
    after = times()
    got = {milli: after[milli] - before[milli] for milli in after}
    assert 2 < got[600] / got[200] < 4, got
