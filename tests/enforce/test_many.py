"""Hundreds of processes of one tenant at once."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.enforce import rig
from tests.enforce.conftest import Tenants

MANY = 300
SOURCE = Path(__file__).parents[2] / "bench/enforce_startup.c"


@pytest.fixture
def large_gpu(tmp_path: Path) -> Iterator[rig.SoftGpus]:
    """A GPU with memory for this many contexts."""
    with rig.soft_gpus(tmp_path, memory=64 << 30) as found:
        yield found


def test_300_processes_of_a_tenant_start_at_once_and_share_one_memory_account(
    tenant: Tenants, large_gpu: rig.SoftGpus, tmp_path: Path
) -> None:
    program = tmp_path / "start"
    subprocess.run(["cc", "-o", program, SOURCE, "-ldl"], check=True)
    each = rig.CONTEXT + 4096
    made = tenant(memory_limit=MANY * each, on=large_gpu)
    processes = [made.start(program, "libcuda.so.1", "stay") for _ in range(MANY)]
    answers = [process.stdout.readline().split()[0] for process in processes if process.stdout]
    assert answers == ["0"] * MANY
    assert made.account().used == made.held() == MANY * each
    assert made.run(program, "libcuda.so.1").stdout.split()[0] == "2"
    for process in processes:
        process.kill()
    for process in processes:
        process.communicate()
    assert made.held() == 0
    assert made.run(program, "libcuda.so.1").stdout.split()[0] == "0"
