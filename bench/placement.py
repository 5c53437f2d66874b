"""The figures of docs/benchmarks.md about placement: python bench/placement.py DATA_DIR.

DATA_DIR has the CSV files of Alibaba's cluster-trace-gpu-v2023 (github.com/alibaba/clusterdata), which are public
but not part of this repository. The first part replays all pod lists in it with FGD and with our strategies. The
second part measures the time per decision on clusters of growing size with a generated workload, and needs no
DATA_DIR.
"""

import argparse
import random
import statistics
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from milligpu.model.footprint import GpuDemand
from milligpu.model.gpu import Gpu, Node
from milligpu.model.policy import PlacementStrategy
from milligpu.model.request import PodRequest
from milligpu.model.units import Milli
from milligpu.placement.decide import Placer
from milligpu.placement.score import BaselineStrategy, StrategyName
from milligpu.placement.snapshot import Holding, Snapshot
from milligpu.placement.workload import ExpectedWorkload
from milligpu.sim.departures import ChurnResult, churn
from milligpu.sim.generate import generate
from milligpu.sim.replay import SPECIFIC, ReplayResult, ReplaySetup, replay, workload
from milligpu.sim.trace import GPU_MIB, GROUPS, Trace, TracePod, read_trace

NODE_LIST = "openb_node_list_gpu_node.csv"
POD_LIST = "openb_pod_list_"
SIZES = (100, 500, 1000, 2000, 5000, 10_000, 20_000)
# Number of new requests, updates and decisions that are measured.
SAMPLES = 400


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("data", nargs="?", type=Path, help="folder of the traces")
    parser.add_argument("--traces", default="", help="only these pod lists, such as default,gpuspec10")
    parser.add_argument("--seeds", type=int, default=10, help="how many, from 42 on")
    parser.add_argument("--events", type=int, default=20_000, help="pods of a run with departures")
    parser.add_argument("--skip", default="", help="parts to leave out: quality, variants, departures, speed")
    args = parser.parse_args()
    seeds = range(42, 42 + args.seeds)
    skip = set(args.skip.split(","))
    if args.data is not None:
        names = sorted(path.stem.removeprefix(POD_LIST) for path in args.data.glob(f"{POD_LIST}*.csv"))
        chosen = [name for name in names if not args.traces or name in args.traces.split(",")]
        if not chosen:
            sys.exit(f"{args.data}: no {POD_LIST}*.csv of that name")
        traces = {name: read_trace(args.data / NODE_LIST, args.data / f"{POD_LIST}{name}.csv") for name in chosen}
        if "quality" not in skip:
            quality(traces, seeds)
        if "variants" not in skip and "default" in traces:
            quality(variants(traces["default"]), seeds[:2])
        if "departures" not in skip and "default" in traces:
            departures(traces["default"], seeds[:3], args.events)
    if "speed" not in skip:
        speed()


def quality(traces: dict[str, Trace], seeds: range) -> None:
    """Allocation and failed pods of FGD and packing, with the workload known in advance and learned."""
    print(
        f"\nAllocated percent @95/@100/@130 and pods rejected by 100 percent, {len(seeds)} seeds, nodes shuffled\n"
    )
    print(f"| trace | policy | @95 | @100 | @130 | {' | '.join(GROUPS)} | {SPECIFIC} | us |")
    print(f"|---|---|{'---|' * (5 + len(GROUPS))}")
    for name, trace in traces.items():
        for label, policy, online in _CONTENDERS:
            setup = ReplaySetup(shuffle_nodes=True, online=online)
            runs = tuple(replay(trace, policy, seed, setup, now=time.perf_counter) for seed in seeds)
            data = ReplayResult(policy, runs).data()
            _row(name, label, data)


_CONTENDERS: tuple[tuple[str, StrategyName, bool], ...] = (
    ("fgd", BaselineStrategy.FGD, False),
    ("packing", PlacementStrategy.PACKING, False),
    ("packing, learned", PlacementStrategy.PACKING, True),
)


def _row(trace: str, label: str, data: dict[str, object]) -> None:
    alloc, failed = data["alloc"], data["failed_percent_at_100"]
    assert isinstance(alloc, dict)
    assert isinstance(failed, dict)
    at = " | ".join(f"{alloc[mark]:.2f}" for mark in ("95", "100", "130"))
    lost = " | ".join(f"{failed[group]:.2f}" for group in (*GROUPS, SPECIFIC))
    print(f"| {trace} | {label} | {at} | {lost} | {data['us_per_decision']:.0f} |", flush=True)


def variants(trace: Trace) -> dict[str, Trace]:
    """Variants of a pod list, each with more pods of one kind."""
    dice = random.Random(7)
    pods = trace.pods
    models = sorted({gpu.model for node in trace.nodes for gpu in node.gpus})
    common = [node.gpus[0].model for node in trace.nodes if node.gpus for _ in node.gpus]
    only_cpu = [pod for pod in pods if pod.group == "cpu-only"]
    several = [pod for pod in pods if pod.group == "multi-gpu"]
    sizes = [pod.gpu_milli for pod in pods if pod.group == "fractional"]

    def named(pod: TracePod) -> TracePod:
        wants = {dice.choice(common), dice.choice(models)}
        return replace(pod, models=tuple(sorted(wants))) if pod.num_gpu and dice.random() < 1 / 3 else pod

    def shared(pod: TracePod) -> TracePod:
        return replace(pod, gpu_milli=dice.choice(sizes)) if pod.group == "one-gpu" else pod

    def more(some: list[TracePod], count: int) -> tuple[TracePod, ...]:
        return tuple(replace(dice.choice(some), name=f"more-{at}") for at in range(count))

    return {
        "a third names models": Trace(trace.nodes, tuple(map(named, pods))),
        "10 x multi-GPU": Trace(trace.nodes, pods + more(several, 9 * len(several))),
        "1.8 x CPU-only": Trace(trace.nodes, pods + more(only_cpu, 8 * len(only_cpu) // 10)),
        "all shared": Trace(trace.nodes, tuple(map(shared, pods))),
    }


def departures(trace: Trace, seeds: range, events: int) -> None:
    """A long run at three loads: FGD, packing, and packing with moves."""
    print(f"\nMean allocation over {events} pods that come and leave, {len(seeds)} seed(s)\n")
    print("| load | policy | allocated | rejected GPU pods, % | moves per 1000 pods |")
    print("|---|---|---|---|---|")
    for load in (0.9, 0.95, 0.99):
        for label, policy, defrag in (
            ("fgd", BaselineStrategy.FGD, False),
            ("packing", PlacementStrategy.PACKING, False),
            ("packing, defragmented", PlacementStrategy.PACKING, True),
        ):
            how = ChurnResult(load, events, defrag)
            runs = [
                churn(trace, policy, seed, ReplaySetup(shuffle_nodes=True), how, now=time.perf_counter)
                for seed in seeds
            ]
            allocated = statistics.mean(run.allocated[-1] for run in runs)
            offered = sum(run.offered_by_100[group] for run in runs for group in GROUPS[1:])
            failed = sum(run.failed[group] for run in runs for group in GROUPS[1:])
            moves = sum(run.moves for run in runs) / (len(runs) * how.arrivals / 1000)
            rejected = 100 * failed / offered
            print(f"| {load:.0%} | {label} | {allocated:.2f} | {rejected:.2f} | {moves:.1f} |", flush=True)


def speed() -> None:
    """Time per decision for a known and for a new request, and per update, by number of nodes."""
    print(
        "\nNodes of 8 GPUs, half full; microseconds: median of the quietest eighth, 99th percentile; one process\n"
    )
    print("| nodes | hot spec | stream of specs | never-seen spec | update |")
    print("|---|---|---|---|---|")
    pods = generate(300, 1).pods
    for size in SIZES:
        placer, held = _filled(size, pods)
        print(f"| {size} | {' | '.join(_timed(placer, pods, held))} |", flush=True)


def _filled(size: int, pods: tuple[TracePod, ...]) -> tuple[Placer, int]:
    nodes = [
        Node(f"n{at}", tuple(Gpu(f"GPU-n{at}-{card}", model, GPU_MIB) for card in range(8)), 96_000, 393_216)
        for at in range(size)
        for model in ("T4" if at % 3 else "G2",)
    ]
    pods = tuple(pod for pod in pods if set(pod.models) <= {"T4", "G2"})
    placer = Placer(Snapshot.of(nodes), target=ExpectedWorkload(workload(pods)))
    # Filled by lot rather than by decisions: every node is different, and half of all GPU is taken.
    dice = np.random.default_rng(size)
    number = 0
    for node in nodes:
        for gpu in node.gpus:
            milli = int(dice.choice([0, 0, 200, 300, 500, 500, 700, 1000, 1000]))
            if milli:
                demand = GpuDemand(Milli(milli), gpu.mib_of(milli), whole=milli == 1000)
                cpu = int(dice.integers(1, 12)) * 1000
                placer.snapshot.take(Holding(f"fill-{number}", node.name, ((gpu.uuid, demand),), cpu, 8192))
                number += 1
    placer.reprice()
    return placer, number


def _timed(placer: Placer, pods: tuple[TracePod, ...], offset: int) -> list[str]:
    hot: list[float] = []
    stream: list[float] = []
    new: list[float] = []
    update: list[float] = []
    pods = tuple(pod for pod in pods if set(pod.models) <= {"T4", "G2"})
    for number in range(SAMPLES):
        request = TracePod(f"hot-{number}", 6000, 8192, 1, 500).request()
        _place(placer, request, hot if number else [], update)
    seen: set[object] = set()
    for number in range(4 * SAMPLES):
        request = pods[(offset + number) % len(pods)].request(f"stream-{number}")
        key = placer.spec(request).key
        _place(placer, request, stream if key in seen else [], [])
        seen.add(key)
    for number in range(SAMPLES // 4):
        request = TracePod(f"new-{number}", 2000 + number, 1024, 1, 300 + number).request()
        started = _clock()
        placer.place(request)
        new.append(_clock() - started)
    return [
        f"{_quiet_median(each) * 1e6:.0f} / {float(np.percentile(each, 99)) * 1e6:.0f}"
        for each in (hot, stream, new, update)
    ]


def _quiet_median(samples: list[float]) -> float:
    """The smallest median of eight runs, because other load on the machine can only make it larger."""
    length = len(samples) // 8
    return min(statistics.median(samples[at : at + length]) for at in range(0, 8 * length, length))


# The processor's time, so that other programs on the machine do not count.
_clock = time.thread_time


def _place(placer: Placer, request: PodRequest, decided: list[float], updated: list[float]) -> None:
    started = _clock()
    grant = placer.place(request)
    middle = _clock()
    decided.append(middle - started)
    if grant is not None:
        placer.commit(request, grant)
        updated.append(_clock() - middle)


if __name__ == "__main__":
    main()
