"""`milligpu verify --record`: what a program called, and nothing else of it."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from milligpu.native import library
from milligpu.verify.record import read_threads
from milligpu.wire.recording import FORMAT, RecordedCall, RecordedLoop, Recording, encode_recording
from tests.sessions.conftest import Machine
from tests.verify.test_report import MACHINE

CLIENT = Path(__file__).parent / "clients/calls.py"
GOLDEN = Path(__file__).parents[1] / "wire" / "golden" / "recording-v1.json"
LINES = [
    "100 101 cuInit 0 Flags=0\n",
    *["100 101 cuMemAlloc_v2 0 bytesize=4096\n", "100 101 cuMemFree_v2 0\n"] * 3,
    "100 102 cuMemAlloc_v2 2 bytesize=1099511627776\n",
    "200 200 cuInit 3 Flags=0\n",
]


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    machine = Machine(Path(tempfile.mkdtemp(prefix="mg-")))
    yield machine
    machine.close()


def calls(steps: list[Any]) -> list[tuple[str, dict[str, int], int]]:
    """The calls, one by one."""
    found: list[tuple[str, dict[str, int], int]] = []
    for step in steps:
        if step["step"] == "loop":
            found += calls(step["steps"]) * step["times"]
        else:
            found.append((step["name"], step.get("sizes", {}), step.get("status", 0)))
    return found


def test_a_program_is_recorded_by_functions_and_sizes_through_every_route(machine: Machine, tmp_path: Path) -> None:
    file = tmp_path / "recording.json"
    command = ["verify", "--record", str(file), "--", sys.executable, str(CLIENT)]
    done = machine.run(*command)
    assert done.returncode == 7, done.stderr
    text = file.read_text()
    recorded = json.loads(text)
    main, other, child = recorded["threads"]
    assert [(each["process"], each["thread"]) for each in recorded["threads"]] == [(1, 1), (1, 2), (2, 1)]
    assert calls(main["steps"]) == [
        ("cuInit", {"Flags": 0}, 0),
        ("cuDevicePrimaryCtxRetain", {}, 0),
        ("cuCtxSetCurrent", {}, 0),
        ("cuMemAlloc_v2", {"bytesize": 1 << 40}, 2),
        ("cuMemAllocManaged", {"bytesize": 8192, "flags": 1}, 0),
    ]
    turn = [("cuMemAlloc_v2", {"bytesize": 4096}, 0)]
    turn += [("cuMemsetD8_v2", {"N": size}, 0) for size in (64, 64, 128)]
    turn += [("cuMemFree_v2", {}, 0)]
    assert calls(other["steps"]) == [("cuCtxSetCurrent", {}, 0), *turn * 500]
    assert len(other["steps"]) == 2, "500 turns are one loop"
    assert [name for name, _, _ in calls(child["steps"])] == ["cuInit"]
    assert str(CLIENT) not in text
    assert str(tmp_path) not in text


def test_a_training_is_recorded_up_to_its_kernels(machine: Machine, tmp_path: Path) -> None:
    file = tmp_path / "recording.json"
    program = (
        "from tinygrad import Tensor; print((Tensor.ones(64, 64).contiguous() @ Tensor.ones(64, 64)).sum().item())"
    )
    done = machine.run("verify", "--record", str(file), "--", "env", "DEV=CUDA", sys.executable, "-c", program)
    assert (done.returncode, done.stdout.strip()) == (0, "262144.0"), done.stderr
    found = [name for thread in json.loads(file.read_text())["threads"] for name, _, _ in calls(thread["steps"])]
    assert {"cuModuleLoadData", "cuMemAlloc_v2", "cuMemcpyDtoH_v2"} <= set(found)
    assert {"cuLaunchKernel", "cuGraphLaunch"} & set(found)


def test_every_function_of_the_driver_is_recorded() -> None:
    symbols: dict[str, str] = json.loads((library("record/libcuda.so.1").parent / "coverage.json").read_text())[
        "symbols"
    ]
    assert {name for name, state in symbols.items() if state != "wrapped"} == set()
    assert len(symbols) > 600


@given(
    st.lists(
        st.lists(st.sampled_from("abc"), min_size=1, max_size=4).flatmap(
            lambda block: st.integers(1, 5).map(lambda times: block * times)
        ),
        max_size=6,
    )
)
def test_loops_are_the_calls_that_were_made(blocks: list[list[str]]) -> None:
    names = [name for block in blocks for name in block]
    threads = list(read_threads(f"1 1 {name} 0\n" for name in names))
    steps: list[RecordedCall | RecordedLoop] = threads[0].steps if threads else []

    def flat(steps: list[RecordedCall | RecordedLoop]) -> list[str]:
        return [
            name
            for step in steps
            for name in (flat(step.steps) * step.times if isinstance(step, RecordedLoop) else [step.name])
        ]

    assert flat(steps) == names


def test_a_long_training_is_as_long_as_one_of_its_steps() -> None:
    epoch = ["1 1 cuLaunchKernel 0 gridDimX=1\n"] * 20 + ["1 1 cuStreamSynchronize 0\n"]
    (thread,) = read_threads([*epoch * 100, "1 1 cuMemFree_v2 0\n", "1 1 cuMemAll"])
    last = thread.steps[-1]
    assert len(thread.steps) == 2
    assert isinstance(thread.steps[0], RecordedLoop)
    assert thread.steps[0].times == 100
    assert last == RecordedCall("cuMemFree_v2"), "half a line is none"


def test_the_format_of_a_recording_is_that_of_the_golden_file() -> None:
    recording = Recording(FORMAT, "0.2.0", "2026-11-18", MACHINE, list(read_threads(LINES)))
    assert encode_recording(recording) + "\n" == GOLDEN.read_text()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--record", "calls.json"), "--record FILE needs -- COMMAND"),
        (("--", "true"), "COMMAND needs --record FILE"),
    ],
)
def test_a_recording_needs_a_command_and_a_command_a_recording(options: tuple[str, ...], said: str) -> None:
    command = [sys.executable, "-c", "from milligpu.cli.main import main; main()", "verify", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert said in done.stderr
