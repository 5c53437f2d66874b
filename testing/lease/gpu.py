"""A modeled GPU: contexts in round-robin time slices of 2 ms; each context's work in order, preempted at slices."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from testing.lease.clock import MS, Clock

SLICE = 2 * MS
BUCKET = 100 * MS


# How often work that waits for other GPUs looks for them.
SPIN = 50_000


@dataclass(slots=True)
class Meeting:
    """Work on several GPUs of which none ends before all have begun, such as a collective."""

    missing: int

    @property
    def is_complete(self) -> bool:
        return self.missing == 0


@dataclass(slots=True)
class Job:
    left: int
    done: Callable[[], None] | None
    meeting: Meeting | None = None
    has_begun: bool = False

    def begin(self) -> bool:
        """Whether the work makes progress, and does not only wait for other GPUs."""
        if self.meeting is None:
            return True
        if not self.has_begun:
            self.has_begun = True
            self.meeting.missing -= 1
        return self.meeting.is_complete


@dataclass(slots=True)
class Context:
    """One process's queue on the GPU."""

    tenant: int
    queue: deque[Job] = field(default_factory=deque[Job])


class Gpu:
    """Runs the contexts' work and counts each tenant's GPU time, in buckets of 100 ms."""

    def __init__(self, clock: Clock, tenants: int) -> None:
        self.buckets: list[dict[int, int]] = [{} for _ in range(tenants)]
        self._clock = clock
        self._contexts: list[Context] = []
        self._current = 0
        self._used = 0
        self._running = False

    def context(self, tenant: int) -> Context:
        self._contexts.append(Context(tenant))
        return self._contexts[-1]

    def submit(
        self, context: Context, duration: int, done: Callable[[], None] | None, meeting: Meeting | None = None
    ) -> None:
        """Append work to a context's queue."""
        context.queue.append(Job(duration, done, meeting))
        if not self._running:
            self._dispatch()

    def _dispatch(self) -> None:
        if not (self._contexts[self._current].queue and self._used < SLICE):
            count = len(self._contexts)
            following = ((self._current + step) % count for step in range(1, count + 1))
            chosen = next((index for index in following if self._contexts[index].queue), None)
            self._running = chosen is not None
            if chosen is None:
                return
            self._current, self._used = chosen, 0
        self._running = True
        head = self._contexts[self._current].queue[0]
        progress = head.begin()
        part = min(head.left if progress else SPIN, SLICE - self._used)
        self._clock.after(part, lambda: self._finish(part, progress=progress))

    def _finish(self, part: int, *, progress: bool) -> None:
        context = self._contexts[self._current]
        self._used += part
        self._account(context.tenant, self._clock.now - part, self._clock.now)
        head = context.queue[0]
        head.left -= part if progress else 0
        if not head.left:
            context.queue.popleft()
            if head.done is not None:
                head.done()
        self._dispatch()

    def _account(self, tenant: int, start: int, end: int) -> None:
        buckets = self.buckets[tenant]
        while start < end:
            bucket = start // BUCKET
            stop = min(end, (bucket + 1) * BUCKET)
            buckets[bucket] = buckets.get(bucket, 0) + stop - start
            start = stop
