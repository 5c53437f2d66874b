"""The agent on a real node: how fast pods with a share start, and what the idle agent costs.

    PYTHONPATH=. python bench/agent.py [starts] [cost] [--rounds 3] [--seconds 60]

`starts` creates bursts of pods on the same node, with and without a share in turns, and measures the time from the
creation of each pod until the API server shows it as running. `cost` measures the CPU time and memory of the agent,
with its arbiter, while all shares are idle.
"""

import argparse
import asyncio
import json
import math
import os
import statistics
import time
from pathlib import Path

from devcluster.cluster import Cluster
from devcluster.fixtures import unique_name
from devcluster.images import BASE
from devcluster.platform import GpuNode, Platform, install_platform
from devcluster.process import Process
from milligpu.kube import config
from milligpu.kube.api import ApiClient
from milligpu.kube.watch import Relisted, Watch
from milligpu.model import names
from milligpu.wire import kubernetes

PODS = "/api/v1/namespaces/default/pods"
DEADLINE_S = 240.0
STARTS, STARTS_GPUS = 50, 2
SHARES, SHARES_GPUS = 100, 8
# Time for the agent to finish its work after the last share was attached.
REST_S = 10.0


def share(pods: int, gpus: int) -> int:
    """The largest share in milli-GPU with which this many pods fit on this many GPUs."""
    return 1000 // math.ceil(pods / gpus)


async def create(api: ApiClient, count: int, milli: int) -> dict[str, float]:
    """Create pods as fast as the API server accepts them; the time at which each was created."""

    async def one(number: int) -> tuple[str, float]:
        container = {"name": "main", "image": BASE.reference, "imagePullPolicy": "Never"}
        limits = {"resources": {"limits": {names.VGPU: str(milli)}}} if milli else {}
        spec = {
            "terminationGracePeriodSeconds": 0,
            "containers": [{**container, "command": ["sleep", "infinity"], **limits}],
        }
        name = f"pod-{number}"
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
        at = time.monotonic()
        await api.send("POST", PODS, body, timeout_s=60)
        return name, at

    return dict(await asyncio.gather(*(one(number) for number in range(count))))


async def running(api: ApiClient, count: int) -> dict[str, float]:
    """The time at which the watch showed each pod as running."""
    seen: dict[str, float] = {}
    async for news in Watch(api, PODS, kubernetes.KubePod).follow():
        for pod in news.items if isinstance(news, Relisted) else [each for _, each in news.items]:
            if pod.status.phase == "Running":
                seen.setdefault(pod.metadata.name, time.monotonic())
            if pod.status.phase == "Failed":
                raise RuntimeError(f"{pod.metadata.name} failed")
        if len(seen) == count:
            break
    return seen


async def clear(api: ApiClient) -> None:
    """Remove all pods, and wait until they are gone."""
    options = {"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0}
    await api.send("DELETE", PODS, options, timeout_s=120)
    while json.loads(await api.get(PODS))["items"]:
        await asyncio.sleep(0.2)


async def burst(api: ApiClient, count: int, milli: int) -> list[float]:
    """Create pods and wait until they run; the seconds that each took, sorted."""
    watching = asyncio.create_task(running(api, count))
    await asyncio.sleep(0.5)  # the watch must be there before the first pod
    asked = await create(api, count, milli)
    seen = await asyncio.wait_for(watching, DEADLINE_S)
    return sorted(seen[name] - asked[name] for name in asked)


async def rest(node: GpuNode) -> None:
    """Wait until no container is left, because ending ones would slow down the next burst."""
    while node.node.pids() or list((node.node.folder / "run/milligpu/containers").iterdir()):
        await asyncio.sleep(0.2)


async def starts(cluster: Cluster, platform: Platform, options: argparse.Namespace) -> None:
    """Measure bursts with and without a share in turns, and print the medians."""
    (node,) = platform.nodes
    milli = share(STARTS, STARTS_GPUS)
    medians: dict[int, list[float]] = {0: [], milli: []}
    lasts: dict[int, list[float]] = {0: [], milli: []}
    async with ApiClient(config.find_cluster(str(cluster.kubeconfig))) as api:
        for turn in range(2 * options.rounds):
            kind = (0, milli)[(turn + turn // 2) % 2]  # each kind comes first as often as second
            watched = {"agent": node.agent, "kubelet": node.node.kubelet, "service": platform.service.process}
            before = {name: cpu_s(process) for name, process in watched.items()}
            took = await burst(api, STARTS, kind)
            spent = ", ".join(f"{name} {cpu_s(process) - before[name]:.2f} s" for name, process in watched.items())
            medians[kind].append(statistics.median(took))
            lasts[kind].append(took[-1])
            print(
                f"{kind} milli: median {medians[kind][-1]:.2f} s, last {took[-1]:.2f} s; CPU: {spent}", flush=True
            )
            await clear(api)
            await rest(node)
    for what, found in (("median", medians), ("last", lasts)):
        without, with_share = statistics.median(found[0]), statistics.median(found[milli])
        print(f"{what}: {without:.2f} s without, {with_share:.2f} s with a share: {with_share / without:.2f} x")


async def cost(cluster: Cluster, platform: Platform, options: argparse.Namespace) -> None:
    """Measure the agent while all shares are idle."""
    (node,) = platform.nodes
    async with ApiClient(config.find_cluster(str(cluster.kubeconfig))) as api:
        await burst(api, SHARES, share(SHARES, SHARES_GPUS))
    await asyncio.sleep(REST_S)
    before = cpu_s(node.agent)
    await asyncio.sleep(options.seconds)
    used = cpu_s(node.agent) - before
    print(f"{SHARES_GPUS} GPUs, {SHARES} idle shares, {options.seconds} s")
    print(f"CPU: {100 * used / options.seconds:.2f} % of a core; by thread: {', '.join(threads(node.agent))}")
    print(f"memory: {resident_mib(node.agent):.1f} MiB")


PARTS = {"starts": (STARTS_GPUS, starts), "cost": (SHARES_GPUS, cost)}
"""The number of GPUs that each part needs, and its function."""


def cpu_s(process: Process) -> float:
    """User and system time of a process with all its threads so far."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def threads(process: Process) -> list[str]:
    """Each thread with its CPU time since it started."""
    found: list[str] = []
    for task in Path(f"/proc/{process.pid}/task").iterdir():
        fields = (task / "stat").read_text().rpartition(")")[2].split()
        spent = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        found.append(f"{(task / 'comm').read_text().strip()} {spent:.2f} s")
    return found


def resident_mib(process: Process) -> float:
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", choices=PARTS, default=list(PARTS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=60)
    options = parser.parse_args()
    for part in options.parts:
        gpus, measure = PARTS[part]
        with Cluster.start(unique_name(), real_nodes=1) as cluster:
            asyncio.run(measure(cluster, install_platform(cluster, devices=gpus), options))


if __name__ == "__main__":
    main()
