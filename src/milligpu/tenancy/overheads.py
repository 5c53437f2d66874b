"""What a GPU's driver takes for a process, measured once for each GPU model and driver version.

A process cannot measure this on a GPU that others use, but the driver's count for one process can. So a separate
process (`python -m milligpu.tenancy.overheads`) opens a context, allocates and launches, and the result is cached.
"""

import ctypes
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from milligpu.model.errors import Unavailable
from milligpu.model.gpu import Gpu
from milligpu.model.overheads import GRANULE_LEAST, GRANULE_MOST, GRANULE_USUAL, SLACK_USUAL, GpuOverheads
from milligpu.model.units import BYTES_PER_MIB
from milligpu.nvml.library import Nvml
from milligpu.nvml.patience import run_program
from milligpu.nvml.read import running_processes

# A context takes some hundred milliseconds; a driver that just woke up takes seconds.
_SECONDS = 60
# A process that was killed says nothing about the driver: the kernel may have been short of memory.
_TRIES = 3
# Until small allocations fill a granule of the largest size that is known.
_PIECES, _PIECE = 1024, 4096
_STREAMS = 8
# Programs have more streams and code than the probe.
_SLACK_FACTOR, _SLACK_GRANULES, _SLACK_LEAST = 2, 8, 16 * BYTES_PER_MIB
_KERNEL = b""".version 6.0
.target sm_50
.address_size 64
.visible .entry k() { .local .align 4 .b8 frame[512]; ret; }
\0"""


class MeasuredOverheads:
    """The overheads that were measured on this machine."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._known: dict[str, GpuOverheads] = {}
        with suppress(OSError, ValueError, TypeError, AttributeError):
            self._known = {str(key): GpuOverheads(**each) for key, each in json.loads(file.read_text()).items()}

    def of(
        self, gpu: Gpu, driver: Path, env: Mapping[str, str], nvml: Path | None = None, version: str = ""
    ) -> GpuOverheads:
        """Return the overheads for this GPU model and driver; measure them if they are not known.

        `nvml` is the driver's NVML, if the loader does not find it by name; `version` is the driver's, if known.
        """
        # The file that NVIDIA's libcuda.so.1 links to mostly has the driver's version in its name.
        key = f"{gpu.model} {driver.resolve()} {version}".rstrip()
        if key not in self._known:
            self._known[key] = _measured(gpu, driver, env, nvml)
            new = self._file.with_suffix(".new")
            new.write_text(json.dumps({key: asdict(each) for key, each in self._known.items()}))
            new.rename(self._file)
        return self._known[key]


def _probe(command: list[str], env: Mapping[str, str]) -> "subprocess.CompletedProcess[str]":
    return run_program(command, _SECONDS, env=env, cwd="/")


def _measured(gpu: Gpu, driver: Path, env: Mapping[str, str], nvml: Path | None) -> GpuOverheads:
    command = [sys.executable, "-m", "milligpu.tenancy.overheads", str(driver), gpu.uuid]
    command += [str(nvml)] if nvml else []
    environment = {**env, "CUDA_VISIBLE_DEVICES": gpu.uuid}
    try:
        done = _probe(command, environment)
        for _ in range(_TRIES - 1):
            if done.returncode == -signal.SIGKILL:
                done = _probe(command, environment)
        done.check_returncode()
        return judge(*map(int, done.stdout.split()))
    except (subprocess.SubprocessError, ValueError, TypeError) as error:
        said = getattr(error, "stderr", None) or str(error)
        reason = (said.strip() or "no answer").splitlines()[-1]
        raise Unavailable(f"no context can be opened on {gpu.uuid}: {reason}") from None


def judge(context: int, growth: int, busy: int) -> GpuOverheads:
    """Decide the overheads from three counts of the driver; 0 for a count that it does not give.

    `context`: with an empty context. `growth`: the first growth by small allocations. `busy`: with streams, events,
    code and a launch, beyond the context.
    """
    granule = GRANULE_USUAL
    if 0 < growth <= GRANULE_MOST:
        granule = max(GRANULE_LEAST, 1 << (growth - 1).bit_length())
    if not context:
        return GpuOverheads(0, granule, SLACK_USUAL)
    return GpuOverheads(context, granule, max(_SLACK_LEAST, _SLACK_FACTOR * busy + _SLACK_GRANULES * granule))


class _Driver:
    """The driver's own library; every call must succeed."""

    def __init__(self, path: str) -> None:
        self._cuda = ctypes.CDLL(path)

    def call(self, name: str, *arguments: object) -> None:
        status = getattr(self._cuda, name)(*arguments)
        if status:
            sys.exit(f"{name} answers {status}")


def _growth(driver: _Driver, count: Callable[[], int]) -> int:
    """Allocate small pieces until the driver's count grows; returns by how much, 0 if never."""
    before, pieces = count(), list[ctypes.c_uint64]()
    for _ in range(_PIECES):
        pieces.append(ctypes.c_uint64())
        driver.call("cuMemAlloc_v2", ctypes.byref(pieces[-1]), ctypes.c_size_t(_PIECE))
        if (grown := count() - before) > 0:
            break
    else:
        grown = 0
    for piece in pieces:
        driver.call("cuMemFree_v2", piece)
    return grown


def _use(driver: _Driver) -> None:
    """Use what every program uses beside memory: streams, events, code, a launch."""
    handle, function = ctypes.c_void_p(), ctypes.c_void_p()
    for _ in range(_STREAMS):
        driver.call("cuStreamCreate", ctypes.byref(handle), 1)
        driver.call("cuEventCreate", ctypes.byref(handle), 0)
    driver.call("cuModuleLoadData", ctypes.byref(handle), _KERNEL)
    driver.call("cuModuleGetFunction", ctypes.byref(function), handle, b"k")
    driver.call("cuLaunchKernel", function, 1, 1, 1, 256, 1, 1, 0, None, None, None)
    driver.call("cuCtxSynchronize")


def main(path: str, uuid: str, library: str | None = None) -> None:
    """Print the three counts that `judge` reads."""
    driver, context = _Driver(path), ctypes.c_void_p()
    driver.call("cuInit", 0)
    driver.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
    driver.call("cuCtxSetCurrent", context)
    nvml = Nvml(Path(library) if library else None)
    gpu = nvml.ask("nvmlDeviceGetHandleByUUID", uuid)

    def count() -> int:
        processes = running_processes(nvml, "Compute", gpu)
        return {process.pid: process.usedGpuMemory for process in processes}.get(os.getpid()) or 0

    empty = count()
    growth = _growth(driver, count) if empty else 0
    before = count()
    _use(driver)
    sys.stdout.write(f"{empty} {growth} {max(0, count() - before)}")


if __name__ == "__main__":
    main(*sys.argv[1:])
