"""NVIDIA's own CUDA runtime libraries find the driver behind the limits library as they find the driver itself.

Without a GPU a runtime ends at the driver's private tables, which no stand-in answers. Until then, all that it asks
for must arrive at the driver unchanged.
"""

import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from devcluster import cache
from tests.enforce.strict.conftest import StrictMachines
from tests.enforce.strict.machine import StrictMachine

ROOT = Path(__file__).parents[3]
# Releases 11 and 12 install into one directory, so they cannot be dependencies of the project together.
OLDER = Path(__file__).parent / "runtimes"
INCOMPATIBLE = 35


def runtime_library(release: str) -> Path:
    """The runtime of the wheel whose header the limits library is made from, or of an older release (2 MB each)."""
    if release == "13.4":
        return next(Path(sysconfig.get_path("purelib")).glob("nvidia/cu13/lib/libcudart.so.*"))
    wanted = OLDER / f"{release}.txt"

    def fetch(draft: Path) -> None:
        uv = subprocess.run([ROOT / "tools/need", "uv"], check=True, capture_output=True, text=True).stdout.strip()
        install = [uv, "pip", "install", "--quiet", "--no-deps", "--require-hashes", "--python", sys.executable]
        subprocess.run([*install, "--target", str(draft), "-r", str(wanted)], check=True)

    made = cache.made("cuda-runtimes", cache.checksum([wanted.read_bytes()]), fetch)
    return next(made.glob("nvidia/*/lib/libcudart.so.*"))


def asked(here: StrictMachine, tenant: Path | None, library: Path, trace: Path, version: int) -> list[str]:
    """What the runtime answers, then what it asked the driver for."""
    environment = {"STRICT_TRACE": str(trace), "STRICT_VERSION": str(version)}
    answers = here.run(tenant, "runtime", library, **environment)
    return [answers, *trace.read_text().splitlines()]


@pytest.mark.parametrize(
    ("release", "version"),
    [
        ("11.8", 11_080),
        ("11.8", 13_060),
        ("12.2", 11_080),
        ("12.2", 12_020),
        ("12.9", 12_020),
        ("12.9", 13_040),
        ("13.4", 13_000),
        ("13.4", 13_040),
        ("13.4", 13_060),
    ],
)
def test_what_the_cuda_runtime_asks_arrives_at_the_driver_unchanged(
    machine: StrictMachines, tmp_path: Path, release: str, version: int
) -> None:
    here, library = machine(), runtime_library(release)
    direct = asked(here, None, library, tmp_path / "direct", version)
    limited = asked(here, here.tenant(), library, tmp_path / "limited", version)
    assert f'"version": {version}' in direct[0]
    assert sum(line.startswith("function ") for line in direct) > 380
    if int(release.partition(".")[0]) > version // 1000:
        # The runtime itself says so, and nothing makes the driver look newer than it is.
        assert f'"cudaGetDeviceCount": {INCOMPATIBLE}' in direct[0]
    else:
        # The tables are the last question: whatever follows needs the answer of a real driver.
        assert direct[-1].startswith("table ")
    assert limited == direct
