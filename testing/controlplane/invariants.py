"""What must hold, by the simulated server's objects; each check returns what broke, or None.

1. `granted`: no GPU is ever granted beyond its size. (A write that was carried out more than 5 s after it was sent,
   when another instance led, does not count: only the agent can refuse it, and it does.)
2. `vain`: no pod is evicted unless that makes room on one GPU.
3. `bound`: within 10 s of calm, no pod waits that fits next to the bound pods and the places that are kept for
   others. It is calm when all faults have ended, an instance leads and follows the cluster, and no pod is in
   kube-scheduler's backoff after an error.
4. `released`: no place is kept for more than 30 s for a pod that cannot use it while another waits that would
   fit (`promises`). In the end no pod waits that fits next to the bound pods. Only the place of a bind without an
   answer is kept longer, for a minute.
5. `memory`: when all pods are gone, the service remembers none of them and is as large as at its start.
6. `order`: in a queue, no pod starts before an older one that asks for the same and has no place yet.
7. `healthy`: no pod gets a share of a GPU that the leader has seen unhealthy for long.
8. `patience`: an eviction that a disruption budget refuses is tried again less and less often.
9. `preferred`: for a pod with preferences, kube-scheduler compares all nodes that fit.
10. `leader`: an instance leads in calm, and never two at once.
11. `errors`: no process ends with an error that it did not expect.
"""

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from milligpu.cluster.pod_entry import PodEntry, PodStage
from milligpu.model import names
from milligpu.model.gpu import Gpu, GpuState
from testing.controlplane.memory import deep_size, remembered_pods
from testing.controlplane.objects import Document
from testing.controlplane.world import World

Kept = dict[tuple[str, str], tuple[int, int]]
"""Milli and MiB that are kept of each GPU, by node and UUID."""

_EVERY_STAGE = frozenset({PodStage.NOMINATED, PodStage.RESERVED, PodStage.BINDING, PodStage.BIND_UNKNOWN})
_KEPT_PODS = 0
# Of the size at the start; what is remembered about a node's troubles comes on top.
_GROWTH, _NODE_BYTES = 1.05, 1024


@dataclass(frozen=True, slots=True)
class Failure:
    """Which invariant broke, and after which step."""

    invariant: str
    """One word, by which shortened runs are compared."""
    message: str
    at: int
    """The number of steps that had been taken."""


def check_step(world: World, taken: int) -> Failure | None:
    """Check what must hold at any time."""
    if world.server.violations:
        return Failure("granted", world.server.violations[0], taken)
    if world.scheduler.evictions.in_vain:
        return Failure("vain", world.scheduler.evictions.in_vain[0], taken)
    if world.out_of_order:
        return Failure("order", world.out_of_order[0], taken)
    if world.on_unhealthy:
        return Failure("healthy", world.on_unhealthy[0], taken)
    if len(world.leading()) > 1:
        return Failure("leader", f"{', '.join(world.leading())} lead at the same time", taken)
    if world.server.hasty:
        return Failure("patience", world.server.hasty[0], taken)
    if world.unasked:
        return Failure("preferred", world.unasked[0], taken)
    return None


def check_bound(world: World, taken: int) -> Failure | None:
    """Check that no pod waits that fits next to the places that are kept for others."""
    return _check_waiting(world, "bound", _EVERY_STAGE, taken)


def check_released(world: World, taken: int) -> Failure | None:
    """Check that no pod waits that fits next to the bound pods."""
    return _check_waiting(world, "released", frozenset({PodStage.BIND_UNKNOWN}), taken)


def _check_waiting(world: World, invariant: str, stages: frozenset[PodStage], taken: int) -> Failure | None:
    for pod in world.waiting():
        uid = pod["metadata"]["uid"]
        kept = _kept(world, uid, stages)
        for node in world.nodes:
            gpu = _fits(world, pod, node.name, kept)
            if gpu is not None:
                what = f"pod {pod['metadata']['name']} waits and fits on {node.name}/{gpu}"
                return Failure(invariant, f"{what}: {pod['status']} {_known(world, uid)}", taken)
    return None


def _kept(world: World, uid: str, stages: frozenset[PodStage], without: str = "") -> Kept:
    """What the leader keeps for other pods in these stages."""
    kept: Kept = {}
    term = None if world.leader is None else world.leader.term
    for entry in () if term is None else term.state.pods:
        if entry.spec.pod.uid not in {uid, without} and entry.stage in stages and entry.grant is not None:
            for shares in entry.grant.containers.values():
                for each in shares:
                    have = kept.get((entry.node, each.gpu), (0, 0))
                    kept[entry.node, each.gpu] = have[0] + each.share.milli, have[1] + each.share.mib
    return kept


def watch_offers(world: World) -> None:
    """From now on, look at every answer to filter for a pod with preferences for which no place is kept."""

    def look(body: bytes) -> Callable[[bytes], None] | None:
        asked = msgspec.json.decode(body)
        term, uid = world.leader and world.leader.term, asked["Pod"]["metadata"]["uid"]
        entry = term and term.state.entry(uid)
        free = term and term.state.reservations.preemption_of(uid) is None
        if "affinity" not in asked["Pod"]["spec"] or not free or (entry and entry.stage is not PodStage.WAITING):
            return None
        if entry and entry.spec.takes_turns:
            return None  # it has lost its place, and gets one node, so that the order of its queue holds
        if not world.calm():
            return None  # a leader that is paused answers when it continues, before it reads what it has missed
        return lambda found: _check_offer(world, asked, msgspec.json.decode(found))

    world.on_filter = look


def _check_offer(world: World, asked: Document, answer: Document) -> None:
    """Check that the pod got all nodes that fit, or that only one does."""
    meta, offered = asked["Pod"]["metadata"], asked["NodeNames"]
    pod = world.server.pods.get(meta["name"])
    if pod is not None and len(answer.get("NodeNames") or ()) == 1 and len(offered) > 1 and world.undisturbed():
        kept = _kept(world, meta["uid"], _EVERY_STAGE)
        fitting = [node for node in offered if _fits(world, pod, node, kept) is not None]
        if len(fitting) > 1:
            world.unasked.append(f"{meta['name']} got {answer['NodeNames']}, and fits on {fitting}")


def place_of(entry: PodEntry) -> tuple[str, str]:
    """The pod, and the node on which a place is kept for it."""
    return entry.spec.pod.uid, entry.node


def fits_without(world: World, kept: PodEntry) -> bool:
    """Whether a pod waits that would fit on the node if this place were not kept."""
    for pod in world.waiting():
        others = _kept(world, pod["metadata"]["uid"], _EVERY_STAGE, kept.spec.pod.uid)
        if _fits(world, pod, kept.node, others) is not None:
            return True
    return False


def _known(world: World, uid: str) -> str:
    """Describe what the leader and kube-scheduler know about a pod."""
    term = None if world.leader is None else world.leader.term
    return f"at {world.clock.now:.1f} s: {term and term.state.entry(uid)}, {world.scheduler.queued(uid)}"


def _fits(world: World, pod: Document, node: str, kept: Kept) -> str | None:
    """The GPU that has room for a waiting pod, if kube-scheduler can place it there."""
    server = world.server
    if pod["metadata"]["annotations"].get("simulated/only", node) != node:
        return None
    milli = _milli(pod)
    if _free_slots(world, node) - sum(kept[each][0] for each in kept if each[0] == node) < milli:
        return None
    used = server.used(node)
    for gpu in next(each.offered for each in world.nodes if each.name == node):
        taken = used.get(gpu.uuid, (0, 0)), kept.get((node, gpu.uuid), (0, 0))
        if gpu.state is GpuState.OK and _room(gpu, milli, *taken):
            return gpu.uuid
    return None


def _free_slots(world: World, node: str) -> int:
    """What kube-scheduler may still give away on a node: it counts a node's total."""
    server = world.server
    slots = sum(gpu.allocatable for (where, _), gpu in server.gpus.items() if where == node)
    there = (each for each in server.pods.values() if each["spec"].get("nodeName") == node)
    return slots - sum(_milli(each) for each in there if not server.ended(each))


def _room(gpu: Gpu, milli: int, *taken: tuple[int, int]) -> bool:
    free = gpu.allocatable - sum(each[0] for each in taken)
    free_mib = gpu.allocatable_mib - sum(each[1] for each in taken)
    return free >= milli and free_mib >= gpu.mib_of(milli)


def _milli(pod: Document) -> int:
    return int(pod["spec"]["containers"][0]["resources"]["limits"][names.VGPU])


def service_size(world: World) -> int:
    """The memory of the leader's term, in bytes."""
    leader = world.leader
    return 0 if leader is None or leader.term is None else deep_size(leader.term)


def check_memory(world: World, start: int, taken: int) -> Failure | None:
    """Check that the service has forgotten all pods, and is as large as it was at its start."""
    leader = world.leader
    if leader is None or leader.term is None:
        return Failure("leader", "nobody leads in calm", taken)
    kept = remembered_pods(leader.term)
    if len(kept) > _KEPT_PODS:
        return Failure("memory", f"{len(kept)} pods that are gone are remembered, such as {kept[0]}", taken)
    size = service_size(world)
    if start and size > start * _GROWTH + _NODE_BYTES * len(world.nodes):
        return Failure("memory", f"the service has {size} bytes and had {start} at its start", taken)
    return None
