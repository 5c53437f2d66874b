"""kube-scheduler with the scheduler service, compared with kube-scheduler alone: rates, packing, latency, memory.

    PYTHONPATH=. python bench/scheduler.py [--nodes 1000 --nodes 5000] [--pods 5000] [--rounds 2]

Everything runs on a real control plane. The nodes have 8 GPUs each and exist only in the API, so pods are bound but
never run. For a burst, all pods are created while both processes are stopped (SIGSTOP). Then both continue, and the
time until the last pod is bound is measured; it includes what the service does ahead of kube-scheduler. Variants
take turns on the same nodes. --percent, --parallelism and --no-gates change the recommended configuration of the
second scheduler, to measure what each setting gains.

With --leader-change a cluster with --existing pods gets a new leader; see `bench/leader_change.py`.

With --reuse the service runs over TLS, in turn with and without `ConnectionReuse`, and only CPU time and the number
of connections that kube-scheduler opens are compared.
"""

import argparse
import asyncio
import json
import math
import os
import re
import signal
import ssl
import statistics
import sys
import time
import urllib.request
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightkube.resources.core_v1 import ServiceAccount

from bench.leader_change import GPUS, cpu_s, measure_leader_change, memory_mib, node_object
from devcluster.api import list_in
from devcluster.certs import Authority
from devcluster.cluster import Cluster
from devcluster.controlplane import DEFAULT_SCHEDULER
from devcluster.process import Process
from devcluster.wait import until
from milligpu.http_server import CLIENT_IDLE_MAX
from milligpu.kube import config
from milligpu.kube.api import ApiClient
from milligpu.kube.watch import Relisted, Watch
from milligpu.manifests.kube_scheduler import (
    OFFERED_PERCENT,
    PARALLELISM,
    SECOND_SCHEDULER_GATES,
    TlsClientFiles,
    second_scheduler,
)
from milligpu.model import names
from milligpu.wire import kubernetes

SHARE = 300
BARE, OURS = "bare", "milligpu"
DEADLINE_S = 120.0
# Runs `milligpu` with a count of connections, which it writes to a file at its end. Argument 2 is how many idle
# connections the client is taken to keep; with a very large number no answer is delayed.
_COUNTED = """
import sys
from pathlib import Path
from milligpu import http_server
from milligpu.cli.main import main
http_server.CLIENT_IDLE_MAX = int(sys.argv[2])
made = http_server._Connection.connection_made
count = 0
def counted(self, transport):
    global count
    count += 1
    made(self, transport)
http_server._Connection.connection_made = counted
file = Path(sys.argv[1])
sys.argv[1:] = sys.argv[3:]
try:
    main()
finally:
    file.write_text(str(count))
"""


@dataclass
class Burst:
    """Result of a burst."""

    rate: float
    nodes: int
    cpu: str
    """CPU time of each program, in ms per pod."""
    spent: list[float]
    """The same as numbers: kube-scheduler, the service, the API server, etcd."""


@dataclass(frozen=True)
class Setup:
    """Configuration of the second scheduler."""

    percent: int
    parallelism: int
    gates: bool

    def configuration(self, url: str) -> dict[str, Any]:
        """The recommended configuration with these settings changed."""
        made = second_scheduler(url, OURS)
        made["parallelism"] = self.parallelism
        made["profiles"][0]["percentageOfNodesToScore"] = self.percent
        return made


class Bench:
    """A cluster whose nodes exist only in the API."""

    def __init__(self, cluster: Cluster, api: ApiClient, setup: Setup) -> None:
        self.cluster = cluster
        self.api = api
        self._setup = setup
        self.port = 18888

    async def add_nodes(self, count: int) -> None:
        """Create nodes that are Ready; no controller runs that would mark them otherwise."""
        client = self.cluster.client
        until("the default account", lambda: bool(list_in(client, ServiceAccount, "default")), 60)
        self.cluster.control_plane.stop_scheduler(DEFAULT_SCHEDULER)
        self.cluster.control_plane.controller_manager.stop()
        await self._post("/api/v1/nodes", (node_object(f"node-{number}") for number in range(count)))

    async def _post(self, path: str, bodies: Iterable[object]) -> None:
        slots = asyncio.Semaphore(32)

        async def one(body: object) -> None:
            async with slots:
                await self.api.send("POST", path, body, timeout_s=60)

        await asyncio.gather(*map(one, bodies))

    async def create(self, count: int, scheduler: str, bad: int = 0) -> None:
        """Create pods as fast as the API server accepts them."""
        every = count // bad if bad else count + 1
        bodies = (_pod(f"{scheduler}-{n}", scheduler, hopeless=bad > 0 and n % every == 0) for n in range(count))
        await self._post("/api/v1/namespaces/default/pods", bodies)

    async def clear(self) -> None:
        """Remove all pods, and wait until they are gone."""
        options = {"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0}
        await self.api.send("DELETE", "/api/v1/namespaces/default/pods", options, timeout_s=120)
        while await self.pods():
            await asyncio.sleep(0.5)

    async def pods(self) -> list[dict[str, Any]]:
        text = await self.api.get("/api/v1/namespaces/default/pods?resourceVersion=0", timeout_s=60)
        return json.loads(text)["items"]

    async def burst(self, scheduler: str, processes: list[Process], count: int, bad: int = 0) -> Burst:
        """Create the pods while both programs are stopped, then continue both and measure."""
        for process in processes:
            os.kill(process.pid, signal.SIGSTOP)
        await self.create(count, scheduler, bad)
        bound = asyncio.create_task(self._bound(count - bad))
        await asyncio.sleep(1)
        programs = [*processes, self.cluster.control_plane.apiserver, self.cluster.control_plane.etcd]
        before = [cpu_s(each) for each in programs]
        start = time.monotonic()
        for process in processes:
            os.kill(process.pid, signal.SIGCONT)
        end, nodes = await asyncio.wait_for(bound, DEADLINE_S)
        spent = [1000 * (cpu_s(each) - then) / count for each, then in zip(programs, before, strict=True)]
        cpu = ", ".join(f"{each.name} {ms:.2f}" for each, ms in zip(programs, spent, strict=True))
        return Burst((count - bad) / (end - start), nodes, f"{cpu}: {sum(spent):.2f} ms of CPU per pod", spent)

    async def _bound(self, count: int) -> tuple[float, int]:
        """Watch the pods until this many have a node."""
        nodes: dict[str, str] = {}
        pattern = re.compile(rb'"nodeName":"([^"]+)"')
        async for news in Watch(self.api, "/api/v1/namespaces/default/pods", kubernetes.KubePod).follow():
            for pod in news.items if isinstance(news, Relisted) else [each for _, each in news.items]:
                found = pattern.search(bytes(pod.spec))
                if found:
                    nodes[pod.metadata.uid] = found[1].decode()
            if len(nodes) >= count:
                break
        return time.monotonic(), len(set(nodes.values()))

    async def lone(self, scheduler: str, rounds: int) -> list[float]:
        """How long single pods take from their creation until they are bound, in ms."""
        times: list[float] = []
        for number in range(rounds):
            bound = asyncio.create_task(self._bound(number + 1))
            await asyncio.sleep(0.3)
            start = time.monotonic()
            body = _pod(f"lone-{scheduler}-{number}", scheduler, hopeless=False)
            await self.api.send("POST", "/api/v1/namespaces/default/pods", body)
            times.append(1000 * ((await asyncio.wait_for(bound, 30))[0] - start))
        return times

    @contextmanager
    def bare(self) -> Generator[list[Process]]:
        """kube-scheduler alone, with its default configuration."""
        process = self.cluster.start_scheduler({}, BARE)
        time.sleep(3)
        yield [process]
        self.cluster.control_plane.stop_scheduler(BARE)

    @contextmanager
    def ours(self) -> Generator[list[Process]]:
        """kube-scheduler with the service."""
        command = [str(Path(sys.executable).with_name("milligpu")), "scheduler", "serve", "--namespace", "default"]
        command += ["--kubeconfig", str(self.cluster.kubeconfig), "--port", str(self.port)]
        command += ["--scheduler-name", OURS, "--lease-seconds", "3600"]
        service = self.cluster.new_process(f"service-{self.port}", command)
        service.start()
        until("the service", self._ready, 60, retry=(OSError,))
        url = f"http://127.0.0.1:{self.port}"
        gates = SECOND_SCHEDULER_GATES if self._setup.gates else None
        process = self.cluster.start_scheduler(self._setup.configuration(url), OURS, gates)
        time.sleep(3)
        yield [process, service]
        self.cluster.control_plane.stop_scheduler(OURS)
        service.stop()
        self.port += 1

    @contextmanager
    def over_tls(self, idle: int) -> Generator[tuple[list[Process], Path]]:
        """The same over TLS, as if the client kept this many idle connections; with the file of its connections."""
        folder = self.cluster.folder / f"tls-{self.port}"
        folder.mkdir()
        authority = Authority("extenders", folder)
        server = authority.server("service", ["127.0.0.1"], file="service")
        client = authority.client("kube-scheduler", file="client")
        counted = folder / "connections"
        command = [sys.executable, "-c", _COUNTED, str(counted), str(idle), "scheduler", "serve"]
        command += [
            "--namespace",
            "default",
            "--kubeconfig",
            str(self.cluster.kubeconfig),
            "--port",
            str(self.port),
        ]
        command += ["--scheduler-name", OURS, "--lease-seconds", "3600"]
        command += ["--tls-cert", str(server.certificate), "--tls-key", str(server.key)]
        service = self.cluster.new_process(f"service-{self.port}", command)
        service.start()
        context = ssl.create_default_context(cafile=authority.certificate)
        url = f"https://127.0.0.1:{self.port}"

        def ready() -> bool:
            with urllib.request.urlopen(f"{url}/leading", timeout=2, context=context) as answer:
                return answer.status == 200

        until("the service", ready, 60, retry=(OSError,))
        files = TlsClientFiles(str(authority.certificate), str(client.certificate), str(client.key))
        process = self.cluster.start_scheduler(second_scheduler(url, OURS, files), OURS, SECOND_SCHEDULER_GATES)
        time.sleep(3)
        yield [process, service], counted
        self.cluster.control_plane.stop_scheduler(OURS)
        service.stop()
        self.port += 1

    def _ready(self) -> bool:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/leading", timeout=2) as answer:
            return answer.status == 200

    def metrics(self) -> str:
        """The metrics as Prometheus reads them."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=10) as answer:
            return answer.read().decode()


def _pod(name: str, scheduler: str, *, hopeless: bool) -> dict[str, Any]:
    notes = {names.REQUIRE: "model=H100"} if hopeless else {}
    limits = {names.VGPU: str(SHARE), "cpu": "100m", "memory": "128Mi"}
    container = {"name": "main", "image": "none", "resources": {"limits": limits}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "annotations": notes},
        "spec": {"schedulerName": scheduler, "containers": [container], "terminationGracePeriodSeconds": 0},
    }


def _quantile(metrics: str, verb: str, part: float) -> float:
    """The upper bound of the bucket, in ms."""
    rows = re.findall(rf'answer_seconds_bucket\{{le="([^"]+)",verb="{verb}"\}} (\S+)', metrics)
    total = float(rows[-1][1])
    return next(1000 * float(le) for le, count in rows if float(count) >= part * total)


def _report(done: Burst, ideal: int, text: str, service: Process) -> None:
    failed = re.findall(r'binds_total\{outcome="failed"\} (\S+)', text) or ["0"]
    held = re.findall(r"(?m)^milligpu_scheduler_held_back_seconds_total (\S+)", text)
    more = 100 * done.nodes / ideal - 100
    print(f"  ours: {done.rate:.0f} pods/s onto {done.nodes} nodes ({more:+.1f} %)\n    {done.cpu}")
    print(
        f"    filter p50 <= {_quantile(text, 'filter', 0.5):g} ms, p99 <= {_quantile(text, 'filter', 0.99):g} ms; "
        f"bind p99 <= {_quantile(text, 'bind', 0.99):g} ms, {float(failed[0]):.0f} failed; "
        f"held back {float(held[0]):.1f} s in all; {memory_mib(service, 'VmHWM')} MiB",
        flush=True,
    )


async def measure(count: int, pods: int, rounds: int, setup: Setup, *, reuse: bool) -> None:
    """Measure all variants on a cluster of one size."""
    # New nodes are otherwise tainted until a controller has seen them Ready; thousands of pods are deleted at once.
    arguments = {"disable-admission-plugins": "TaintNodesByCondition", "delete-collection-workers": "16"}
    with Cluster.start(f"bench-{os.getpid()}", apiserver_args=arguments) as cluster:
        async with ApiClient(config.find_cluster(str(cluster.kubeconfig))) as api:
            bench = Bench(cluster, api, setup)
            await bench.add_nodes(count)
            await (_measure_reuse(bench, pods, rounds) if reuse else _measure(bench, count, pods, rounds))


async def _measure_reuse(bench: Bench, pods: int, rounds: int) -> None:
    found: dict[int, list[tuple[float, float, float]]] = {CLIENT_IDLE_MAX: [], 1_000_000: []}
    for _ in range(rounds):
        for idle, each in found.items():
            with bench.over_tls(idle) as (processes, counted):
                done = await bench.burst(OURS, processes, pods)
                await bench.clear()
            each.append((int(counted.read_text()) / pods, sum(done.spent[:2]), done.rate))
            print(
                f"  {idle=}: {each[-1][0]:.2f} connections per pod, {done.rate:.0f} pods/s; {done.cpu}", flush=True
            )
    for idle, each in found.items():
        opened, cpu, rate = (statistics.median(column) for column in zip(*each, strict=True))
        print(f"{idle=}: {opened:.2f} connections, {cpu:.2f} ms of CPU per pod, {rate:.0f} pods/s")


async def _measure(bench: Bench, count: int, pods: int, rounds: int) -> None:
    ideal = math.ceil(pods / (GPUS * (1000 // SHARE)))
    rates: dict[str, list[float]] = {BARE: [], OURS: [], "20%": []}
    print(f"{count} nodes x {GPUS} GPUs, {pods} pods of {SHARE} milli (ideal: {ideal} nodes)", flush=True)
    for _ in range(rounds):
        with bench.bare() as processes:
            done = await bench.burst(BARE, processes, pods)
            rates[BARE].append(done.rate)
            print(f"  bare: {done.rate:.0f} pods/s onto {done.nodes} nodes\n    {done.cpu}", flush=True)
            await bench.clear()
        with bench.ours() as processes:
            done = await bench.burst(OURS, processes, pods)
            rates[OURS].append(done.rate)
            _report(done, ideal, bench.metrics(), processes[1])
            await bench.clear()
            done = await bench.burst(OURS, processes, pods, bad=pods // 5)
            rates["20%"].append(done.rate)
            print(f"  ours, 20 % unschedulable: {done.rate:.0f} pods/s\n    {done.cpu}", flush=True)
            await bench.clear()
            lone = await bench.lone(OURS, 20)
            print(f"  lone pod: median {statistics.median(lone):.0f} ms, slowest {max(lone):.0f} ms", flush=True)
            await bench.clear()
    medians = {name: statistics.median(each) for name, each in rates.items()}
    print(
        f"  ours / bare = {medians[OURS] / medians[BARE]:.2f}, 20 % / ours = {medians['20%'] / medians[OURS]:.2f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, action="append")
    parser.add_argument("--pods", type=int, default=5000)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--percent", type=int, default=OFFERED_PERCENT)
    parser.add_argument("--parallelism", type=int, default=PARALLELISM)
    parser.add_argument("--no-gates", action="store_true")
    parser.add_argument("--leader-change", action="store_true", help="only: a new leader among --existing pods")
    parser.add_argument("--existing", type=int, default=100_000)
    parser.add_argument("--reuse", action="store_true", help="only: with and without ConnectionReuse, over TLS")
    options = parser.parse_args()
    setup = Setup(options.percent, options.parallelism, not options.no_gates)
    for count in (options.nodes or [5000]) if options.leader_change else ():
        asyncio.run(measure_leader_change(count, options.existing, options.existing // 5, options.rounds))
    for count in (options.nodes or [1000, 5000]) if not options.leader_change else ():
        asyncio.run(measure(count, options.pods, options.rounds, setup, reuse=options.reuse))


if __name__ == "__main__":
    main()
