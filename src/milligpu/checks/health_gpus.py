"""Checks of a GPU server's GPUs: versions, PCIe, memory errors, temperature, compute mode. Pure, over facts."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from milligpu.checks.result import CheckLevel, CheckResult, failed, passed, skipped

# CUDA 9.0: before it there are no cooperative launches. The driver's version is the guide's.
_CUDA_MIN = 9000
_DRIVER_MIN = (440, 33)
_CELSIUS_MAX = 100.0
_NVIDIA_SMI = "look at: nvidia-smi -q; dmesg | grep -i xid"


@dataclass(frozen=True, slots=True)
class HealthGpu:
    """What the checks need to know of one GPU; None is what it does not report."""

    index: int
    mib: int
    pcie_width: int | None = None
    pcie_width_max: int | None = None
    celsius: float | None = None
    ecc_uncorrected: int | None = None
    exclusive: str = ""
    """The compute mode, if it is not the default one."""
    problem: str = ""
    """Why the session service or NVML says that it is unhealthy."""
    stream_memory_operations: bool | None = None
    host_pointer: bool | None = None


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """A machine's GPUs and its driver."""

    driver: str
    cuda: int
    """Such as 12080 for 12.8."""
    gpus: Sequence[HealthGpu]
    memory_mib: int
    """Host memory that is available now."""
    peers_without_access: Sequence[tuple[int, int]] = ()
    """Pairs of GPUs that cannot read each other's memory over PCIe."""
    probe_error: str = ""
    """Why the CUDA driver did not answer."""


def check_versions(facts: GpuFacts) -> Iterable[CheckResult]:
    """The driver is new enough."""
    name = f"CUDA version >= {_CUDA_MIN}"
    current = f"Current version: {facts.cuda}"
    upgrade = "install a newer driver of NVIDIA"
    yield passed(name, current) if facts.cuda >= _CUDA_MIN else failed(name, current, upgrade)
    name = f"GPU driver version >= {'.'.join(map(str, _DRIVER_MIN))}"
    current = f"Current version: {facts.driver}"
    parts = tuple(int(part) for part in facts.driver.split(".")[:2] if part.isdigit())
    yield passed(name, current) if parts >= _DRIVER_MIN else failed(name, current, upgrade)


def check_memory(facts: GpuFacts) -> Iterable[CheckResult]:
    """Copies of programs that fill their GPUs pass through host memory."""
    total = sum(gpu.mib for gpu in facts.gpus)
    name = f"shadow memory {facts.memory_mib}MB and total gpu mem {total}MB"
    if facts.memory_mib >= total:
        yield passed(name, "")
    else:
        fix = "add host memory, or end what uses it: pinned memory of clients and modules are held there"
        yield failed(name, "less host memory is available than the GPUs have", fix, CheckLevel.WARNING)


def check_pcie(facts: GpuFacts) -> Iterable[CheckResult]:
    """Each GPU uses all of its PCIe lanes."""
    name = "PCIe Width"
    known = [gpu for gpu in facts.gpus if gpu.pcie_width is not None and gpu.pcie_width_max is not None]
    narrow = [gpu for gpu in known if (gpu.pcie_width or 0) < (gpu.pcie_width_max or 0)]
    for gpu in narrow:
        message = f"GPU {gpu.index} uses {gpu.pcie_width} of {gpu.pcie_width_max} lanes"
        yield failed(name, message, "move the GPU to a wider slot, or reseat it", CheckLevel.WARNING)
    if not known:
        yield skipped(name, "the GPUs do not report their PCIe lanes")
    elif not narrow:
        yield passed(name, "GPUs are all set to use their maximum PCIe lane capacity")


def check_features(facts: GpuFacts) -> Iterable[CheckResult]:
    """What fast copies need."""
    for name, supported in (
        ("stream memory ops support", [gpu.stream_memory_operations for gpu in facts.gpus]),
        ("host pointer on device support", [gpu.host_pointer for gpu in facts.gpus]),
    ):
        if facts.probe_error:
            yield skipped(name, facts.probe_error, "look at the driver: nvidia-smi")
        elif all(supported):
            yield passed(name, "")
        else:
            missing = ", ".join(str(gpu.index) for gpu, has in zip(facts.gpus, supported, strict=True) if not has)
            message = f"not on GPU {missing}: programs that let a stream wait for memory fail"
            yield failed(name, message, "use a newer driver or GPU, or other programs", CheckLevel.WARNING)


def check_stability(facts: GpuFacts) -> Iterable[CheckResult]:
    """Peer access, errors, temperature, memory errors and compute mode."""
    yield _peers(facts)
    yield from _each(facts, "GPU Xid errors", {gpu.index: gpu.problem for gpu in facts.gpus}, _NVIDIA_SMI)
    yield from _temperature(facts)
    counts = {gpu.index: gpu.ecc_uncorrected for gpu in facts.gpus}
    ecc = {index: f"{count} uncorrectable errors" if count else "" for index, count in counts.items()}
    yield from _each(facts, "GPU ECC errors", ecc, "reset the GPU (nvidia-smi -r); replace it if they come back")
    modes = {gpu.index: gpu.exclusive for gpu in facts.gpus}
    yield from _each(facts, "compute mode", modes, "let several programs use it: nvidia-smi -c DEFAULT")


def _peers(facts: GpuFacts) -> CheckResult:
    name = "PCIe P2P support"
    if len(facts.gpus) == 1:
        return skipped(name, "needs two GPUs")
    if not facts.peers_without_access:
        return passed(name, "PCIe p2p supported")
    pairs = ", ".join(f"{one} and {other}" for one, other in facts.peers_without_access)
    fix = "look at: nvidia-smi topo -p2p r; PCIe ACS and virtual machines often forbid it"
    return failed(name, f"not between GPUs {pairs}", fix, CheckLevel.WARNING)


def _temperature(facts: GpuFacts) -> Iterable[CheckResult]:
    name = f"temperature <= {_CELSIUS_MAX:.2f}"
    known = [gpu.celsius for gpu in facts.gpus if gpu.celsius is not None]
    if not known:
        yield skipped(name, "the GPUs do not report their temperature")
    elif max(known) > _CELSIUS_MAX:
        yield failed(name, f"current temp: {max(known):.2f}", "check fans, airflow and the power limit")
    else:
        yield passed(name, f"current temp: {max(known):.2f}", {"celsius": max(known)})


def _each(facts: GpuFacts, name: str, problems: dict[int, str], fix: str) -> Iterable[CheckResult]:
    """One failure for each GPU with a problem, or one line for all."""
    if not facts.gpus:
        yield skipped(name, "needs a GPU")
        return
    found = {index: problem for index, problem in problems.items() if problem}
    for index, problem in found.items():
        yield failed(name, f"GPU {index}: {problem}", fix)
    if not found:
        yield passed(name, "")
