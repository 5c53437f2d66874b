"""How many calls of the driver the limits library adds to a launch: a figure that holds on real GPUs."""

import pytest

from tests.enforce.strict.conftest import StrictMachines

BUSY = 60_000


@pytest.mark.parametrize("streams", [1, 8])
@pytest.mark.parametrize("kernel_us", [10, 100])
def test_a_tenant_alone_makes_almost_no_further_calls_of_the_driver(
    machine: StrictMachines, kernel_us: int, streams: int
) -> None:
    here = machine()
    assert float(here.run(here.tenant(), "cost", kernel_us, streams)) < 0.05


@pytest.mark.parametrize("streams", [1, 4, 8])
def test_next_to_others_a_tenant_makes_few_further_calls_of_the_driver(
    machine: StrictMachines, streams: int
) -> None:
    here = machine()
    mine, other = here.tenant("mine"), here.tenant("other")
    here.start(other, "busy", BUSY)
    assert float(here.run(mine, "cost", 100, streams)) < 0.3
