"""What tenants do: train without pause, call synchronously, answer requests."""

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from bench.lease.clock import MS, US, Clock
from bench.lease.gpu import Context, Gpu

# What a launch costs its thread, and a thread to notice that the GPU is done.
LAUNCH = 4 * US
NOTICE = 10 * US
# As deep as a driver's queue.
DEEPEST = 1024

Durations = Callable[[random.Random], list[int]]
"""The kernels of one launch: more than one is a graph."""


@dataclass(slots=True)
class Tenant:
    """One container, and what it was promised."""

    number: int
    share: float
    limit: float = 1.0
    priority: int = 0
    processes: list["Process"] = field(default_factory=list["Process"])


class Policy(Protocol):
    """Who may launch when."""

    def allow(self, process: "Process") -> bool:
        """May it launch now? If not, it is woken later."""
        ...

    def launched(self, process: "Process") -> None:
        """It did."""
        ...

    def ended(self, process: "Process", duration: int) -> None:
        """Its oldest launch ended on the GPU, having run this long."""
        ...

    def synchronised(self, process: "Process") -> None:
        """It waits for the GPU to be done with all it launched."""
        ...


class Process:
    """A process of a tenant."""

    def __init__(self, clock: Clock, gpu: Gpu, policy: Policy, tenant: Tenant, seed: int) -> None:
        self.tenant = tenant
        self.outstanding = 0
        self.launches = 0
        self.is_graph = False
        self.clock = clock
        self.dice = random.Random(seed)
        self.policy = policy
        self._blocked = False
        self._gpu = gpu
        self._context: Context = gpu.context(tenant.number)
        tenant.processes.append(self)

    def wake(self) -> None:
        """The policy says: try again."""
        if self._blocked:
            self._blocked = False
            self.step()

    def step(self) -> None:
        """Do the next thing."""
        raise NotImplementedError

    def on_end(self) -> None:
        """One launch ended."""

    def launch(self, kernels: list[int]) -> bool:
        """Try to; false: blocked until woken."""
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
        self._next = self._next or self._work(self.dice)
        if self.launch(self._next):
            self._next = None
            self.clock.after(LAUNCH, self.step)

    def on_end(self) -> None:
        if self._full:
            self._full = False
            self.clock.after(NOTICE, self.step)


class Synchronous(Process):
    """Launches, waits for the result, thinks for a gap, and again."""

    def __init__(
        self, clock: Clock, gpu: Gpu, policy: Policy, tenant: Tenant, seed: int, *, work: Durations, gap: int
    ) -> None:
        super().__init__(clock, gpu, policy, tenant, seed)
        self._work = work
        self._gap = gap
        clock.at(0, self.step)

    def step(self) -> None:
        if self.launch(self._work(self.dice)):
            self.policy.synchronised(self)

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
        self.clock.after(int(self.dice.expovariate(1 / self._between)), self._arrive)

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
        self.policy.synchronised(self)

    def on_end(self) -> None:
        if not self._left and not self.outstanding:
            self.latencies.append(self.clock.now + NOTICE - self._arrived.popleft())
            self.clock.after(NOTICE, self._begin)


def about(duration: int, spread: float = 0.1) -> Durations:
    """Kernels of about this length."""
    return lambda dice: [max(1, int(duration * dice.lognormvariate(-spread * spread / 2, spread)))]


def graph(kernels: int, duration: int) -> Durations:
    """Graphs of so many kernels, together this long."""
    return lambda _dice: [duration // kernels] * kernels
