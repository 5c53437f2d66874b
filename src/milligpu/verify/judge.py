"""From readings to results: pure functions, one for each kind of check."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from milligpu.checks.result import CheckLevel, CheckResult, failed, passed
from milligpu.measure.share_windows import BusySample, ShareStep, used_percent, worst_error
from milligpu.model.units import BYTES_PER_MIB

REPORT = "send us the report: docs/verify.md"
# NVIDIA's own launch takes some 2,000 ns, and its time varies by more than this.
LAUNCH_EXTRA_NS = 300
# The lease keeps below one point on the software GPU; a real one has work of its own.
SHARE_POINTS = 2.0
# More than this beside what is charged is what a tenant takes from others: two granules of the driver.
CHARGE_SLACK = 4 * BYTES_PER_MIB
# The arbiter's account of work that ends after its turn assumes 2 ms.
SLICE_NS = (1_000_000, 4_000_000)
# A difference of single precision sums in another order is smaller.
RESULT_ERROR = 1e-2
_OUT_OF_MEMORY = 2


@dataclass(frozen=True, slots=True)
class LibraryFile:
    """A file by device and inode, and its name without the directory."""

    device: int
    inode: int
    name: str = ""

    def is_same(self, other: "LibraryFile") -> bool:
        """Whether both are one file."""
        return (self.device, self.inode) == (other.device, other.inode)


def judge_launches(name: str, bare_ns: float, limited_ns: float) -> CheckResult:
    """Compare the duration of a launch without and with the limits library."""
    extra = limited_ns - bare_ns
    figures = {"bare_ns": bare_ns, "limited_ns": limited_ns}
    message = f"a launch takes {bare_ns:,.0f} ns bare and {limited_ns:,.0f} ns with a share ({extra:+,.0f} ns)"
    if extra > LAUNCH_EXTRA_NS:
        return failed(name, f"{message}; at most {LAUNCH_EXTRA_NS} ns more", REPORT, figures=figures)
    return passed(name, message, figures)


def judge_shares(name: str, wanted: Sequence[float], samples: Sequence[BusySample]) -> CheckResult:
    """Compare the work of tenants with their shares, in percent; tenants are numbered in the samples.

    Busy time is work that ended, so the shares are of all work that ended: how fast the GPU was does not matter.
    """
    shares = _of_all_work(samples)
    tenants = [[number] for number in range(len(wanted))]
    if not shares:
        return failed(name, "no work ended while it was measured", REPORT)
    measured = [used_percent(shares[0], shares[-1], each) for each in tenants]
    error = worst_error(shares, tenants, [ShareStep(shares[0].time, wanted)])
    message = (
        f"wanted {_percents(wanted, 0)}, measured {_percents(measured, 1)}: "
        f"at most {error:.1f} points off over 10 s"
    )
    figures = {f"tenant_{number}_percent": round(each, 2) for number, each in enumerate(measured, 1)}
    figures["error_points"] = round(error, 2)
    if error > SHARE_POINTS:
        return failed(name, f"{message}; {SHARE_POINTS:g} allowed", REPORT, figures=figures)
    return passed(name, message, figures)


def _of_all_work(samples: Sequence[BusySample]) -> list[BusySample]:
    """The same samples on a clock that advances with the work of all tenants; without those in which none ended."""
    found: list[BusySample] = []
    if not samples:
        return found
    work = [sum(each.busy.values()) for each in samples]
    # Scaled to the time that passed, so that a window of ten seconds stays one.
    scale = (samples[-1].time - samples[0].time) / max(1, work[-1] - work[0])
    for sample, done in zip(samples, work, strict=True):
        time = samples[0].time + round((done - work[0]) * scale)
        if not found or time > found[-1].time:
            found.append(BusySample(time, {key: round(each * scale) for key, each in sample.busy.items()}))
    return found if len(found) > 1 else []


def _percents(values: Sequence[float], digits: int) -> str:
    return " / ".join(f"{each:.{digits}f}" for each in values)


def judge_slices(name: str, pauses: int, median_ns: float) -> CheckResult:
    """Look at the pauses of a kernel while another program uses the GPU, too."""
    if pauses < 10:
        fix = "stop other programs on this GPU and MPS (nvidia-cuda-mps-control), then repeat"
        return failed(name, f"only {pauses} pauses: the GPU does not switch between programs", fix)
    milliseconds = median_ns / 1e6
    figures = {"slice_ms": round(milliseconds, 3), "pauses": float(pauses)}
    message = f"the GPU switches to another program for {milliseconds:.2f} ms at a time ({pauses} pauses)"
    if not SLICE_NS[0] <= median_ns <= SLICE_NS[1]:
        message = f"{message}; the arbiter assumes 2 ms, so shares may be less exact"
        return failed(name, message, REPORT, CheckLevel.WARNING, figures)
    return passed(name, message, figures)


def judge_memory_limit(
    name: str, limit: int, routes: Mapping[str, tuple[int, int]], driver_bytes: int | None
) -> CheckResult:
    """Look at what was allocated on each route (bytes, last status), and at the driver's own count at the end."""
    figures: dict[str, float] = {f"{route}_mib": size / BYTES_PER_MIB for route, (size, _) in routes.items()}
    fix = f"check which library programs load: milligpu verify --check libcuda; {REPORT}"
    over = [route for route, (size, _) in routes.items() if size > limit]
    if over:
        most = max(size for size, _ in routes.values())
        message = f"{_mib(most)} could be allocated ({', '.join(over)}) with a limit of {_mib(limit)}"
        return failed(name, message, fix, figures=figures)
    if driver_bytes is not None:
        figures["driver_mib"] = driver_bytes / BYTES_PER_MIB
        if driver_bytes > limit + CHARGE_SLACK:
            message = f"the driver counts {_mib(driver_bytes)} with a limit of {_mib(limit)}"
            return failed(name, message, fix, figures=figures)
    wrong = {route: status for route, (_, status) in routes.items() if status != _OUT_OF_MEMORY}
    if wrong:
        shown = ", ".join(f"{route}: CUDA error {status}" for route, status in wrong.items())
        return failed(name, f"the answer at the limit is not out of memory ({shown})", REPORT, figures=figures)
    small = [route for route, (size, _) in routes.items() if size < limit // 4]
    if small:
        return failed(name, f"less than a quarter of {_mib(limit)} was usable: {', '.join(small)}", REPORT)
    counted = "" if driver_bytes is None else f"; the driver counts {_mib(driver_bytes)}"
    return passed(name, f"{_mib(limit)} on all {len(routes)} routes, and not more{counted}", figures)


def judge_charge(name: str, what: str, charged: int, driver_bytes: int, count: int = 1) -> CheckResult:
    """Compare what a tenant is charged with what the driver took, for each of `count` things."""
    figures = {"charged_mib": charged / BYTES_PER_MIB / count, "driver_mib": driver_bytes / BYTES_PER_MIB / count}
    message = f"{what}: charged {_mib(charged / count)}, the driver took {_mib(driver_bytes / count)}"
    if driver_bytes > charged + CHARGE_SLACK:
        return failed(name, f"{message}; the rest is taken from others", REPORT, figures=figures)
    if charged > driver_bytes + CHARGE_SLACK:
        fix = f"ask for more memory (-m), and {REPORT}"
        return failed(name, f"{message}; programs get less than their share", fix, CheckLevel.WARNING, figures)
    return passed(name, message, figures)


def judge_libraries(
    name: str, limits: LibraryFile, loaded: LibraryFile, mapped: Sequence[LibraryFile]
) -> CheckResult:
    """Look at which libcuda a program with a share has: the limits library, behind it the driver's, no other."""
    others = [each for each in mapped if not each.is_same(limits)]
    names = ", ".join(each.name for each in others) or "none"
    fix = "take other libcuda files (cuda-compat of an image or of conda) out of LD_LIBRARY_PATH and ld.so.conf"
    if not any(each.is_same(limits) for each in mapped):
        return failed(name, f"the limits library is not mapped; programs use {names} without limits", fix)
    if not loaded.is_same(limits):
        return failed(name, f"programs find {loaded.name or 'another libcuda'} before the limits library", fix)
    if len(others) != 1:
        return failed(name, f"{len(others)} libraries besides the limits library are mapped: {names}", fix)
    return passed(name, f"the limits library, in front of the driver's {names}")


@dataclass(frozen=True, slots=True)
class FrameworkReadings:
    """What a framework's program reports about itself."""

    version: str
    total: int
    """Bytes of GPU memory that the framework sees."""
    mapped: Sequence[LibraryFile]
    losses: Sequence[float] = ()
    """The first and the last one of a training."""
    error: float = 0.0
    """The largest difference of an inference to its reference."""
    tokens: Sequence[int] = ()
    expected: Sequence[int] = ()


def judge_framework(name: str, limits: LibraryFile, limit: int, got: FrameworkReadings) -> CheckResult:
    """Whether a framework trained and inferred correctly, within its share."""
    fix = "take other libcuda files (cuda-compat, conda) out of LD_LIBRARY_PATH"
    if not any(each.is_same(limits) for each in got.mapped):
        return failed(name, f"{got.version} runs without the limits library", fix)
    if got.total > limit:
        return failed(name, f"{got.version} sees {_mib(got.total)}, not the {_mib(limit)} of its share", REPORT)
    if got.losses and not got.losses[-1] < got.losses[0] / 2:
        return failed(
            name, f"{got.version} does not learn: loss {got.losses[0]:.3g} to {got.losses[-1]:.3g}", REPORT
        )
    if not got.error <= RESULT_ERROR:
        return failed(name, f"{got.version}: a result is off by {got.error:.2g}", REPORT)
    if list(got.tokens) != list(got.expected):
        return failed(name, f"{got.version} generated {list(got.tokens)} tokens, not {list(got.expected)}", REPORT)
    training = f"; loss {got.losses[0]:.3g} to {got.losses[-1]:.3g}" if got.losses else ""
    return passed(name, f"{got.version}{training}; results are right, sees {_mib(got.total)}")


def judge_graphs(name: str, expected: int, built: int, captured: int) -> CheckResult:
    """Whether graphs, built and captured, did all their work."""
    wrong = {"built": built, "captured": captured}
    wrong = {kind: number for kind, number in wrong.items() if number != expected}
    if wrong:
        shown = ", ".join(f"{kind}: {number} of {expected}" for kind, number in wrong.items())
        return failed(name, f"kernels of a graph did not run ({shown})", REPORT)
    return passed(name, f"a built and a captured graph ran all {expected} kernels")


def judge_checkpoint(name: str, steps: Sequence[tuple[str, int]], *, unchanged: bool) -> CheckResult:
    """Whether a process with GPU memory was checkpointed and restored."""
    step, status = steps[-1]
    if status:
        fix = "run as root, or as the user of the process with CAP_SYS_PTRACE; needs driver 570 or later"
        return failed(name, f"{step} answers CUDA error {status}", fix, CheckLevel.WARNING)
    if not unchanged:
        return failed(name, "the restored process has other contents in its GPU memory", REPORT)
    return passed(name, "lock, checkpoint, restore and unlock work; GPU memory is unchanged")


def judge_smi(name: str, limit: int, shown: Sequence[int]) -> CheckResult:
    """Compare the memory that nvidia-smi shows with that of the share, in bytes."""
    if list(shown) == [limit]:
        return passed(name, f"shows one GPU with {_mib(limit)}, as the share is")
    sizes = ", ".join(_mib(each) for each in shown) or "no GPU"
    return failed(name, f"shows {sizes}, not the {_mib(limit)} of the share", REPORT)


def _mib(size: float) -> str:
    mib = size / BYTES_PER_MIB
    return f"{mib:,.0f} MiB" if mib == int(mib) or mib >= 100 else f"{mib:.2f} MiB"
