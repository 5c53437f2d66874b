"""Tenants with one process per GPU whose kernels wait for each other: collectives on several modeled GPUs."""

import ctypes
from collections.abc import Sequence

from testing.lease import native
from testing.lease.clients import LAUNCH, NOTICE, Policy, Process, Tenant
from testing.lease.clock import MS, Clock, S
from testing.lease.gpu import Gpu, Meeting
from testing.lease.lease import Lease
from testing.lease.peers import Free

HEARTBEAT = 50 * MS
KERNEL, COLLECTIVE = MS, MS // 2
# A host is at most this far ahead of its GPU.
STEPS_AHEAD = 8


class Team:
    """The processes of one tenant, one per GPU: in each step all of them meet."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.ended: list[int] = []
        """When each step ended."""
        self._meetings: dict[int, Meeting] = {}

    def meeting(self, step: int) -> Meeting:
        return self._meetings.setdefault(step, Meeting(self.size))


class Worker(Process):
    """Launches the kernels of a step and then its part of the collective, as fast as it can."""

    def __init__(
        self,
        clock: Clock,
        gpu: Gpu,
        policy: Policy,
        tenant: Tenant,
        seed: int,
        *,
        team: Team,
        kernels: int,
    ) -> None:
        super().__init__(clock, gpu, policy, tenant, seed)
        self._team = team
        self._kernels = kernels
        self._launched, self._ended = 0, 0
        self._full = False
        clock.at(self.random.randrange(MS), self.step)

    def step(self) -> None:
        if self._launched - self._ended >= STEPS_AHEAD * (self._kernels + 1):
            self._full = True
            return
        if not self.policy.allow(self):
            self._blocked = True
            return
        number, place = divmod(self._launched, self._kernels + 1)
        self._launched += 1
        self.outstanding += 1
        self.policy.launched(self)
        meeting = self._team.meeting(number) if place == self._kernels else None
        duration = COLLECTIVE if meeting else int(KERNEL * self.random.lognormvariate(0, 0.05))
        self._gpu.submit(self._context, duration, lambda: self._end_step(duration, meeting), meeting)
        self.clock.after(LAUNCH, self.step)

    def _end_step(self, duration: int, meeting: Meeting | None) -> None:
        self._ended += 1
        self._end(duration)
        if meeting is not None and self is self.tenant.processes[0]:
            self._team.ended.append(self.clock.now)

    def on_end(self) -> None:
        if self._full:
            self._full = False
            self.clock.after(NOTICE, self.step)


class Together:
    """The part of the arbiter that leases GPUs together."""

    def __init__(self, clock: Clock, leases: Sequence[Lease], tenants: Sequence[Tenant]) -> None:
        self._clock, self._leases, self._core = clock, leases, native.core()
        self._gangs = native.Gangs()
        self._due = 0
        self._spans = [native.Span() for _ in tenants]
        for at, lease in enumerate(leases):
            self._gangs.gpus[at] = ctypes.pointer(lease.gpu)
        for tenant, span in zip(tenants, self._spans, strict=True):
            for at in range(native.PAGE_GPUS):
                span.gpus[at] = at if at < len(leases) else -1
                span.entries[at] = tenant.number
            self._core.lease_gangs_add(ctypes.byref(self._gangs), ctypes.byref(span))
        for lease in leases:
            lease.together = self._step
        clock.after(HEARTBEAT, self._beat)

    def _beat(self) -> None:
        self._core.lease_gangs_group(ctypes.byref(self._gangs), self._clock.now)
        self._step()
        self._clock.after(HEARTBEAT, self._beat)

    def _step(self) -> None:
        self._core.lease_gangs_step(ctypes.byref(self._gangs), self._clock.now)
        for lease in self._leases:
            lease.wake()
        due = self._core.lease_gangs_due(ctypes.byref(self._gangs), self._clock.now)
        if due != self._due:
            self._due = due
            self._clock.at(due, lambda: self._timer(due))

    def _timer(self, due: int) -> None:
        if due == self._due:
            self._step()


def step_time(
    shares: Sequence[float], gpus: int, *, policy: str = "ours", seconds: int = 12, kernels: int = 9
) -> list[float]:
    """Run tenants on all of these GPUs; the mean time of a step of each, in milliseconds, after two seconds."""
    clock = Clock()
    tenants = [Tenant(number, share) for number, share in enumerate(shares)]
    cards = [Gpu(clock, len(tenants)) for _ in range(gpus)]
    leases = [Lease(clock, tenants) for _ in cards] if policy != "none" else []
    if policy == "ours":
        Together(clock, leases, tenants)
    teams = [Team(gpus) for _ in tenants]
    for tenant, team in zip(tenants, teams, strict=True):
        for at, card in enumerate(cards):
            control: Policy = leases[at] if leases else Free()
            Worker(clock, card, control, tenant, 100 * tenant.number + at, team=team, kernels=kernels)
    clock.run(seconds * S)
    found: list[float] = []
    for team in teams:
        late = [when for when in team.ended if when > 2 * S]
        found.append((late[-1] - late[0]) / (len(late) - 1) / MS if len(late) > 1 else float("inf"))
    return found


def times_ideal(tenants: int, gpus: int, policy: str = "ours", seconds: int = 12, kernels: int = 9) -> float:
    """How many times as long a step takes as on GPUs that are divided without loss; of the slowest tenant."""
    (alone,) = step_time([1.0], gpus, policy="none", seconds=4, kernels=kernels)
    return max(step_time([1 / tenants] * tenants, gpus, policy=policy, seconds=seconds, kernels=kernels)) / (
        alone * tenants
    )
