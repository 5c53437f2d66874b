"""What a context takes of a card before anything is allocated in it: measured, because only the driver knows.

A process cannot tell on a card that others use; the driver's count of one process that does nothing else can. So a
process of its own (`python -m milligpu.agent.context`) opens one, once for each model, and what it saw is kept.
"""

import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from milligpu.devices.nvml import Nvml
from milligpu.model.errors import Unavailable
from milligpu.model.gpu import Gpu

# A context takes some hundred milliseconds; a driver that just woke up takes seconds.
_SECONDS = 60


class Contexts:
    """What was measured on this machine."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._known: dict[str, int] = {}
        with suppress(OSError, ValueError):
            self._known = {str(model): int(size) for model, size in json.loads(file.read_text()).items()}

    def bytes_of(self, gpu: Gpu, driver: Path, env: Mapping[str, str]) -> int:
        """For this model of card with this driver."""
        key = f"{gpu.model} {driver}"
        if key not in self._known:
            self._known[key] = _measured(gpu, driver, env)
            new = self._file.with_suffix(".new")
            new.write_text(json.dumps(self._known))
            new.rename(self._file)
        return self._known[key]


def _measured(gpu: Gpu, driver: Path, env: Mapping[str, str]) -> int:
    command = [sys.executable, "-m", "milligpu.agent.context", str(driver), gpu.uuid]
    environment = {**env, "CUDA_VISIBLE_DEVICES": gpu.uuid}
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=_SECONDS, check=True, cwd="/"
        )
        return int(done.stdout)
    except (subprocess.SubprocessError, ValueError) as error:
        said = getattr(error, "stderr", None) or str(error)
        reason = (said.strip() or "no answer").splitlines()[-1]
        raise Unavailable(f"no context can be opened on {gpu.uuid}: {reason}") from None


def main(driver: str, uuid: str) -> None:
    """Open a context and print what the driver counts for it."""
    cuda = ctypes.CDLL(driver)
    context = ctypes.c_void_p()
    for name, arguments in (("cuInit", (0,)), ("cuDevicePrimaryCtxRetain", (ctypes.byref(context), 0))):
        status = getattr(cuda, name)(*arguments)
        if status:
            sys.exit(f"{name} answers {status}")
    nvml = Nvml()
    processes = nvml.ask("nvmlDeviceGetComputeRunningProcesses", nvml.ask("nvmlDeviceGetHandleByUUID", uuid))
    found = {process.pid: process.usedGpuMemory for process in processes or ()}
    sys.stdout.write(str(found.get(os.getpid()) or 0))


if __name__ == "__main__":
    main(*sys.argv[1:])
