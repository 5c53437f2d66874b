"""The health of a GPU server's machine, as JSON lines: `python -m milligpu.checks.health_server`.

A process of its own, which `milligpu server` starts for each report: it opens NVML and the CUDA driver, and a
driver that hangs must not stop the server.
"""

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache

import msgspec

from milligpu.checks import health_gpus as gpus
from milligpu.checks.health_gpus import GpuFacts, HealthGpu
from milligpu.checks.health_host import PERFORMANCE, RESOURCES, SERVER_FILES, SOFTWARE, STABILITY, host_checks
from milligpu.checks.node import cgroups
from milligpu.checks.result import Check, CheckResult, failed, noted, passed, run_checks
from milligpu.model.errors import MilligpuError
from milligpu.model.gpu import GpuState
from milligpu.nvml.gpus import NvmlGpus
from milligpu.nvml.library import Handle, Nvml
from milligpu.nvml.patience import run_program
from milligpu.nvml.readings import GpuReading, LostGpu
from milligpu.remote.protocol import HealthLine
from milligpu.sessions.client import SessionClient
from milligpu.sessions.gpu_source import open_nvml
from milligpu.sessions.protocol import ReadStatus, StatusRead
from milligpu.softgpu.start import SoftgpuPaths, client_environment, is_running
from milligpu.wire.status import MachineStatus

_PROBE_SECONDS = 30
_DEFAULT_MODE = 0
_MODES = {1: "exclusive-thread", 2: "prohibited", 3: "exclusive-process"}
_P2P_READ = 0
_OWN_LINES = ("too hot", "memory errors")
_LOST = "it has fallen off the bus"


class _Device(msgspec.Struct, frozen=True):
    stream_memory_operations: bool | None = None
    host_pointer: bool | None = None


@dataclass(frozen=True, slots=True)
class _Extras:
    """What only health reports ask of a GPU."""

    compute_mode: int = _DEFAULT_MODE
    pcie_width: int | None = None
    pcie_width_max: int | None = None


class _Probed(msgspec.Struct, frozen=True):
    devices: list[_Device] = msgspec.field(default_factory=list[_Device])
    error: str = ""


def read_status(env: Mapping[str, str]) -> MachineStatus:
    answer = SessionClient(env).ask(ReadStatus())
    assert isinstance(answer, StatusRead)
    return answer.status


def read_facts(env: Mapping[str, str]) -> GpuFacts:
    """Ask the session service, NVML and the CUDA driver."""
    status = read_status(env)
    problems = {gpu.uuid: gpu.message for gpu in status.gpus if gpu.state == GpuState.UNHEALTHY}
    probed = _probe_cuda(env)
    with open_nvml(env) as found:
        extras = found.ask_each("health", lambda handle: _read_extras(found.nvml, handle))
        seen = [
            _gpu(each, extras, problems, probed.devices[at] if at < len(probed.devices) else _Device())
            for at, each in enumerate(found.read())
        ]
        return GpuFacts(
            found.nvml.ask_system("nvmlSystemGetDriverVersion") or "0",
            found.nvml.ask_system("nvmlSystemGetCudaDriverVersion_v2") or 0,
            seen,
            _memory_available(),
            _strangers(found),
            probed.error,
        )


def _read_extras(nvml: Nvml, handle: Handle) -> _Extras:
    return _Extras(
        nvml.try_ask("nvmlDeviceGetComputeMode", handle) or _DEFAULT_MODE,
        nvml.try_ask("nvmlDeviceGetCurrPcieLinkWidth", handle),
        nvml.try_ask("nvmlDeviceGetMaxPcieLinkWidth", handle),
    )


def _gpu(
    each: GpuReading | LostGpu, extras: Mapping[str, _Extras], problems: Mapping[str, str], device: _Device
) -> HealthGpu:
    if isinstance(each, LostGpu):
        return HealthGpu(each.index, 0, problem=each.message or _LOST)
    extra = extras.get(each.uuid, _Extras())
    problem = problems.get(each.uuid, "")
    return HealthGpu(
        each.index,
        each.memory_total,
        extra.pcie_width,
        extra.pcie_width_max,
        each.vitals.temperature,
        each.vitals.ecc_uncorrected,
        _MODES.get(extra.compute_mode, ""),
        # Heat and memory errors have lines of their own.
        "" if any(word in problem for word in _OWN_LINES) else problem,
        device.stream_memory_operations,
        device.host_pointer,
    )


def _strangers(found: NvmlGpus) -> list[tuple[int, int]]:
    """Pairs of GPUs without access to each other's memory."""
    index = {gpu.uuid: index for index, gpu in found.known().items()}
    handles, nvml = found.handles(), found.nvml

    def others(handle: Handle) -> list[int]:
        pairs = [(index[uuid], each) for uuid, each in handles.items() if each is not handle]
        return [at for at, each in pairs if nvml.try_ask("nvmlDeviceGetP2PStatus", handle, each, _P2P_READ)]

    asked = found.ask_each("peers", others)
    pairs = ((index[uuid], other) for uuid, strangers in asked.items() for other in strangers)
    return sorted({(min(pair), max(pair)) for pair in pairs})


def _probe_cuda(env: Mapping[str, str]) -> _Probed:
    folder = SoftgpuPaths.from_env(env).folder
    environment = {**env, **(client_environment(folder, env) if is_running(folder) else {})}
    command = [sys.executable, "-m", "milligpu.checks.cuda_probe"]
    try:
        done = run_program(command, _PROBE_SECONDS, env=environment)
        done.check_returncode()
        return msgspec.json.decode(done.stdout, type=_Probed)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        return _Probed(error=f"the CUDA driver did not answer: {error}")


def _memory_available() -> int:
    with open("/proc/meminfo", encoding="ascii") as file:
        line = next(line for line in file if line.startswith("MemAvailable:"))
    return int(line.split()[1]) // 1024


def check_service(env: Mapping[str, str]) -> Iterable[CheckResult]:
    """The service that grants shares and the arbiter in it answer."""
    fix = "look at its log: /run/milligpu or $XDG_RUNTIME_DIR/milligpu"
    try:
        status = read_status(env)
    except MilligpuError as error:
        yield failed("session service and arbiter", error.message, error.hint or fix)
        return
    yield passed("session service and arbiter", f"{len(status.sessions)} sessions, {len(status.waiting)} waiting")
    free = sum(gpu.free_milli for gpu in status.gpus)
    total = sum(gpu.milli for gpu in status.gpus)
    yield noted("free compute", f"{free / 1000:g} of {total / 1000:g} GPUs", {"free_gpus": free / 1000})


def server_checks(env: Mapping[str, str]) -> list[Check]:
    """All checks of a GPU server, in the order of the report."""
    facts = cache(lambda: read_facts(env))
    fix = "look at: nvidia-smi; milligpu doctor"
    return [
        *host_checks(SERVER_FILES),
        Check(SOFTWARE, "GPU driver", lambda: gpus.check_versions(facts()), fix),
        Check(RESOURCES, "shadow memory", lambda: gpus.check_memory(facts()), fix),
        Check(RESOURCES, "session service and arbiter", lambda: check_service(env)),
        Check(PERFORMANCE, "PCIe Width", lambda: gpus.check_pcie(facts()), fix),
        Check(PERFORMANCE, "CUDA features", lambda: gpus.check_features(facts()), fix),
        Check(STABILITY, "cgroups", cgroups),
        Check(STABILITY, "GPUs", lambda: gpus.check_stability(facts()), fix),
    ]


def to_line(each: CheckResult) -> HealthLine:
    return HealthLine(
        each.group, each.name, str(each.level), str(each.result), each.message, each.fix, dict(each.figures)
    )


def main() -> int:
    results = asyncio.run(run_checks(server_checks(os.environ)))
    sys.stdout.buffer.write(msgspec.json.encode([to_line(each) for each in results]) + b"\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
