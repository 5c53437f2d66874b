"""How many calls of the driver the limits library adds to a launch: a figure that holds on real GPUs."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.enforce.strict.conftest import StrictMachines

BUSY = 60_000


@pytest.mark.alone  # calls that the watcher makes by its own clock count, too, and a busy machine takes longer
@pytest.mark.parametrize("streams", [1, 8])
@pytest.mark.parametrize("kernel_us", [10, 100])
def test_a_tenant_alone_makes_almost_no_further_calls_of_the_driver(
    machine: StrictMachines, kernel_us: int, streams: int
) -> None:
    here = machine()
    assert float(here.run(here.tenant(), "cost", kernel_us, streams)) < 0.05


def test_a_program_with_two_gpus_makes_almost_no_further_calls_of_the_driver(machine: StrictMachines) -> None:
    """The library must know on which of them a stream is."""
    here = machine(gpus=2)
    assert float(here.run(here.tenant(), "cost", 100, 8)) < 0.05


@pytest.mark.parametrize("streams", [1, 4, 8])
def test_next_to_others_a_tenant_makes_few_further_calls_of_the_driver(
    machine: StrictMachines, streams: int
) -> None:
    here = machine()
    mine, other = here.tenant("mine"), here.tenant("other")
    here.start(other, "busy", BUSY)
    assert float(here.run(mine, "cost", 100, streams)) < 0.3


@pytest.mark.parametrize("kernel_us", [1, 10, 100])
def test_a_tenant_alone_wakes_nobody_when_it_launches(
    machine: StrictMachines, tmp_path: Path, kernel_us: int
) -> None:
    shim = tmp_path / "wakes.so"
    source = Path(__file__).with_name("wakes.c")
    subprocess.run(["cc", "-O1", "-fPIC", "-shared", "-o", shim, source, "-ldl"], check=True)
    here = machine()
    preload = ":".join(filter(None, (os.environ.get("LD_PRELOAD"), str(shim))))
    wakes, messages = json.loads(here.run(here.tenant(), "wakes", kernel_us, LD_PRELOAD=preload))
    # The watcher wakes by its own clock. It is woken early only when the estimates change.
    assert wakes < 0.01
    assert messages < 0.01
