"""Call every function of the driver API through the limits library, on a driver that records its calls."""

import json
import sys
from pathlib import Path
from uuid import UUID

import pytest

from tests.enforce import rig, standin
from tests.enforce.conftest import Tenants
from tests.enforce.test_memory import CLIENTS

OUT_OF_MEMORY = 2


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory, gpus: rig.SoftGpus) -> tuple[Path, list[standin.Symbol]]:
    """The stand-in driver, with the UUID of the GPU of these tests."""
    path = tmp_path_factory.mktemp("standin") / "libcuda.so.1"
    return path, standin.build(path, UUID(gpus.uuids[0].removeprefix("GPU-")).bytes)


@pytest.fixture
def before_it(tenant: Tenants, driver: tuple[Path, list[standin.Symbol]]) -> rig.Tenant:
    """A tenant whose real driver is the stand-in."""
    made = tenant()
    real = made.folder / "tenant/real/libcuda.so.1"
    real.unlink()
    real.symlink_to(driver[0])
    return made


def test_every_function_reaches_the_driver_with_its_arguments(
    before_it: rig.Tenant, driver: tuple[Path, list[standin.Symbol]]
) -> None:
    path, symbols = driver
    process = before_it.start(sys.executable, CLIENTS / "every.py", path)
    out, err = process.communicate(json.dumps([[each.name, each.kinds] for each in symbols]), timeout=100)
    assert process.returncode == 0, err[-2000:]
    result = json.loads(out.splitlines()[-1])
    assert result["checked"] > 600
    assert result["wrong"] == {}


def test_allocations_that_only_a_real_driver_has_are_charged_and_released(before_it: rig.Tenant) -> None:
    done = before_it.run(sys.executable, CLIENTS / "elsewhere.py")
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "arrays": [16, 8, 0, 0, OUT_OF_MEMORY],
        "mipmaps": [8 + 2 + 0, 0],
        "virtual": [32, 32, 32, 0, 0, OUT_OF_MEMORY],
        "imported": [0, 16, 0],
        "exported": [4],
        "other_processes": [8, 0],
        "graphics": [24, 0],
    }


def test_only_launches_and_large_copies_wait_for_the_time_slot(
    before_it: rig.Tenant,
) -> None:
    """Without an arbiter a tenant runs in its time slot: first an empty one, then the whole frame."""
    before_it.set_limits(rig.MEMORY_LIMIT, time_slot_us=0)
    process = before_it.start(sys.executable, CLIENTS / "launches.py")
    assert process.stdout is not None
    assert json.loads(process.stdout.readline()) == {"free": [], "returned": []}
    before_it.set_limits(rig.MEMORY_LIMIT)
    out, err = process.communicate("\n", timeout=100)
    assert process.returncode == 0, err[-2000:]
    assert json.loads(out) == {"still": []}
