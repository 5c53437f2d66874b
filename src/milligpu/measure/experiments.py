"""What the talk "Is sharing GPU to multiple containers feasible?" measured, on a software GPU in modeled time.

A request occupies the GPU for as long as many passes of a real network do (`network.py`): about as long as a
request to InceptionV3 occupies a K80. Programs of known load then send these requests. They need almost no CPU, so
that dozens of tenants run on a small machine and the GPU is the bottleneck. A point in which the CPU was too slow
for the modeled GPU says how many launches were late.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from milligpu.measure.network import NetworkProfile, profile_network
from milligpu.measure.testbed import LoadReport, Testbed, compute_share
from milligpu.model.units import WHOLE, Mib

# A request to InceptionV3 occupies a K80 for about this long.
REQUEST_US = 20_000.0
"""GPU time of a request."""
BATCH = 8
"""Requests of a batch."""
IN_FLIGHT = 10
"""Requests that a model of `parallel` answers at the same time."""
CPU_LIMITS = (0.35, 0.1)
"""CPUs that a model may use, besides no limit."""
_OVERHEAD_PAIRS = 3
_NBODY_US = 2000
_WARM_S = 0.5
# Latency may grow to this multiple of that of one model before sharing is no longer worth it.
_LATENCY_FACTOR = 2.0
_NS_PER_MS = 1e6
_DENSITY_MAX = 200

Row = dict[str, object]
Progress = Callable[[str], None]

_HOLD = """
import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
context, memory = ctypes.c_void_p(), ctypes.c_void_p()
code = cuda.cuInit(0) or cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) or cuda.cuCtxSetCurrent(context)
code = code or cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(int(sys.argv[1])))
print("full" if code else "held", flush=True)
sys.stdin.read()
"""
"""A model that takes all memory of its share, as TensorFlow does."""


@dataclass(frozen=True, slots=True)
class ExperimentOptions:
    """How far an experiment goes."""

    model: str = "K80"
    size: Mib = Mib(228)
    seconds: float = 3.0
    tenants: Sequence[int] = (1, 2, 5, 10, 20, 30, 50)
    cpu_ms: float = 50.0
    """CPU time of a request before and after the GPU; under a limit of 0.1 CPUs it takes ten times as long."""

    def counts(self, processes: int = 1) -> list[int]:
        """Numbers of tenants with so many processes each: all processes together are at most the most tenants."""
        most = max(self.tenants) // processes
        return [count for count in self.tenants if count <= max(1, most)]


@dataclass(frozen=True, slots=True)
class ExperimentResult:
    """Rows of a table, what to draw of them, and what they mean in one sentence each."""

    name: str
    rows: Sequence[Row]
    x: str
    y: Sequence[str]
    findings: Sequence[str] = ()
    settings: Mapping[str, object] = field(default_factory=dict[str, object])


class Experiments:
    """Experiments on one testbed; the network is profiled once for all of them."""

    def __init__(self, testbed: Testbed, options: ExperimentOptions, progress: Progress) -> None:
        self._testbed = testbed
        self._options = options
        self._progress = progress
        self._profiles: dict[int, NetworkProfile] = {}

    def density(self) -> ExperimentResult:
        """Start models of one size until the GPU's memory is full."""
        rows: list[Row] = []
        for size in (self._options.size, Mib(512), Mib(1024), Mib(2048)):
            self._progress(f"models of {size} MiB")
            rows.append({"mib per model": size, "models": self._fill(size)})
        most = rows[0]
        text = f"{most['models']} models of {most['mib per model']} MiB fit on one GPU of this model"
        return self._result("density", rows, "mib per model", ["models"], [text])

    def _fill(self, size: Mib) -> int:
        """Count the processes that get all of their share; the last one finds the GPU full."""
        model = self._testbed.model
        fitting = min(_DENSITY_MAX, model.memory // (size << 20) + 1)
        shares = [compute_share(WHOLE // fitting, WHOLE, size)] * fitting
        self._testbed.tenants(shares, context_bytes=model.context_memory)
        running: list[subprocess.Popen[str]] = []
        try:
            for tenant in range(fitting):
                process = subprocess.Popen(
                    [sys.executable, "-S", "-c", _HOLD, str((size << 20) - model.context_memory)],
                    env=self._testbed.environment(tenant),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
                running.append(process)
                if process.stdout is None or process.stdout.readline() != "held\n":
                    return tenant
            return fitting
        finally:
            for process in running:
                process.communicate()

    def nbody(self) -> ExperimentResult:
        """Tenants that compute all the time: throughput of all together, and fairness."""
        rows: list[Row] = []
        for count in self._options.counts():
            rates, late = self._busy(count)
            rows.append(
                {
                    "tenants": count,
                    "gpu %": round(100 * sum(rates), 1),
                    "least of the mean": round(min(rates) * len(rates) / sum(rates), 3),
                    "fairness": round(jain(rates), 4),
                    "late": late,
                }
            )
        last = rows[-1]
        text = f"{last['tenants']} tenants use {last['gpu %']} % of the GPU's time; fairness {last['fairness']}"
        return self._result("nbody", rows, "tenants", ["gpu %", "fairness"], [text])

    def _busy(self, count: int) -> tuple[list[float], int]:
        """The fraction of the GPU's time that each of `count` equal tenants gets, and the late launches."""
        self._progress(f"{count} tenants that compute all the time")
        self._testbed.tenants([compute_share(WHOLE // count)] * count)
        for tenant in range(count):
            self._testbed.start(tenant, "train", f"kernel={_NBODY_US}")
        self._testbed.begin()
        time.sleep(_WARM_S)
        before = self._testbed.sample(time.monotonic_ns)
        time.sleep(self._options.seconds)
        after = self._testbed.sample(time.monotonic_ns)
        self._testbed.stop()
        spent = after.time - before.time
        rates = [(busy - before.busy.get(pid, 0)) / spent for pid, busy in after.busy.items()]
        return rates, self._testbed.late_launches()

    def sequential(self) -> ExperimentResult:
        """Models that answer one request at a time, with and without a limit of their CPU time."""
        rows = [row for limit in (None, *CPU_LIMITS) for row in self._serving(limit, processes=1)]
        return self._result("sequential", rows, "models", ["requests/s", "p50 ms"], _serving_findings(rows))

    def parallel(self) -> ExperimentResult:
        """The same with ten requests in flight for each model."""
        rows = list(self._serving(None, processes=IN_FLIGHT))
        return self._result("parallel", rows, "models", ["requests/s", "p50 ms"], _serving_findings(rows))

    def _serving(self, limit: float | None, *, processes: int) -> Iterator[Row]:
        kernel, cores = self._request_us(1), os.cpu_count() or 1
        gap = 1000 * self._options.cpu_ms / (limit or 1.0)
        for count in self._options.counts(processes):
            row: Row = {"models": count, "in flight": processes, "cpu limit": limit or "none"}
            if limit is not None and count * limit > cores:
                yield {**row, "note": f"not run: needs {count * limit:g} cores"}
                continue
            load = ("sync", f"kernel={kernel:.0f}", f"gap={gap:.0f}")
            reports, late = self._run(count, load, processes)
            yield {**row, **_answers(reports, kernel, gap), "late": late}

    def batching(self) -> ExperimentResult:
        """One model under ten waiting requests, one by one and in batches."""
        rows: list[Row] = []
        for batch in (1, BATCH):
            kernel = self._request_us(batch)
            reports, late = self._run(1, ("sync", f"kernel={kernel:.0f}", "gap=0"))
            found = _answers(reports, kernel, 0)
            rows.append(
                {
                    "batch": batch,
                    "requests/s": round(float(str(found["requests/s"])) * batch, 1),
                    "p50 ms": found["p50 ms"],
                    "gpu us per pass": round(self._profile(batch).gpu_us, 1),
                    "kib": self._profile(batch).memory >> 10,
                    "late": late,
                }
            )
        one, many = rows
        gain = float(str(many["requests/s"])) / float(str(one["requests/s"]))
        memory = float(str(many["kib"])) / float(str(one["kib"]))
        text = f"batches of {BATCH} give {gain:.1f} x the throughput for {memory:.1f} x the memory"
        return self._result("batching", rows, "batch", ["requests/s"], [text])

    def overhead(self) -> ExperimentResult:
        """One program without limits, then the same with a whole share: what sharing itself costs."""
        kernel = self._request_us(1)
        load = ("sync", f"kernel={kernel:.0f}", "gap=0")
        rates: dict[bool, list[float]] = {False: [], True: []}
        late = 0
        for number in range(_OVERHEAD_PAIRS):
            for shared in (False, True):
                self._progress(f"pair {number + 1} of {_OVERHEAD_PAIRS}, {'shared' if shared else 'bare'}")
                self._testbed.tenants([compute_share(WHOLE)])
                reports = self._measure([0 if shared else None], load)
                late += self._testbed.late_launches()
                rates[shared].append(reports[0].launches / reports[0].seconds)
        bare, held = median(rates[False]), median(rates[True])
        row: Row = {
            "bare/s": round(bare, 2),
            "shared/s": round(held, 2),
            "overhead %": round(100 * (1 - held / bare), 2),
        }
        text = f"a program with a share is {row['overhead %']} % slower than without milligpu"
        return self._result("overhead", [{**row, "late": late}], "bare/s", ["shared/s"], [text])

    def cost(self) -> ExperimentResult:
        """How many GPUs a model each would need, against one that they share."""
        fitting = self._fill(self._options.size)
        rows = list(self._serving(CPU_LIMITS[-1], processes=1))
        measured = [row for row in rows if "p50 ms" in row]
        alone = float(str(measured[0]["p50 ms"]))
        good = [row for row in measured if float(str(row["p50 ms"])) <= _LATENCY_FACTOR * alone]
        models = min(fitting, int(str(good[-1]["models"])))
        found: list[Row] = [
            {
                **row,
                "saving": f"{row['models']} x" if row in good else "too slow" if row in measured else "",
            }
            for row in rows
        ]
        text = (
            f"{models} models share one GPU with at most {_LATENCY_FACTOR:g} x the latency of one: "
            f"{models} x cheaper than a GPU each ({fitting} fit into its memory)"
        )
        return self._result("cost", found, "models", ["p50 ms"], [text])

    def _profile(self, batch: int) -> NetworkProfile:
        if batch not in self._profiles:
            self._progress(f"the network, with batches of {batch}")
            self._profiles[batch] = profile_network(self._testbed, batch)
        return self._profiles[batch]

    def _request_us(self, batch: int) -> float:
        """GPU time of one request or batch: so many passes that a single request takes about 20 ms."""
        passes = max(1, round(REQUEST_US / self._profile(1).gpu_us))
        return passes * self._profile(batch).gpu_us

    def _run(self, count: int, load: Sequence[str], processes: int = 1) -> tuple[list[LoadReport], int]:
        """Let each of `count` equal tenants run its programs; their reports, and how many launches were late."""
        self._progress(f"{count} tenants, {' '.join(load)}")
        self._testbed.tenants([compute_share(WHOLE // count)] * count)
        places = [tenant for tenant in range(count) for _ in range(processes)]
        return self._measure(places, load), self._testbed.late_launches()

    def _measure(self, places: Sequence[int | None], load: Sequence[str]) -> list[LoadReport]:
        for tenant in places:
            self._testbed.start(tenant, *load)
        self._testbed.begin()
        time.sleep(self._options.seconds)
        return self._testbed.stop()

    def _result(
        self, name: str, rows: Sequence[Row], x: str, y: Sequence[str], findings: Sequence[str]
    ) -> ExperimentResult:
        settings: dict[str, object] = {"model": self._options.model, "seconds": self._options.seconds}
        settings |= {"network": {batch: round(each.gpu_us, 2) for batch, each in self._profiles.items()}}
        return ExperimentResult(name, rows, x, y, findings, settings)


NAMES = ("density", "nbody", "sequential", "parallel", "batching", "overhead", "cost")


def _answers(reports: Sequence[LoadReport], kernel_us: float, cpu_us: float) -> Row:
    """Rate and latency; a request takes its CPU time, and then its turn on the GPU."""
    rate = sum(each.answers for each in reports) / max(each.seconds for each in reports)
    return {
        "requests/s": round(rate, 1),
        "p50 ms": round(median(each.p50_ns for each in reports) / _NS_PER_MS + cpu_us / 1000, 1),
        "p99 ms": round(max(each.p99_ns for each in reports) / _NS_PER_MS + cpu_us / 1000, 1),
        "gpu %": round(min(100.0, rate * kernel_us / 1e4), 1),
    }


def _serving_findings(rows: Sequence[Row]) -> list[str]:
    measured = [row for row in rows if "p50 ms" in row and row["cpu limit"] == "none"]
    first, last = measured[0], measured[-1]
    return [
        f"from {first['models']} to {last['models']} models: "
        f"{first['requests/s']} to {last['requests/s']} requests/s, "
        f"p50 {first['p50 ms']} to {last['p50 ms']} ms"
    ]


def jain(rates: Sequence[float]) -> float:
    """Jain's index of fairness: 1 if all have the same."""
    return sum(rates) ** 2 / (len(rates) * sum(rate * rate for rate in rates))
