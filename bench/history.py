"""What the dashboard's own history costs: 5,000 GPUs and 20,000 pods, measured every ten seconds.

    python bench/history.py [--gpus 5000] [--minutes 70]

Time is made up, so that hours pass in a minute. For every tick the sampler, the file, the verdicts and the costs do
what `milligpu dashboard` does; reading the cluster is not part of it. Figures: docs/benchmarks.md.
"""

import argparse
import resource
import tempfile
import time
from pathlib import Path

import msgspec

from milligpu.dashboard.collector import Collector
from milligpu.history.store import HistoryStore
from milligpu.status.picture import Picture
from milligpu.status.prices import Prices
from milligpu.wire.status import AcceleratorStats, GpuStatus, ShareUsage

_TICK_S = 10
_PODS_PER_GPU = 4
_START = 1_800_000_000 // 3600 * 3600


def _cluster(gpus: int) -> Picture:
    cards = [
        GpuStatus(index % 8, f"GPU-{index:012d}", "A100", 1000, 40960, 0, 0, node=f"node-{index // 8}", power=100.0)
        for index in range(gpus)
    ]
    shares = [
        ShareUsage(
            AcceleratorStats("nvidia", "A100", gpu.uuid, 1 << 30, 1 << 29, 10),
            milli=250,
            limit=500,
            mib=10240,
            namespace=f"team-{number % 50}",
            pod=f"pod-{number}-{place}",
            container="main",
            node=gpu.node,
            utilization=0.1,
        )
        for number, gpu in enumerate(cards)
        for place in range(_PODS_PER_GPU)
    ]
    return Picture(float(_START), "bench", cluster=True, software=False, gpus=cards, shares=shares)


def _later(picture: Picture, tick: int) -> Picture:
    """The same cluster after some ticks: each pod uses another part of its share."""
    at = _START + tick * _TICK_S
    shares = [
        msgspec.structs.replace(
            use,
            gpu_time_ns=int(tick * _TICK_S * 1e9 * (0.05 + (number * 7919 % 997) / 5000)),
            waiting_ns=tick * 10**8,
            throttled_ns=0,
            refusals=0,
        )
        for number, use in enumerate(picture.shares)
    ]
    return Picture(float(at), "bench", cluster=True, software=False, gpus=picture.gpus, shares=shares)


def store_size(folder: str) -> int:
    return sum(each.stat().st_size for each in Path(folder).iterdir())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--gpus", type=int, default=5000)
    parser.add_argument("--minutes", type=int, default=70, help="of the cluster's time")
    options = parser.parse_args()
    first = _cluster(options.gpus)
    now: list[Picture] = [first]
    with tempfile.TemporaryDirectory() as folder:
        store = HistoryStore(Path(folder, "history.db"), now=lambda: now[0].at)
        prices = Prices("EUR", {"A100": 2.2})
        collector = Collector(lambda: now[0], store, interval_s=_TICK_S, prices=prices)
        spent, longest, ticks = 0.0, 0.0, options.minutes * 60 // _TICK_S
        for tick in range(ticks):
            now[0] = _later(first, tick)
            before = time.process_time()
            collector.take()
            took = time.process_time() - before
            spent, longest = spent + took, max(longest, took)
        size = store_size(folder)
        store.close()
    seconds = ticks * _TICK_S
    print(f"{options.gpus} GPUs, {len(first.shares)} pods, a tick every {_TICK_S} s, {options.minutes} min")
    print(f"CPU: {100 * spent / seconds:.1f} % of one core; longest tick {longest:.1f} s")
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"memory: {memory:.0f} MiB, the made-up cluster included")
    print(f"file: {size / (1 << 20):.0f} MiB")


if __name__ == "__main__":
    main()
