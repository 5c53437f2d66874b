"""Random programs: whatever they do within the driver's rules, the limits library breaks none of them."""

import pytest

from tests.enforce.strict.conftest import StrictMachines
from tests.enforce.strict.machine import MIB

BUSY = 60_000
MANY = 1_000_000
CALLS = 5_000


@pytest.mark.parametrize("others", [False, True], ids=["alone", "next to another tenant"])
@pytest.mark.parametrize(("seed", "threads"), [(1, 1), (3, 3)])
def test_random_programs_come_to_no_forbidden_call(
    machine: StrictMachines, seed: int, threads: int, *, others: bool
) -> None:
    here = machine(gpus=threads, memory=4096 * MIB, granule=2 * MIB)  # threads with three contexts each
    mine, other = here.tenant("mine"), here.tenant("other")
    if others:
        here.start(other, "busy", BUSY)
    assert int(here.run(mine, "random_calls", seed, 1500, threads)) >= 1500


@pytest.mark.long
@pytest.mark.alone
def test_a_million_random_calls_come_to_no_forbidden_call(machine: StrictMachines) -> None:
    here = machine(gpus=2, memory=4096 * MIB, granule=2 * MIB)  # four threads with three contexts each
    mine, other = here.tenant("mine"), here.tenant("other")
    made, seed = 0, 1000
    while made < MANY:
        busy = here.start(other, "busy", BUSY) if seed % 2 else None
        made += int(here.run(mine, "random_calls", seed, CALLS, 1 + seed % 4))
        if busy is not None:
            busy.kill()
        seed += 1
