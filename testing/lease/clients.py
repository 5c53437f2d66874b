"""Programs of tenants: train without pause, call synchronously, answer requests."""

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from testing.lease.clock import MS, US, Clock
from testing.lease.gpu import Context, Gpu

# The time that a launch takes its thread, and that a thread needs to notice the end of GPU work.
LAUNCH = 4 * US
NOTICE = 10 * US
# The depth of a driver's queue.
DEEPEST = 1024

Durations = Callable[[random.Random], list[int]]
"""The kernels of one launch: more than one is a graph."""


@dataclass(slots=True)
class Tenant:
    """One container and its share."""

    number: int
    share: float
    limit: float = 1.0
    priority: int = 0
    processes: list["Process"] = field(default_factory=list["Process"])


class Policy(Protocol):
    """Decides which process may launch when."""

    def allow(self, process: "Process") -> bool:
        """Whether the process may launch now; if not, it is woken later."""
        ...

    def launched(self, process: "Process") -> None:
        """Called after a launch."""
        ...

    def ended(self, process: "Process", duration: int) -> None:
        """Called when the oldest launch of the process ended on the GPU, after running for `duration`."""
        ...

    def synchronized(self, process: "Process") -> None:
        """Called when the process waits for all its launches."""
        ...


class Process:
    """A process of a tenant."""

    def __init__(self, clock: Clock, gpu: Gpu, policy: Policy, tenant: Tenant, seed: int) -> None:
        self.tenant = tenant
        self.outstanding = 0
        self.launches = 0
        self.is_graph = False
        self.clock = clock
        self.random = random.Random(seed)
        self.policy = policy
        self._blocked = False
        self._gpu = gpu
        self._context: Context = gpu.context(tenant.number)
        tenant.processes.append(self)

    def wake(self) -> None:
        """Let the process try again."""
        if self._blocked:
            self._blocked = False
            self.step()

    def step(self) -> None:
        """Take the next step of the program."""
        raise NotImplementedError

    def on_end(self) -> None:
        """Called when a launch ended."""

    def launch(self, kernels: list[int]) -> bool:
        """Launch if the policy allows; otherwise return False and wait to be woken."""
        if not self.policy.allow(self):
            self._blocked = True
            return False
        self.outstanding += 1
        self.launches += 1
        self.policy.launched(self)
        total = sum(kernels)
        for kernel in kernels[:-1]:
            self._gpu.submit(self._context, kernel, None)
        self._gpu.submit(self._context, kernels[-1], lambda: self._end(total))
        return True

    def _end(self, duration: int) -> None:
        self.outstanding -= 1
        self.policy.ended(self, duration)
        self.on_end()


class Training(Process):
    """Launches as fast as it can; `rhythm` (period, busy part) makes it pause."""

    def __init__(
        self,
        clock: Clock,
        gpu: Gpu,
        policy: Policy,
        tenant: Tenant,
        seed: int,
        *,
        work: Durations,
        rhythm: tuple[int, int] | None = None,
    ) -> None:
        super().__init__(clock, gpu, policy, tenant, seed)
        self._work = work
        self._rhythm = rhythm
        self._next: list[int] | None = None
        self._full = False
        clock.at(0, self.step)

    def step(self) -> None:
        if self._rhythm is not None and self._next is None:
            period, busy = self._rhythm
            phase = self.clock.now % period
            if phase >= busy:
                self.clock.after(period - phase, self.step)
                return
        if self.outstanding >= DEEPEST:
            self._full = True
            return
        self._next = self._next or self._work(self.random)
        if self.launch(self._next):
            self._next = None
            self.clock.after(LAUNCH, self.step)

    def on_end(self) -> None:
        if self._full:
            self._full = False
            self.clock.after(NOTICE, self.step)


class Synchronous(Process):
    """Launches, waits for the result, pauses for a gap, and repeats."""

    def __init__(
        self, clock: Clock, gpu: Gpu, policy: Policy, tenant: Tenant, seed: int, *, work: Durations, gap: int
    ) -> None:
        super().__init__(clock, gpu, policy, tenant, seed)
        self._work = work
        self._gap = gap
        clock.at(0, self.step)

    def step(self) -> None:
        if self.launch(self._work(self.random)):
            self.policy.synchronized(self)

    def on_end(self) -> None:
        self.clock.after(NOTICE + self._gap, self.step)


class Requests(Process):
    """Answers requests that arrive at random, each with 20 kernels of 0.1 ms, one after the other."""

    def __init__(self, clock: Clock, gpu: Gpu, policy: Policy, tenant: Tenant, seed: int, *, load: float) -> None:
        super().__init__(clock, gpu, policy, tenant, seed)
        self.latencies: list[int] = []
        self._between = 2 * MS / load
        self._arrived: deque[int] = deque()
        self._left = 0
        self._arrive_next()

    def _arrive_next(self) -> None:
        self.clock.after(int(self.random.expovariate(1 / self._between)), self._arrive)

    def _arrive(self) -> None:
        self._arrived.append(self.clock.now)
        self._arrive_next()
        if len(self._arrived) == 1:
            self._begin()

    def _begin(self) -> None:
        if self._arrived:
            self._left = 20
            self.step()

    def step(self) -> None:
        while self._left:
            if not self.launch([MS // 10]):
                return
            self._left -= 1
        self.policy.synchronized(self)

    def on_end(self) -> None:
        if not self._left and not self.outstanding:
            self.latencies.append(self.clock.now + NOTICE - self._arrived.popleft())
            self.clock.after(NOTICE, self._begin)


def about(duration: int, spread: float = 0.1) -> Durations:
    """Kernels of about this length."""
    return lambda rng: [max(1, int(duration * rng.lognormvariate(-spread * spread / 2, spread)))]


def graph(kernels: int, duration: int) -> Durations:
    """Graphs of `kernels` kernels that take `duration` together."""
    return lambda _rng: [duration // kernels] * kernels
