"""Policies of other projects on the same modeled GPU: a time token, utilization feedback, and none at all.

These are our own models of published descriptions and sources, not the programs themselves. Where those leave a
choice, the better case is taken: messages are as fast as ours, and utilization is sampled as often as any GPU does.
"""

from collections import deque
from dataclasses import dataclass, field

from testing.lease.clients import Process, Tenant
from testing.lease.clock import MS, Clock, S
from testing.lease.gpu import Gpu
from testing.lease.lease import MESSAGE, WAKE


class Free:
    """No arbitration: only the GPU's own time slices."""

    def allow(self, process: Process) -> bool:  # noqa: ARG002 - the protocol's
        return True

    def launched(self, process: Process) -> None:
        pass

    def ended(self, process: Process, duration: int) -> None:
        pass

    def synchronized(self, process: Process) -> None:
        pass


# Gemini: the limits of a quota, the window in which usage counts, and how long a burst is remembered.
QUOTA_MIN, QUOTA_MAX = 20 * MS, 300 * MS
WINDOW = 10 * S
MEMORY = 3 * S


@dataclass(slots=True)
class Client:
    """What the token's owner knows about a tenant."""

    tenant: Tenant
    until: int = -1
    """It may launch until then, so that its usual burst still fits into its quota."""
    asking: bool = False
    grants: deque[list[int]] = field(default_factory=deque[list[int]])
    """Start and end of each; the last end moves if work overran, or if the tenant asks again earlier."""
    began: int | None = None
    bursts: deque[tuple[int, int]] = field(default_factory=deque[tuple[int, int]])
    """End and length of each."""
    syncing: set[Process] = field(default_factory=set[Process])


class Gemini:
    """One token per GPU with a quota of time; the tenant furthest below its share is next.

    The work queued within a quota is not limited. A tenant whose next burst does not fit into its quota waits for
    its own work, then asks again and is charged for the overrun. The next tenant starts when the quota ends,
    whatever still runs. A burst ends where the program synchronizes. A program that never does asks when its quota
    is over.
    """

    def __init__(self, clock: Clock, tenants: list[Tenant]) -> None:
        self._clock = clock
        self._clients = [Client(tenant) for tenant in tenants]
        self._holder: Client | None = None
        self._taken_until = 0
        self._chooses_at = -1

    def allow(self, process: Process) -> bool:
        client = self._clients[process.tenant.number]
        if self._clock.now < client.until:
            return True
        if not client.asking and not process.outstanding:
            self._ask(client)
        return False

    def launched(self, process: Process) -> None:
        client = self._clients[process.tenant.number]
        if client.began is None:
            client.began = self._clock.now

    def ended(self, process: Process, duration: int) -> None:  # noqa: ARG002 - the protocol's
        client = self._clients[process.tenant.number]
        if process.outstanding:
            return
        if process in client.syncing:
            client.syncing.discard(process)
            self._end_burst(client)
        if self._clock.now >= client.until:
            self._clock.after(0, process.wake)

    def synchronized(self, process: Process) -> None:
        self._clients[process.tenant.number].syncing.add(process)

    def _end_burst(self, client: Client) -> None:
        if client.began is not None:
            client.bursts.append((self._clock.now, self._clock.now - client.began))
            client.began = None

    def _ask(self, client: Client) -> None:
        """The process has waited for its work; an overrun of the quota belongs to the last grant."""
        client.asking = True
        asked, ran_on = self._clock.now, client.began is not None
        client.began = None

        def hear() -> None:
            if client.grants and (ran_on or asked < client.grants[-1][1]):
                client.grants[-1][1] = asked
            if self._holder is client:
                self._taken_until = min(self._taken_until, asked)
            self._choose()

        self._clock.after(MESSAGE, hear)

    def _choose(self) -> None:
        now = self._clock.now
        if now < self._taken_until:
            self._choose_at(self._taken_until)
            return
        window = min(WINDOW, max(now, 1))
        asking = [client for client in self._clients if client.asking]
        used = self._used(now - window, now)
        allowed = [each for each in asking if used[each.tenant.number] < each.tenant.limit * window]
        if allowed:
            self._grant(max(allowed, key=lambda each: each.tenant.share * window - used[each.tenant.number]))
        elif asking:
            self._choose_at(now + MS)

    def _choose_at(self, when: int) -> None:
        if self._chooses_at != when:
            self._chooses_at = when
            self._clock.at(when, self._choose)

    def _grant(self, client: Client) -> None:
        now = self._clock.now
        burst = self._burst(client)
        quota = QUOTA_MAX if burst is None else min(burst + QUOTA_MIN, QUOTA_MAX)
        client.asking = False
        client.grants.append([now, now + quota])
        client.until = now + quota - min(burst or 0, quota - QUOTA_MIN)
        self._holder, self._taken_until = client, now + quota
        for process in client.tenant.processes:
            self._clock.after(WAKE, process.wake)
        self._choose_at(self._taken_until)

    def _burst(self, client: Client) -> int | None:
        """The longest recent burst."""
        while client.bursts and client.bursts[0][0] < self._clock.now - MEMORY:
            client.bursts.popleft()
        return max((length for _, length in client.bursts), default=None)

    def _used(self, start: int, now: int) -> list[int]:
        """The time that each tenant used since `start`; time that several used is divided among them."""
        changes: list[tuple[int, int, int]] = [(now, 0, 0)]
        for client in self._clients:
            while client.grants and client.grants[0][1] < start:
                client.grants.popleft()
            for begin, end in client.grants:
                changes += [(max(begin, start), client.tenant.number, 1), (end, client.tenant.number, -1)]
        used, having, last = [0] * len(self._clients), [0] * len(self._clients), start
        for when, number, change in sorted(changes):
            several = sum(having)
            for each, count in enumerate(having):
                used[each] += count * (when - last) // several if several else 0
            having[number] += change
            last = when
        return used


# HAMi: how often it reads the utilization, and how soon a launch without tokens tries again.
PERIOD = 120 * MS
RETRY = 10 * MS
# NVML averages utilization over the last 1/6 to 1 s.
SAMPLE = S // 6
# A data-center GPU: multiprocessors, threads on each; and the blocks of a kernel, whatever its length.
PROCESSORS, THREADS, BLOCKS = 108, 2048, 4096
TOKENS_MAX = PROCESSORS * THREADS * 32
STEP_PER_POINT = PROCESSORS * PROCESSORS * THREADS // 2560


@dataclass(slots=True)
class Bucket:
    """A process's tokens, and how many it gains per period."""

    tokens: int = TOKENS_MAX
    gain: int = 0


class Hami:
    """Each process has a bucket of tokens; launches pay by grid size, and the gain follows the utilization.

    The share is also the limit, tenants do not know of each other, and graphs are not charged.
    """

    def __init__(self, clock: Clock, gpu: Gpu, tenants: list[Tenant], blocks: int = BLOCKS) -> None:
        self._clock = clock
        self._gpu = gpu
        self._tenants = tenants
        self._blocks = blocks
        self._busy = [0] * len(tenants)
        self._percent = [0] * len(tenants)
        self._buckets: dict[Process, Bucket] = {}
        clock.after(SAMPLE, self._sample)
        clock.after(PERIOD, self._adjust)

    def allow(self, process: Process) -> bool:
        if process.is_graph or self._bucket(process).tokens >= 0:
            return True
        self._clock.after(RETRY, process.wake)
        return False

    def launched(self, process: Process) -> None:
        if not process.is_graph:
            self._bucket(process).tokens -= self._blocks

    def ended(self, process: Process, duration: int) -> None:
        pass

    def synchronized(self, process: Process) -> None:
        pass

    def _bucket(self, process: Process) -> Bucket:
        return self._buckets.setdefault(process, Bucket())

    def _sample(self) -> None:
        for number, buckets in enumerate(self._gpu.buckets):
            busy = sum(buckets.values())
            self._percent[number] = round(100 * (busy - self._busy[number]) / SAMPLE)
            self._busy[number] = busy
        self._clock.after(SAMPLE, self._sample)

    def _adjust(self) -> None:
        for tenant in self._tenants:
            for process in tenant.processes:
                self._refill(self._bucket(process), round(100 * tenant.share), self._percent[tenant.number])
        self._clock.after(PERIOD, self._adjust)

    @staticmethod
    def _refill(bucket: Bucket, share: int, percent: int) -> None:
        """Gain more while the container is below its share, less above, in steps that grow with the distance."""
        distance = max(abs(share - percent), 5)
        step = STEP_PER_POINT * distance
        if distance > share / 2:
            step = step * distance * 2 // (share + 1)
        wanted = bucket.gain + (step if percent <= share else -step)
        bucket.gain = min(max(wanted, 0), TOKENS_MAX)
        bucket.tokens = min(bucket.tokens + bucket.gain, TOKENS_MAX)
