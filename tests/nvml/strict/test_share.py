"""NVML inside a share, in front of the strict NVML."""

import json
import subprocess
import sys
from pathlib import Path

from milligpu.model.policy import SharePolicy
from milligpu.model.units import Milli
from milligpu.native import library
from milligpu.tenancy.tenant import CUDA, NVML, DriverLibraries, TenantFolder
from milligpu.wire.limits import FRAME_US, GpuLimits, LimitsPage

UUID = "GPU-00000000-0000-4000-8000-000000000001"
ASK = """
import ctypes, json, sys
nvml = ctypes.CDLL(sys.argv[1])
name, table = ctypes.create_string_buffer(b"sixteen bytes id"), ctypes.c_void_p()
status = nvml.nvmlInternalGetExportTable(ctypes.byref(table), name)
print(json.dumps([status, table.value == ctypes.addressof(name)]))
"""


def test_the_private_tables_that_nvidia_smi_asks_for_are_the_drivers(strict_nvml: Path, tmp_path: Path) -> None:
    (tmp_path / NVML).symlink_to(library(f"enforce/{NVML}"))
    share = GpuLimits(UUID, Milli(500), Milli(500), 1 << 30, SharePolicy.FIXED, slot_length_us=FRAME_US)
    drivers = DriverLibraries(library(f"softgpu/{CUDA}"), strict_nvml)
    TenantFolder.make(tmp_path / "tenant", LimitsPage((share,)), drivers, 0)
    done = subprocess.run(
        [sys.executable, "-c", ASK, tmp_path / NVML], capture_output=True, text=True, check=True, timeout=60
    )
    assert json.loads(done.stdout) == [0, True], done.stderr
