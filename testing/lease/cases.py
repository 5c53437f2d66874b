"""The measured cases: tenants, their work, and the share that each should get in any window of ten seconds."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from testing.lease.clients import Policy, Process, Requests, Synchronous, Tenant, Training, about, graph
from testing.lease.clock import MS, US, Clock, S
from testing.lease.gpu import BUCKET, Gpu

Start = Callable[[Clock, Gpu, Policy, Tenant, int], Process]
PolicyMaker = Callable[[Clock, Gpu, list[Tenant]], Policy]


@dataclass(frozen=True, slots=True)
class Case:
    """Tenants and their work."""

    name: str
    shares: Sequence[float]
    work: Sequence[Sequence[Start]]
    """The processes of each tenant."""
    expected: Sequence[float] = ()
    limits: Sequence[float] = ()
    priorities: Sequence[int] = ()

    def tenants(self) -> list[Tenant]:
        count = len(self.shares)
        limits, priorities = self.limits or (1.0,) * count, self.priorities or (0,) * count
        return [Tenant(i, self.shares[i], limits[i], priorities[i]) for i in range(count)]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a case, in percent of GPU time."""

    shares: list[float]
    error: float
    """The largest difference from the expected share in any window, in percentage points."""
    idle: float
    tenants: list[Tenant]
    policy: Policy


def train(duration: int, **options: tuple[int, int]) -> Start:
    """A training with kernels of about this length."""
    return partial(Training, work=about(duration), **options)


GRAPHS: Start = partial(Training, work=graph(32, 5 * MS))


def synchronous(duration: int, gap: int) -> Start:
    return partial(Synchronous, work=about(duration), gap=gap)


def run(
    case: Case,
    maker: PolicyMaker,
    *,
    seconds: int = 22,
    warm: int = 2,
    seed: int = 1,
    during: Callable[[Clock, Policy, list[Tenant]], None] | None = None,
) -> Outcome:
    """Run a case under a policy."""
    clock, tenants = Clock(), case.tenants()
    gpu = Gpu(clock, len(tenants))
    policy = maker(clock, gpu, tenants)
    for tenant, starts in zip(tenants, case.work, strict=True):
        for number, start in enumerate(starts):
            process = start(clock, gpu, policy, tenant, 1000 * seed + 100 * tenant.number + number)
            process.is_graph = start is GRAPHS
    if during is not None:
        during(clock, policy, tenants)
    clock.run(seconds * S)
    windows = [sliding(gpu.buckets[tenant.number], warm, seconds) for tenant in tenants]
    expected = case.expected or case.shares
    error = max(abs(100 * expected[i] - share) for i, window in enumerate(windows) for share in window)
    means = [sum(window) / len(window) for window in windows]
    return Outcome(means, error, 100 - sum(means), tenants, policy)


def sliding(buckets: dict[int, int], start: int, end: int, width: int = 10) -> list[float]:
    """The share in every window of `width` seconds, in percent."""
    per = S // BUCKET
    times = [buckets.get(index, 0) for index in range(start * per, end * per)]
    size = min(width * per, len(times))
    total = sum(times[:size])
    shares = [100 * total / (size * BUCKET)]
    for index in range(size, len(times)):
        total += times[index] - times[index - size]
        shares.append(100 * total / (size * BUCKET))
    return shares


CASES = (
    Case("70/30", (0.7, 0.3), ([train(MS)], [train(MS)])),
    Case("50/30/20", (0.5, 0.3, 0.2), ([train(MS)],) * 3),
    Case("4x25", (0.25,) * 4, ([train(MS)],) * 4),
    Case("0.1 ms against 20 ms", (0.5, 0.5), ([train(100 * US)], [train(20 * MS)])),
    Case("0.1 ms against 20 ms, 70/30", (0.7, 0.3), ([train(100 * US)], [train(20 * MS)])),
    Case("graphs", (0.7, 0.3), ([GRAPHS], [train(MS)])),
    Case("graphs with the smaller share", (0.3, 0.7), ([GRAPHS], [train(MS)])),
    Case("8 processes against 1", (0.5, 0.5), ([train(MS)] * 8, [train(MS)])),
    Case(
        "on and off",
        (0.5, 0.5),
        ([train(MS, rhythm=(S, S // 2))], [train(MS)]),
        expected=(0.25, 0.75),
    ),
    Case("fixed 70/30", (0.7, 0.3), ([train(MS)], [train(MS)]), limits=(0.7, 0.3)),
    Case("fixed 30 alone", (0.3, 0.7), ([train(MS)], []), limits=(0.3, 0.7), expected=(0.3, 0)),
    Case("70/30, both wait for every 10 ms", (0.7, 0.3), ([synchronous(10 * MS, 0)],) * 2),
    Case("synchronous, 1 ms and 0.2 ms gaps", (0.5, 0.5), ([synchronous(MS, 200 * US)], [train(MS)])),
    Case("synchronous, 0.1 ms and 0.2 ms gaps", (0.5, 0.5), ([synchronous(MS // 10, 200 * US)], [train(MS)])),
)

REQUESTS: Start = partial(Requests, load=0.3)
LATENCY_ALONE = Case("requests alone", (0.5,), ([REQUESTS],), priorities=(1,))
LATENCY_SHARED = Case("requests beside training", (0.5, 0.5), ([REQUESTS], [train(MS)]), priorities=(1, 0))
