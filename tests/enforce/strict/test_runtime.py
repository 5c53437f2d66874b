"""NVIDIA's own CUDA runtime library finds the driver behind the limits library as it finds the driver itself.

Without a GPU the runtime ends at the driver's private tables, which no stand-in answers. Until then, all that it
asks for must arrive at the driver unchanged.
"""

import sysconfig
from pathlib import Path

import pytest

from tests.enforce.strict.conftest import StrictMachines
from tests.enforce.strict.machine import StrictMachine


def runtime_library() -> Path:
    """The runtime of the wheel whose header the limits library is made from."""
    return next(Path(sysconfig.get_path("purelib")).glob("nvidia/*/lib/libcudart.so.*"))


def asked(here: StrictMachine, tenant: Path | None, trace: Path, version: int) -> tuple[str, list[str]]:
    """What the runtime answers, and what it asked the driver for."""
    environment = {"STRICT_TRACE": str(trace), "STRICT_VERSION": str(version)}
    answers = here.run(tenant, "runtime", runtime_library(), **environment)
    return answers, trace.read_text().splitlines()


@pytest.mark.parametrize("version", [13_000, 13_040, 13_060])
def test_what_the_cuda_runtime_asks_arrives_at_the_driver_unchanged(
    machine: StrictMachines, tmp_path: Path, version: int
) -> None:
    here = machine()
    direct = asked(here, None, tmp_path / "direct", version)
    limited = asked(here, here.tenant(), tmp_path / "limited", version)
    assert f'"version": {version}' in direct[0]
    # The tables are the last question: whatever follows needs the answer of a real driver.
    assert direct[1][-1].startswith("table ")
    assert sum(line.startswith("function ") for line in direct[1]) > 400
    assert limited == direct
