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
def large_card(tmp_path: Path) -> Iterator[rig.Cards]:
    """A card with room for as many contexts."""
    with rig.cards(tmp_path, memory=64 << 30) as found:
        yield found


def test_three_hundred_processes_of_a_tenant_start_at_once_and_share_one_account(
    tenant: Tenants, large_card: rig.Cards, tmp_path: Path
) -> None:
    program = tmp_path / "start"
    subprocess.run(["cc", "-o", program, SOURCE, "-ldl"], check=True)
    each = rig.CONTEXT + 4096
    made = tenant(cap=MANY * each, on=large_card)
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
