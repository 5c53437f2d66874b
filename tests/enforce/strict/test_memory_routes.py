"""Memory that only a real driver has: in graphs, and of other processes on other GPUs."""

import json

import pytest

from tests.enforce.strict.conftest import StrictMachines
from tests.enforce.strict.machine import MIB

OUT_OF_MEMORY = 2


def test_memory_nodes_of_a_captured_graph_are_charged_while_it_is_instantiated(machine: StrictMachines) -> None:
    here = machine()
    captured, instantiated, tries, status, ended = json.loads(here.run(here.tenant(), "graph_memory"))
    assert (captured, instantiated, ended) == (0, 64, 0)
    # 1024 MiB less the context's 100 hold 14 of them; the first was made before.
    assert (tries, status) == (14, OUT_OF_MEMORY)


def test_imported_memory_is_charged_to_the_gpu_that_it_is_on(machine: StrictMachines) -> None:
    here = machine(gpus=2)
    assert json.loads(here.run(here.tenant(), "imports")) == [0, 32 + 100]  # and a second context


def test_a_program_can_close_the_library_and_continue(machine: StrictMachines) -> None:
    here = machine()
    assert here.run(here.tenant(), "closes") == "done\n"


@pytest.mark.parametrize("seed", [1, 2])
def test_memory_is_charged_in_the_granules_that_the_driver_gives(machine: StrictMachines, seed: int) -> None:
    here = machine(memory=8192 * MIB, granule=2 * MIB)
    less, more, left = json.loads(here.run(here.tenant(), "granules", seed))
    assert less == 0, "never less than the driver takes"
    # A small allocation begins at a multiple of 512 bytes, which this driver does not count.
    assert more <= 2 * MIB
    assert left == 0
