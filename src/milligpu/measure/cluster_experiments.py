"""The experiments in Kubernetes: each tenant is a pod with a share of one GPU of the cluster.

The pods are scheduled, attached and limited as any others. What they measured is in their logs; GPU time is what
the node's agent charged them. All pods are deleted at the end, also when the command is interrupted.
"""

import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from statistics import median, quantiles
from typing import Any
from urllib.parse import quote
from uuid import uuid4

from milligpu.kube import config, fetch
from milligpu.kube.api import ApiRefused
from milligpu.kube.config import BlockingClient
from milligpu.measure.experiments import (
    BATCH,
    CPU_LIMITS,
    IN_FLIGHT,
    REQUEST_US,
    ExperimentOptions,
    ExperimentResult,
    Row,
    jain,
)
from milligpu.measure.tenant_pods import TenantLoad, answer_times, has_begun, tenant_pod
from milligpu.model.errors import Unavailable
from milligpu.model.units import BYTES_PER_MIB, Mib
from milligpu.status.cluster import read_cluster_status
from milligpu.wire.status import GpuStatus, ShareUsage

IMAGE = "docker.io/library/python:3-slim"
# An image may have to be pulled first.
_START_S = 300.0
_POLL_S = 0.5
# Kubelets take 110 pods by default.
_PODS_MAX = 100
_WARM_S = 1.0
# Each needs two pods, one after the other, and a pod takes seconds to start.
_OVERHEAD_PAIRS = 2
_GONE = 404


@dataclass(frozen=True, slots=True)
class ClusterPlace:
    """Where the tenants run."""

    kubeconfig: str | None
    namespace: str
    image: str


class ClusterExperiments:
    """Experiments with pods; each leaves the namespace as it found it."""

    def __init__(self, place: ClusterPlace, options: ExperimentOptions, progress: Callable[[str], None]) -> None:
        self._place = place
        self._options = options
        self._progress = progress
        self._run = uuid4().hex[:6]
        self._pods = f"/api/v1/namespaces/{quote(place.namespace)}/pods"

    def density(self) -> ExperimentResult:
        """Start pods of one size until the memory of a GPU is full."""
        gpu, size = self._gpu, self._options.size
        count = min(_PODS_MAX, gpu.mib // size + 1)
        self._progress(f"{count} pods with {size} MiB each")
        with self._tenants(count, TenantLoad.hold(size)) as (client, pods):
            held = sum("held" in self._log(client, name) for name in pods)
        row: Row = {"mib per model": size, "gpu mib": gpu.mib, "pods": count, "models": held}
        most = " (no more were tried)" if held == count else ""
        text = f"{held} models of {size} MiB fit on one GPU with {gpu.mib} MiB{most}"
        return self._result("density", [row], "mib per model", ["models"], [text])

    def nbody(self) -> ExperimentResult:
        """Pods that compute all the time: the GPU time that each was charged."""
        rows: list[Row] = []
        for count in self._options.tenants:
            self._progress(f"{count} pods that compute all the time")
            with self._tenants(count, TenantLoad(["busy"])) as (_, pods):
                time.sleep(_WARM_S)
                rates = self._rates(pods)
            mean = sum(rates) / len(rates)
            rows.append(
                {
                    "tenants": count,
                    "gpu %": round(100 * sum(rates), 1),
                    "least of the mean": round(min(rates) / mean, 3) if mean else None,
                    "fairness": round(jain(rates), 4) if mean else None,
                }
            )
        last = rows[-1]
        text = f"{last['tenants']} pods use {last['gpu %']} % of the GPU's time; fairness {last['fairness']}"
        return self._result("nbody", rows, "tenants", ["gpu %", "fairness"], [text])

    def _rates(self, pods: Sequence[str]) -> list[float]:
        begin, before = self._gpu_times(pods)
        time.sleep(self._options.seconds)
        end, after = self._gpu_times(pods)
        return [(after[name] - before[name]) / 1e9 / (end - begin) for name in pods]

    def _gpu_times(self, pods: Sequence[str]) -> tuple[float, dict[str, int]]:
        uses = self._uses(pods)
        return time.monotonic(), {use.pod: use.gpu_time_ns for use in uses if use.gpu_time_ns is not None}

    def _uses(self, pods: Sequence[str]) -> list[ShareUsage]:
        """Return what the node's agent measured of each pod."""
        status = read_cluster_status(self._place.kubeconfig, self._place.namespace)
        found = [use for use in status.shares if use.pod in pods and use.gpu_time_ns is not None]
        if len(found) != len(pods):
            why = "; ".join(status.problems) or "their agent does not count their time"
            raise Unavailable(f"no measurements of {len(pods) - len(found)} pods: {why}")
        return found

    def sequential(self) -> ExperimentResult:
        """Pods that answer one request at a time, with and without a limit of their CPU time."""
        rows = [row for limit in (None, *CPU_LIMITS) for row in self._serving(limit)]
        return self._result("sequential", rows, "models", ["requests/s", "p50 ms"], [_growth(rows)])

    def parallel(self) -> ExperimentResult:
        """The same with ten requests in flight for each model, each in a process of its own."""
        rows = self._serving(None, IN_FLIGHT)
        return self._result("parallel", rows, "models", ["requests/s", "p50 ms"], [_growth(rows)])

    def batching(self) -> ExperimentResult:
        """One pod with the network: one request after the other, and in batches."""
        rows: list[Row] = []
        for batch in (1, BATCH):
            self._progress(f"the network, with batches of {batch}")
            with self._tenants(1, TenantLoad.network(batch)) as (client, pods):
                answers = _enough(self._measure(client, pods))
                used = self._uses(pods)[0].memory_used
            row: Row = {"batch": batch, "requests/s": round(len(answers) * batch / self._options.seconds, 1)}
            row |= {"p50 ms": round(median(answers), 1), "mib": None if used is None else used // BYTES_PER_MIB}
            rows.append(row)
        one, many = rows
        gain = float(str(many["requests/s"])) / float(str(one["requests/s"]))
        text = f"batches of {BATCH} give {gain:.1f} x the throughput; memory {one['mib']} and {many['mib']} MiB"
        return self._result("batching", rows, "batch", ["requests/s"], [text])

    def overhead(self) -> ExperimentResult:
        """One pod with a whole GPU, which has no limits library, then with a share of all of a GPU on its node."""
        rates: dict[bool, list[float]] = {False: [], True: []}
        node = ""
        for number in range(_OVERHEAD_PAIRS):
            for shared in (False, True):
                kind = "shared" if shared else "bare"
                self._progress(f"pair {number + 1} of {_OVERHEAD_PAIRS}, {kind}")
                load = TenantLoad.serve(REQUEST_US, 0, bare=not shared, node=node)
                with self._tenants(1, load) as (client, pods):
                    node = str(self._mine(client, pods)[pods[0]]["spec"]["nodeName"])
                    if f"ready {kind}" not in self._log(client, pods[0]):
                        raise Unavailable(f"pod {pods[0]} was to be {kind}, and is not")
                    rates[shared].append(len(_enough(self._measure(client, pods))) / self._options.seconds)
        bare, held = median(rates[False]), median(rates[True])
        slower = round(100 * (1 - held / bare), 2)
        row: Row = {"bare/s": round(bare, 2), "shared/s": round(held, 2), "overhead %": slower}
        text = f"a program with a share is {slower} % slower than one with a whole GPU"
        return self._result("overhead", [row], "bare/s", ["shared/s"], [text])

    def cost(self) -> ExperimentResult:
        """How many pods share a GPU with at most twice the latency of one."""
        rows = self._serving(None)
        if any(row["p50 ms"] is None for row in rows):
            raise Unavailable("too few requests were answered", hint="measure longer: --seconds 10")
        alone = float(str(rows[0]["p50 ms"]))
        good = [row for row in rows if float(str(row["p50 ms"])) <= 2 * alone]
        found: list[Row] = [{**row, "saving": f"{row['models']} x" if row in good else "too slow"} for row in rows]
        models = good[-1]["models"]
        text = (
            f"{models} models share one GPU with at most 2 x the latency of one: {models} x cheaper than a GPU each"
        )
        return self._result("cost", found, "models", ["p50 ms"], [text])

    def _serving(self, limit: float | None, in_flight: int = 1) -> list[Row]:
        rows: list[Row] = []
        for count in self._options.counts(in_flight):
            self._progress(f"{count} pods that answer requests" + (f", {limit:g} CPU each" if limit else ""))
            load = TenantLoad.serve(REQUEST_US, self._options.cpu_ms, processes=in_flight, cpu=limit)
            with self._tenants(count, load) as (client, pods):
                answers = self._measure(client, pods)
            row: Row = {"models": count, "in flight": in_flight, "cpu limit": limit or "none"}
            row |= {"requests/s": None, "p50 ms": None}
            if len(answers) > 1:
                row |= {
                    "requests/s": round(len(answers) / self._options.seconds, 1),
                    "p50 ms": round(median(answers), 1),
                    "p99 ms": round(quantiles(answers, n=100)[-1], 1),
                }
            rows.append(row)
        return rows

    def _measure(self, client: BlockingClient, pods: Sequence[str]) -> list[float]:
        """Return the latencies of all requests that were answered within the time to measure."""
        time.sleep(_WARM_S)
        begin = time.time()
        end = begin + self._options.seconds
        time.sleep(self._options.seconds)
        return [each for name in pods for each in answer_times(self._log(client, name), begin, end)]

    @cached_property
    def _gpu(self) -> GpuStatus:
        """The largest free GPU: the tenants have parts of it, or of one like it."""
        found = [
            gpu
            for gpu in read_cluster_status(self._place.kubeconfig).gpus
            if gpu.state == "ok" and (gpu.free_milli, gpu.free_mib) == (gpu.milli, gpu.mib)
        ]
        if not found:
            raise Unavailable("no GPU of the cluster is free", hint="list them with: milligpu top --cluster --once")
        return max(found, key=lambda gpu: gpu.mib)

    @contextmanager
    def _tenants(self, count: int, load: TenantLoad) -> Generator[tuple[BlockingClient, list[str]]]:
        """Run pods with equal parts of one GPU, which is theirs alone; delete them in the end."""
        together = f"experiment-{self._run}"
        pods = [f"{together}-{number}" for number in range(count)]
        gpu = Mib(self._gpu.mib)
        with config.blocking_client(config.find_cluster(self._place.kubeconfig)) as client:
            try:
                for name in pods:
                    pod = tenant_pod(name, self._place.image, load, count, gpu)
                    fetch.post_json(client, self._pods, pod)
                self._wait(client, pods, load)
                yield client, pods
            finally:
                for name in pods:
                    _delete(client, f"{self._pods}/{name}")
                _poll("the pods to end", lambda: not self._mine(client, pods))

    def _wait(self, client: BlockingClient, pods: Sequence[str], load: TenantLoad) -> None:
        """Wait until every tenant has begun; if each states its memory, or finds no room."""

        def begun() -> bool:
            found = self._mine(client, pods)
            if failed := [name for name, each in found.items() if each["status"].get("phase") == "Failed"]:
                text = self._log(client, failed[0]).strip().splitlines()
                raise Unavailable(f"pod {failed[0]} failed: {text[-1] if text else 'no log'}")
            full = load.mib is not None
            waiting = [name for name, each in found.items() if full and _has_no_room(each)]
            return all(name in waiting or has_begun(self._log(client, name), load.processes) for name in pods)

        _poll("the pods to begin", begun)

    def _mine(self, client: BlockingClient, pods: Sequence[str]) -> dict[str, dict[str, Any]]:
        items: list[dict[str, Any]] = fetch.get_json(client, self._pods)["items"]
        return {each["metadata"]["name"]: each for each in items if each["metadata"]["name"] in set(pods)}

    def _log(self, client: BlockingClient, name: str) -> str:
        """What a tenant said; empty before its container runs."""
        try:
            return fetch.get_text(client, f"{self._pods}/{name}/log")
        except ApiRefused:
            return ""

    def _result(
        self, name: str, rows: Sequence[Row], x: str, y: Sequence[str], findings: Sequence[str]
    ) -> ExperimentResult:
        settings: dict[str, object] = {"image": self._place.image, "seconds": self._options.seconds}
        return ExperimentResult(name, rows, x, y, findings, settings)


def _has_no_room(pod: dict[str, Any]) -> bool:
    conditions: list[dict[str, str]] = pod["status"].get("conditions", [])
    return any(each["type"] == "PodScheduled" and each["status"] == "False" for each in conditions)


def _enough(answers: list[float]) -> list[float]:
    if not answers:
        raise Unavailable("no request was answered", hint="measure longer: --seconds 10")
    return answers


def _delete(client: BlockingClient, path: str) -> None:
    try:
        fetch.delete_json(client, path)
    except ApiRefused as error:
        if error.status != _GONE:
            raise


def _poll(what: str, done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _START_S
    while not done():
        if time.monotonic() > deadline:
            raise Unavailable(
                f"waited {_START_S:.0f} s for {what}", hint="kubectl get pods shows what they wait for"
            )
        time.sleep(_POLL_S)


def _growth(rows: Sequence[Row]) -> str:
    measured = [row for row in rows if row["cpu limit"] == "none"]
    first, last = measured[0], measured[-1]
    rates, latencies = f"{first['requests/s']} to {last['requests/s']}", f"{first['p50 ms']} to {last['p50 ms']}"
    return f"from {first['models']} to {last['models']} models: {rates} requests/s, p50 {latencies} ms"
