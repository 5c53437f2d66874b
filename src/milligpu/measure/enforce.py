"""How well shares are held: the cases of `milligpu bench enforce`."""

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median

from milligpu.bench.shares import WINDOW_NS, Sample, Step, share, worst_error
from milligpu.bench.stage import Report, Share, Stage, come_first
from milligpu.model.qos import Policy
from milligpu.model.units import WHOLE

_WARM_NS = 1_000_000_000
# Windows of ten seconds, sliding over two more.
_MEASURED_NS = WINDOW_NS + 2_000_000_000
_SAMPLE_SECONDS = 0.1
_LAUNCH_PAIRS = 7
# With more late launches the modelled card was not on time, and figures say little: measure again, so often at most
# and for so long in all.
LATE_MAX = 10
_TRIES = 3
_SPARE_S = 120.0

Load = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Result:
    """One case; percentages are of the card's time, and None is what a case does not measure."""

    case: str
    wanted: Sequence[float]
    measured: Sequence[float]
    max_error_points: float | None = None
    overhead_percent: float | None = None
    idle_percent: float | None = None
    p99_ms_alone: float | None = None
    p99_ms_beside: float | None = None
    arbiter_cpu_percent: float | None = None
    launch_ns_bare: float | None = None
    """What the call of an empty launch takes without the limits library."""
    launch_ns_over_bare: float | None = None
    """What it takes longer inside a lease."""
    late_launches: int = 0
    """Launches that the CPU of this machine finished too late for the modelled card."""
    tries: int = 1
    """How often it was measured, of which this is the time with the fewest late launches."""


@dataclass(frozen=True, slots=True)
class Case:
    """Tenants with programs, and what each should get."""

    name: str
    shares: Sequence[Share]
    loads: Sequence[Sequence[Load]]
    """Of each tenant: its programs."""
    wanted: Sequence[float] = ()
    resized: Sequence[int] = ()
    """New shares, in the middle of it."""


def _train(kernel: int, **options: int) -> Load:
    return ("train", f"kernel={kernel}", *(f"{name}={value}" for name, value in options.items()))


SHORT, MIDDLE, LONG = 100, 1000, 20_000
CASES = (
    Case("70/30", (Share(700), Share(300)), ([_train(MIDDLE)],) * 2),
    Case("50/30/20", (Share(500), Share(300), Share(200)), ([_train(MIDDLE)],) * 3),
    Case("4x25", (Share(250),) * 4, ([_train(MIDDLE)],) * 4),
    Case("kernels of 0.1 ms against 20 ms", (Share(500), Share(500)), ([_train(SHORT)], [_train(LONG)])),
    Case("graphs", (Share(700), Share(300)), ([_train(156, graph=32)], [_train(MIDDLE)])),
    Case("one process against eight", (Share(500), Share(500)), ([_train(MIDDLE)], [_train(MIDDLE)] * 8)),
    Case(
        "one tenant idle half of the time",
        (Share(500), Share(500)),
        ([_train(MIDDLE, period=1_000_000, busy=500_000)], [_train(MIDDLE)]),
        wanted=(25, 75),
    ),
    Case(
        "synchronous, kernels of 1 ms and gaps of 0.2 ms",
        (Share(500), Share(500)),
        ([("sync", f"kernel={MIDDLE}", "gap=200")], [_train(MIDDLE)]),
    ),
    Case("resize 70/30 to 30/70", (Share(700), Share(300)), ([_train(MIDDLE)],) * 2, resized=(300, 700)),
    Case(
        "fixed share, alone",
        (Share(300, limit=300, policy=Policy.FIXED),),
        ([_train(MIDDLE)],),
    ),
)
_REQUESTS = ("requests", "kernel=100", "count=20", "load=30")


def run(stage: Stage, case: Case) -> Result:
    """Measure shares."""
    stage.tenants(case.shares)
    pids = [[stage.start(tenant, *load).pid for load in loads] for tenant, loads in enumerate(case.loads)]
    wanted = case.wanted or [each.milli / 10 for each in case.shares]
    steps = [Step(0, wanted)]

    def resize() -> None:
        for tenant, milli in enumerate(case.resized):
            stage.resize(tenant, milli)
        steps.append(Step(time.monotonic_ns(), [milli / 10 for milli in case.resized]))

    samples, cpu = _watch(stage, _MEASURED_NS, resize if case.resized else None)
    stage.stop()
    first, last = samples[0], samples[-1]
    measured = [share(first, last, mine) for mine in pids]
    all_busy = sum(wanted) == 100 and not case.resized
    return Result(
        case.name,
        [round(each, 2) for each in (steps[-1].shares if case.resized else wanted)],
        [round(each, 2) for each in measured],
        max_error_points=round(worst_error(samples, pids, steps), 2),
        idle_percent=round(100 - sum(measured), 2) if all_busy else None,
        arbiter_cpu_percent=round(cpu, 3),
        late_launches=stage.late_launches(),
    )


def _watch(stage: Stage, length: int, half_way: Callable[[], None] | None = None) -> tuple[list[Sample], float]:
    """Let the programs begin, then look for so long; what the card counted, and the arbiter's CPU in percent."""
    stage.begin()
    start = time.monotonic_ns() + _WARM_NS
    while time.monotonic_ns() < start:
        time.sleep(_SAMPLE_SECONDS)
    before = stage.arbiter.totals().cpu_ns
    samples = [stage.sample(time.monotonic_ns)]
    while samples[-1].time - samples[0].time < length:
        if half_way is not None and samples[-1].time - samples[0].time > length // 2:
            half_way()
            half_way = None
        time.sleep(_SAMPLE_SECONDS)
        samples.append(stage.sample(time.monotonic_ns))
    passed = samples[-1].time - samples[0].time
    return samples, 100 * (stage.arbiter.totals().cpu_ns - before) / passed


def run_alone(stage: Stage) -> Result:
    """Throughput and the cost of a launch with the whole card as a share, against the bare card."""
    name, load, length = "alone with a full share", _train(SHORT), WINDOW_NS // 2
    rates: list[float] = []
    for tenant in (None, 0):
        stage.tenants((Share(WHOLE),))
        pid = stage.start(tenant, *load).pid
        samples, cpu = _watch(stage, length)
        stage.stop()
        rates.append(share(samples[0], samples[-1], [pid]))
    bare, limited = rates
    late = stage.late_launches()
    launch, longer = _time_launches(stage)
    return Result(
        name,
        [100],
        [round(limited, 2)],
        overhead_percent=round(100 * (1 - limited / bare), 2),
        arbiter_cpu_percent=round(cpu, 3),
        launch_ns_bare=launch,
        launch_ns_over_bare=longer,
        late_launches=late,
    )


def _time_launches(stage: Stage) -> tuple[float, float]:
    """Medians, in nanoseconds: a bare launch, and the difference of a limited one measured right after it."""
    pairs: list[tuple[int, int]] = []
    for _ in range(_LAUNCH_PAIRS):
        bare, limited = (_time_launch(stage, tenant) for tenant in (None, 0))
        pairs.append((bare, limited))
    return median(bare for bare, _ in pairs), median(limited - bare for bare, limited in pairs)


def _time_launch(stage: Stage, tenant: int | None) -> int:
    """An ordinary process: the threads that run its kernels would take turns with an urgent one."""
    stage.tenants((Share(WHOLE),))
    urgent = os.sched_getscheduler(0) == os.SCHED_RR
    if urgent:
        come_first(urgent=False)
    stage.start(tenant, "launches")
    stage.begin()
    report = stage.stop()[0]
    if urgent:
        come_first()
    return report.p50_ns


def run_latency(stage: Stage) -> Result:
    """Requests of 2 ms at 30 % load with a high priority: alone, and beside a training that never stops."""
    shares = (Share(500, priority=1), Share(500))
    reports: list[Report] = []
    for beside in (False, True):
        stage.tenants(shares)
        pids = [stage.start(0, *_REQUESTS).pid]
        if beside:
            pids.append(stage.start(1, *_train(MIDDLE)).pid)
        samples, cpu = _watch(stage, _MEASURED_NS + WINDOW_NS // 2)
        reports.append(stage.stop()[0])
    got = [share(samples[0], samples[-1], [pid]) for pid in pids]
    alone, with_training = (report.p99_ns / 1e6 for report in reports)
    return Result(
        "requests of high priority beside training",
        [round(got[0], 2), round(100 - got[0], 2)],
        [round(each, 2) for each in got],
        idle_percent=round(100 - sum(got), 2),
        p99_ms_alone=round(alone, 2),
        p99_ms_beside=round(with_training, 2),
        arbiter_cpu_percent=round(cpu, 3),
        late_launches=stage.late_launches(),
    )


CaseRunner = Callable[[Stage], Result]


def cases() -> dict[str, CaseRunner]:
    """All of them by name, in order."""
    found: dict[str, CaseRunner] = {case.name: lambda stage, case=case: run(stage, case) for case in CASES}
    found["alone with a full share"] = run_alone
    found["requests of high priority beside training"] = run_latency
    return found


def measure(stage: Stage, names: Iterable[str], say: Callable[[str], None]) -> Iterator[Result]:
    """These cases, each again where the card was late."""
    known, spare_s = cases(), _SPARE_S
    for name in names:
        say(name)
        results = [known[name](stage)]
        while results[-1].late_launches > LATE_MAX and len(results) < _TRIES and spare_s > 0:
            say(f"{name}, again: {results[-1].late_launches} launches were late")
            begun = time.monotonic()
            results.append(known[name](stage))
            spare_s -= time.monotonic() - begun
        yield replace(min(results, key=lambda each: each.late_launches), tries=len(results))
