"""A generated cluster and workload, the same for the same seed.

The mix follows what Alibaba published about its production clusters: which models with how many GPUs, how many
pods want no GPU, a fraction, one or several, how much CPU goes with them, and that few pods live very long.
"""

import math
from dataclasses import dataclass

import numpy as np

from milligpu.model.gpu import Gpu, Node
from milligpu.model.units import WHOLE
from milligpu.sim.trace import GPU_MIB, Trace, TracePod

# Share of the nodes, GPUs, cores, memory in GiB, model.
_NODES = (
    (0.45, 8, 96, 384, "G2"),
    (0.32, 2, 104, 512, "T4"),
    (0.015, 4, 96, 384, "T4"),
    (0.09, 2, 16, 120, "P100"),
    (0.02, 2, 64, 256, "P100"),
    (0.035, 8, 128, 768, "G3"),
    (0.025, 4, 32, 128, "V100M16"),
    (0.02, 1, 8, 32, "V100M16"),
    (0.025, 8, 96, 768, "V100M32"),
)
_FRACTIONS = (50, 100, 150, 200, 250, 300, 330, 400, 460, 480, 500, 600, 700, 750, 800, 900)
_FRACTION_WEIGHTS = (2, 6, 2, 5, 6, 5, 3, 4, 14, 6, 22, 6, 5, 3, 6, 5)
_SEVERAL = ((2, 0.21), (4, 0.20), (8, 0.59))
_CORES_ALONE = (1, 4, 8, 12.5, 16, 32)
_CORES_ALONE_WEIGHTS = (0.05, 0.1, 0.2, 0.25, 0.1, 0.3)
_CORES_PER_GPU = (4, 6, 8, 10, 12, 16)
_MIB_PER_CORE = 4096
# Median of an hour and a half and a long tail: the longest hundredth runs for weeks.
_LIFETIME_LOG_MEAN, _LIFETIME_LOG_SIGMA = math.log(5400), 1.9
_LIFETIME_MAX = 150 * 24 * 3600


@dataclass(frozen=True, slots=True)
class WorkloadMix:
    """Fractions of all pods; the rest want one whole GPU."""

    cpu_only: float = 0.133
    fractional: float = 0.378
    several: float = 0.009
    model_specific: float = 0.1
    """The fraction of the pods that want a GPU which name a model."""
    demand: float = 1.05
    """What all pods together ask for, relative to the GPUs there are."""


def generate(nodes: int, seed: int = 0, mix: WorkloadMix | None = None) -> Trace:
    """A trace with this many nodes, and pods that ask for about as much as they have."""
    mix = mix or WorkloadMix()
    dice = np.random.default_rng(seed)
    cluster = _cluster(nodes, dice)
    # Pods that name a model name a common one more often.
    models = [node.gpus[0].model for node in cluster]
    capacity = sum(gpu.milli for node in cluster for gpu in node.gpus)
    pods: list[TracePod] = []
    asked = 0
    while asked < mix.demand * capacity:
        pods.append(_pod(f"pod-{len(pods):06d}", mix, models, dice))
        asked += pods[-1].gpu_total
    return Trace(cluster, tuple(pods))


def _cluster(count: int, dice: np.random.Generator) -> tuple[Node, ...]:
    parts = np.array([part for part, *_ in _NODES])
    # Computed, not drawn at random, so that the proportions hold for small clusters, too.
    kinds: list[int] = np.searchsorted(np.cumsum(parts) / parts.sum(), (np.arange(count) + 0.5) / count).tolist()
    nodes: list[Node] = []
    order = [int(each) for each in dice.permutation(count)]
    for at in range(count):
        _, gpus, cores, gib, model = _NODES[kinds[order[at]]]
        devices = tuple(Gpu(f"GPU-node-{at:05d}-{number}", model, GPU_MIB) for number in range(gpus))
        nodes.append(Node(f"node-{at:05d}", devices, cores * 1000, gib * 1024))
    return tuple(nodes)


def _pod(name: str, mix: WorkloadMix, models: list[str], dice: np.random.Generator) -> TracePod:
    draw = float(dice.random())
    life = min(int(dice.lognormal(_LIFETIME_LOG_MEAN, _LIFETIME_LOG_SIGMA)) + 1, _LIFETIME_MAX)
    if draw < mix.cpu_only:
        cores = float(dice.choice(_CORES_ALONE, p=_CORES_ALONE_WEIGHTS))
        return TracePod(name, int(cores * 1000), int(cores * _MIB_PER_CORE), 0, 0, (), life)
    count, milli = 1, int(WHOLE)
    if draw < mix.cpu_only + mix.fractional:
        weights = np.array(_FRACTION_WEIGHTS) / sum(_FRACTION_WEIGHTS)
        milli = int(dice.choice(_FRACTIONS, p=weights))
    elif draw < mix.cpu_only + mix.fractional + mix.several:
        count = int(dice.choice([n for n, _ in _SEVERAL], p=[p for _, p in _SEVERAL]))
    cores = float(dice.choice(_CORES_PER_GPU)) * count * (milli / WHOLE if milli < WHOLE else 1)
    wants: tuple[str, ...] = ()
    if float(dice.random()) < mix.model_specific:
        wants = (str(dice.choice(models)),)
    cpu = max(500, int(cores * 10) * 100)
    return TracePod(name, cpu, cpu * _MIB_PER_CORE // 1000, count, milli, wants, life)
