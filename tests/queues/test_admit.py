"""Pods start in their order; others start before them only where that makes nobody late."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from milligpu.model.gpu import Gpu, Node
from milligpu.model.gpu_queue import GpuQueue, GpuQueues, QueueOrder, Quota
from milligpu.model.request import ContainerRequest, PodRef, PodRequest, ShareRequest
from milligpu.model.units import Mib, Milli
from milligpu.placement.decide import Placer
from milligpu.placement.snapshot import Snapshot
from milligpu.queues.admit import Admission
from milligpu.queues.opening import find_opening
from milligpu.queues.order import FOREVER, QueuedPod, WaitingLines


def nodes(*gpus: int) -> list[Node]:
    return [
        Node(f"node-{at}", tuple(Gpu(f"GPU-{at}-{gpu}", "A10", Mib(16384)) for gpu in range(count)), 8000, 65536)
        for at, count in enumerate(gpus)
    ]


def pod(
    name: str, milli: int, limit: float = FOREVER, *, user: str = "", queue: str = "a", at: float = 0.0
) -> QueuedPod:
    count, each = (milli // 1000, 1000) if milli > 1000 else (1, milli)
    share = ContainerRequest("main", ShareRequest(count, Milli(each)))
    request = PodRequest(PodRef("n", name, name), (share,), cpu_milli=100, memory_mib=100)
    return QueuedPod(request, queue, user or name, at, Milli(milli), Mib(milli * 16384 // 1000), limit)


def admission(cluster: Sequence[Node], *queues: GpuQueue) -> Admission:
    lines = WaitingLines(GpuQueues(queues or [GpuQueue("a", order=QueueOrder.FIFO)]))
    return Admission(Placer(Snapshot.of(cluster)), lines, sum(gpu.milli for node in cluster for gpu in node.gpus))


def start(admitted: Admission, now: float) -> list[str]:
    return [started.pod.name for started in admitted.start(now)]


def add(admitted: Admission, *pods: QueuedPod) -> None:
    for each in pods:
        admitted.add(each)


def test_pods_that_fit_start_in_their_order() -> None:
    here = admission(nodes(1))
    add(here, pod("one", 600), pod("two", 300, at=1.0), pod("three", 300, at=2.0))
    assert start(here, 3.0) == ["one", "two"]
    assert here.openings["three"].at == FOREVER


def test_a_small_pod_does_not_pass_a_large_one_that_it_would_delay() -> None:
    here = admission(nodes(1))
    running, large, small = (
        pod("running", 600, 100.0),
        pod("large", 1000, 50.0, at=1.0),
        pod("small", 300, 200.0, at=2.0),
    )
    add(here, running, large, small)
    assert start(here, 3.0) == ["running"]
    assert here.openings["large"].at == 103.0
    here.end(running, 90.0)
    assert start(here, 90.0) == ["large"]


def test_a_small_pod_that_ends_in_time_passes() -> None:
    here = admission(nodes(1))
    add(here, pod("running", 600, 100.0), pod("large", 1000, 50.0, at=1.0), pod("small", 300, 99.0, at=2.0))
    assert start(here, 3.0) == ["running", "small"]
    here.end(pod("small", 300, 99.0), 102.0)
    here.end(pod("running", 600, 100.0), 103.0)
    assert start(here, 103.0) == ["large"]


def test_a_small_pod_passes_where_there_is_room_for_both() -> None:
    here = admission(nodes(1))
    add(here, pod("running", 600, 100.0), pod("next", 500, 50.0, at=1.0), pod("small", 300, at=2.0))
    # When the first ends, 0.5 and 0.3 fit together.
    assert start(here, 3.0) == ["running", "small"]


def test_a_ceiling_stops_its_own_queue_only() -> None:
    quota = Quota(Milli(500), None)
    here = admission(nodes(1), GpuQueue("a", ceiling=quota), GpuQueue("b"))
    add(here, pod("one", 500), pod("two", 100), pod("three", 100, queue="b"))
    assert sorted(start(here, 0.0)) == ["one", "three"]


def test_idle_guarantees_are_lent_unless_the_queue_does_not_lend() -> None:
    for lends, started in ((True, ["one"]), (False, [])):
        quota = Quota(Milli(600), None)
        here = admission(nodes(1), GpuQueue("a"), GpuQueue("b", guarantee=quota, lends=lends))
        add(here, pod("one", 500))
        assert start(here, 0.0) == started


def test_a_pod_that_no_node_can_hold_stops_nobody() -> None:
    here = admission(nodes(1))
    add(here, pod("huge", 4000), pod("small", 300, at=1.0))
    assert start(here, 2.0) == ["small"]


sizes = st.sampled_from([100, 200, 300, 400, 500, 700, 1000, 2000])
limits = st.integers(1, 50)


@given(st.lists(st.tuples(sizes, limits), max_size=12), sizes)
def test_an_opening_is_when_the_pod_fits_first_if_all_run_to_their_limits(
    running: list[tuple[int, int]], milli: int
) -> None:
    placer = Placer(Snapshot.of(nodes(2, 1)))
    ends: dict[str, float] = {}
    for number, (size, limit) in enumerate(running):
        one = pod(f"pod-{number}", size)
        grant = placer.place(one.request)
        if grant is not None:
            placer.commit(one.request, grant)
            ends[one.name] = float(limit)
    wanted = pod("wanted", milli)
    if placer.fits(wanted.request):
        return
    found = find_opening(placer, wanted.request, ends)
    # Without looking for anything: let time pass until it fits.
    first = None
    for at in sorted(set(ends.values())):
        for name in [name for name, end in ends.items() if end == at]:
            placer.release(name)
        if placer.fits(wanted.request):
            first = at
            break
    assert (found.at if found else None) == first


@given(
    st.lists(st.tuples(sizes, limits, st.floats(0.01, 1.0), st.integers(0, 20)), min_size=1, max_size=25),
    st.lists(st.integers(1, 2), min_size=1, max_size=3),
)
def test_whoever_was_promised_a_time_starts_by_then(
    pods: list[tuple[int, int, float, int]], cluster: list[int]
) -> None:
    here = admission(nodes(*cluster))
    made = {
        number: (pod(f"pod-{number:02d}", size, float(limit), at=float(at)), limit * part)
        for number, (size, limit, part, at) in enumerate(pods)
    }
    events: list[tuple[float, int, bool]] = [(each.arrived, number, True) for number, (each, _) in made.items()]
    promised: dict[str, float] = {}
    numbers = {each.name: number for number, (each, _) in made.items()}
    while events:
        events.sort()
        now, number, comes = events.pop(0)
        if comes:
            here.add(made[number][0])
        else:
            here.end(made[number][0], now)
        for started in here.start(now):
            name = started.pod.name
            assert now <= promised.get(name, FOREVER)
            events.append((now + made[numbers[name]][1], numbers[name], False))
        for name, opening in here.openings.items():
            promised.setdefault(name, opening.at)
    largest = max(cluster) * 1000
    waiting = [each.name for line in here.lines.state["a"].lines.values() for each in line]
    assert all(made[numbers[name]][0].milli > largest for name in waiting)
