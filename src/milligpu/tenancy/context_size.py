"""How much GPU memory an empty CUDA context takes, measured once per GPU model.

A process cannot measure this on a GPU that others use, but the driver's count for one idle process can. So a
separate process (`python -m milligpu.tenancy.context_size`) opens a context, and the result is cached per model.
"""

import ctypes
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from milligpu.model.errors import Unavailable
from milligpu.model.gpu import Gpu
from milligpu.nvml.library import Nvml

# A context takes some hundred milliseconds; a driver that just woke up takes seconds.
_SECONDS = 60
# A process that was killed says nothing about the driver: the kernel may have been short of memory.
_TRIES = 3


class ContextSizes:
    """The sizes that were measured on this machine."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._known: dict[str, int] = {}
        with suppress(OSError, ValueError):
            self._known = {str(model): int(size) for model, size in json.loads(file.read_text()).items()}

    def bytes_of(self, gpu: Gpu, driver: Path, env: Mapping[str, str], nvml: Path | None = None) -> int:
        """Return the size for this GPU model and driver; measure it if it is not known.

        `nvml` is the driver's NVML, if the loader does not find it by name.
        """
        # The file that NVIDIA's libcuda.so.1 links to has the driver's version in its name.
        key = f"{gpu.model} {driver.resolve()}"
        if key not in self._known:
            self._known[key] = _measured(gpu, driver, env, nvml)
            new = self._file.with_suffix(".new")
            new.write_text(json.dumps(self._known))
            new.rename(self._file)
        return self._known[key]


def _probe(command: list[str], env: Mapping[str, str]) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=_SECONDS, check=False, cwd="/")


def _measured(gpu: Gpu, driver: Path, env: Mapping[str, str], nvml: Path | None) -> int:
    command = [sys.executable, "-m", "milligpu.tenancy.context_size", str(driver), gpu.uuid]
    command += [str(nvml)] if nvml else []
    environment = {**env, "CUDA_VISIBLE_DEVICES": gpu.uuid}
    try:
        done = _probe(command, environment)
        for _ in range(_TRIES - 1):
            if done.returncode == -signal.SIGKILL:
                done = _probe(command, environment)
        done.check_returncode()
        return int(done.stdout)
    except (subprocess.SubprocessError, ValueError) as error:
        said = getattr(error, "stderr", None) or str(error)
        reason = (said.strip() or "no answer").splitlines()[-1]
        raise Unavailable(f"no context can be opened on {gpu.uuid}: {reason}") from None


def main(driver: str, uuid: str, library: str | None = None) -> None:
    """Open a context and print what the driver counts for it."""
    cuda = ctypes.CDLL(driver)
    context = ctypes.c_void_p()
    for name, arguments in (("cuInit", (0,)), ("cuDevicePrimaryCtxRetain", (ctypes.byref(context), 0))):
        status = getattr(cuda, name)(*arguments)
        if status:
            sys.exit(f"{name} answers {status}")
    nvml = Nvml(Path(library) if library else None)
    processes = nvml.ask("nvmlDeviceGetComputeRunningProcesses", nvml.ask("nvmlDeviceGetHandleByUUID", uuid))
    found = {process.pid: process.usedGpuMemory for process in processes or ()}
    sys.stdout.write(str(found.get(os.getpid()) or 0))


if __name__ == "__main__":
    main(*sys.argv[1:])
