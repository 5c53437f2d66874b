"""Default streams of threads, from C: each thread's own, and the legacy stream, which waits for all of them."""

import subprocess
from pathlib import Path

import pytest
from cudaapi.header import include_folder

from milligpu.native import library
from tests.softgpu.conftest import Softgpu
from tests.softgpu.machine import CLIENTS

# A race that failed about once in ten rounds when the streams of ended threads were forgotten.
ROUNDS = 300
CASES = 8


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("threads") / "threads"
    include = include_folder()
    source = [CLIENTS / "threads.c", library("softgpu/libcuda.so.1")]
    subprocess.run(["cc", "-O1", "-Wall", "-Werror", f"-I{include}", "-o", made, *source, "-lpthread"], check=True)
    return made


@pytest.mark.parametrize("options", [(), ("--speed", "1")], ids=["real time", "modeled time"])
def test_the_legacy_stream_waits_for_the_streams_of_all_threads(
    softgpu: Softgpu, program: Path, options: tuple[str, ...]
) -> None:
    done = softgpu("exec", *options, "--", program, str(ROUNDS))
    answers = dict(line.split(": ") for line in done.stdout.splitlines())
    assert (done.returncode, len(answers)) == (0, CASES), done.stdout + done.stderr
    assert {case for case, answer in answers.items() if answer != "yes"} == set()
