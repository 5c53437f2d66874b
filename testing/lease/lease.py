"""Our policy in the simulation: the arbiter's and the library's C, with messages and wake-ups that take time.

The library's watcher thread is mirrored here (`native/enforce/lease.c` does the same with events and futexes).
"""

import ctypes
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from testing.lease import native
from testing.lease.clients import NOTICE, Process, Tenant
from testing.lease.clock import MS, US, Clock

# The delay from a message to the arbiter's reaction, and from its wake-up to the woken thread.
MESSAGE = 50 * US
WAKE = 30 * US
STEP = 20 * US
NEVER = (1 << 63) - 1
EQUAL, BEST_EFFORT = 2, 3
HEARTBEAT_OLD = 200 * MS
RUNS_ON, RUNNING_ON = 50 * MS, 250 * MS


@dataclass(slots=True)
class Library:
    """The state of the limits library in one process."""

    process: Process
    pace: native.Pace = field(default_factory=native.Pace)
    estimates: native.Estimates = field(default_factory=native.Estimates)
    gaps: native.Gaps = field(default_factory=native.Gaps)
    reported: native.Process = field(default_factory=native.Process)
    running: deque[tuple[int, bool]] = field(default_factory=deque[tuple[int, bool]])
    """The estimate of each launch, and whether it is only a guess."""
    ended: int | None = None
    blocked: bool = False
    said: tuple[int, int] | None = None
    said_at: int = 0
    predicted_end: int = 0
    silent: bool = False
    look_at: int = NEVER


class Lease:
    """Leases on one GPU."""

    def __init__(self, clock: Clock, tenants: list[Tenant], policy: int = BEST_EFFORT) -> None:
        self.core = native.core()
        self.gpu = native.Gpu()
        self.messages = 0
        self.died: int | None = None
        self._clock = clock
        self._words = [native.Words() for _ in tenants]
        self._libraries: dict[Process, Library] = {}
        self._timer_at = NEVER
        self.together: Callable[[], None] | None = None
        """Called after any change, if this GPU may be leased together with others."""
        self.core.lease_gpu_init(ctypes.byref(self.gpu))
        for tenant, words in zip(tenants, self._words, strict=True):
            self.core.lease_gpu_add(ctypes.byref(self.gpu), ctypes.byref(words))
            self.configure(tenant, policy)
        self._slots(tenants)

    def configure(self, tenant: Tenant, policy: int = BEST_EFFORT) -> None:
        """Configure a tenant's share in the arbiter."""
        milli, limit = round(1000 * tenant.share), round(1000 * tenant.limit)
        self.core.lease_gpu_configure(
            ctypes.byref(self.gpu), tenant.number, policy, milli, limit, tenant.priority, self._clock.now
        )
        self._react()

    def _slots(self, tenants: list[Tenant]) -> None:
        start = 0
        for tenant, words in zip(tenants, self._words, strict=True):
            words.time_slot_start_us, words.time_slot_length_us = start, int(100_000 * tenant.share)
            start += words.time_slot_length_us

    # ---- the library ----

    def _library(self, process: Process) -> Library:
        if process not in self._libraries:
            found = self._libraries[process] = Library(process)
            self.gpu.tenants[process.tenant.number].present += 1
            found.reported.present = 1
        return self._libraries[process]

    def _until(self, library: Library) -> int:
        until = self._words[library.process.tenant.number].until
        return until if self.died is None else min(until, self.died + HEARTBEAT_OLD)

    def _alive(self) -> bool:
        return self.died is None or self._clock.now < self.died + HEARTBEAT_OLD

    def allow(self, process: Process) -> bool:
        library, now = self._library(process), self._clock.now
        if library.ended is not None and not library.blocked:
            self.core.pace_gap(ctypes.byref(library.gaps), now - library.ended)
            library.ended = None
        answer, when = self._ask(library)
        library.blocked = answer != native.GO
        if answer == native.GO:
            if not (library.said and library.said[0] & native.ACTIVE):
                self._say(library, native.ACTIVE, now)
            return True
        if when < NEVER:
            self._clock.at(when + NOTICE, process.wake)
        if answer == native.OUTSIDE and (now >= self._until(library) or not library.pace.pieces):
            self._say_end(library)
        return False

    def _ask(self, library: Library) -> tuple[int, int]:
        words, when = self._words[library.process.tenant.number], ctypes.c_int64()
        pace, now = ctypes.byref(library.pace), self._clock.now
        estimate = self._estimate(library)
        if self._alive():
            until = self._until(library)
            answer = self.core.pace_gate(pace, now, until, words.flags, estimate, ctypes.byref(when))
        else:
            slot = words.time_slot_start_us, words.time_slot_length_us
            answer = self.core.pace_slot(pace, now, *slot, estimate, ctypes.byref(when))
        return answer, when.value

    def _estimate(self, library: Library) -> int:
        return self.core.pace_estimate(ctypes.byref(library.estimates), 1, 0)

    def launched(self, process: Process) -> None:
        library = self._libraries[process]
        estimate = self._estimate(library)
        unknown = not self.core.pace_known(ctypes.byref(library.estimates), 1)
        if not library.pace.pieces:
            library.pace.since = self._clock.now
        library.pace.latest = self._clock.now
        library.running.append((estimate, unknown))
        library.pace.pieces += 1
        library.pace.unknown += unknown
        library.pace.estimate += estimate
        library.pace.oldest = library.running[0][0]
        self._look_later(library, self._clock.now + STEP)

    def ended(self, process: Process, duration: int) -> None:
        library = self._libraries[process]
        estimate, unknown = library.running.popleft()
        library.pace.pieces -= 1
        library.pace.unknown -= unknown
        library.pace.estimate -= estimate
        library.pace.excess += max(0, duration - estimate)
        library.pace.oldest = library.running[0][0] if library.running else 0
        library.pace.since = self._clock.now
        self.core.pace_learn(ctypes.byref(library.estimates), 1, 1, float(duration), 1)
        if not library.pace.pieces and not library.blocked:
            library.ended = self._clock.now
        self._look_later(library, self._clock.now + NOTICE)

    def synchronized(self, process: Process) -> None:
        pass

    def _look_later(self, library: Library, when: int) -> None:
        if when >= library.look_at:
            return
        library.look_at = when

        def look() -> None:
            if library.look_at == when:
                library.look_at = NEVER
                self._look(library)

        self._clock.at(when, look)

    def _look(self, library: Library) -> None:
        now = self._clock.now
        if library.silent:
            return
        if not library.pace.pieces and not library.blocked:
            self._say_idle(library)
        elif not library.pace.pieces and now < self._until(library):
            library.process.wake()
        else:
            when = self._say_end(library)
            again = self.core.pace_look_at(ctypes.byref(library.pace), now)
            if library.pace.pieces:
                self._look_later(library, min(when, self._say_gap(library), again))

    def _say_gap(self, library: Library) -> int:
        now, flags = self._clock.now, self._words[library.process.tenant.number].flags
        if library.blocked or now >= self._until(library) or library.pace.estimate < 2 * native.OVERLAP:
            return NEVER
        if self.core.pace_uncertain(ctypes.byref(library.pace), now):
            return NEVER
        if not self._lends_gaps(library, flags):
            return NEVER
        left = self.core.pace_left(ctypes.byref(library.pace), now)
        if left > native.OVERLAP:
            return now + left - native.OVERLAP
        library.predicted_end = now + left
        self._say(library, native.ACTIVE | native.NEAR | native.SOON, library.predicted_end)
        return NEVER

    def _lends_gaps(self, library: Library, flags: int) -> bool:
        contended = flags & (native.CONTENDED | native.TOGETHER) == native.CONTENDED
        return contended and bool(self.core.pace_soon(ctypes.byref(library.gaps)))

    def _say_end(self, library: Library) -> int:
        now, until = self._clock.now, self._until(library)
        end = now + self.core.pace_left(ctypes.byref(library.pace), now)
        generation = self._words[library.process.tenant.number].generation & 0xFFFFFFFF
        said = library.said
        predicted = said is not None and said[1] == generation and said[0] & native.NEAR and said[0] & native.ACTIVE
        if self.core.pace_uncertain(ctypes.byref(library.pace), now):
            return self._say_running_on(library, until, predicted=bool(predicted))
        if not predicted and max(end, until) - now > native.OVERLAP:
            return min(max(end, until) - native.OVERLAP, self._say_running_on(library, until, predicted=False))
        if library.pace.pieces:
            if not predicted:
                library.predicted_end = end
                self._say(library, native.ACTIVE | native.NEAR, end)
        elif not predicted or abs((library.ended or library.pace.since) - library.predicted_end) > native.PREDICTED:
            ended = now if not predicted else library.ended or library.pace.since
            self._say(library, native.ACTIVE | native.NEAR | native.DRAINED, ended)
        return now + STEP

    def _say_running_on(self, library: Library, until: int, *, predicted: bool) -> int:
        now = self._clock.now
        if now < until + RUNS_ON and not predicted:
            return until + RUNS_ON
        if now - library.said_at > RUNNING_ON:
            library.said = None
        self._say(library, native.ACTIVE, now)
        return now + RUNNING_ON

    def _say_idle(self, library: Library) -> None:
        now, ended = self._clock.now, library.ended
        if ended is None or library.said is None or not library.said[0] & (native.ACTIVE | native.SOON):
            return
        hold = ended + self.core.pace_hold(ctypes.byref(library.gaps)) if now < self._until(library) else now
        if now >= hold:
            self._say(library, native.NEAR | native.DRAINED, ended)
            return
        flags = self._words[library.process.tenant.number].flags
        if self._lends_gaps(library, flags):
            self._say(library, native.SOON | native.NEAR | native.DRAINED, ended)
        self._look_later(library, hold)

    # ---- between them ----

    def _say(self, library: Library, state: int, stamp: int) -> None:
        tenant = library.process.tenant.number
        generation = self._words[tenant].generation & 0xFFFFFFFF
        if library.said == (state, generation) or library.silent:
            return
        library.said = (state, generation)
        library.said_at = self._clock.now
        message = native.Message(0, state, 0, generation, stamp)

        def hear() -> None:
            if self.died is None:
                arguments = (ctypes.byref(library.reported), ctypes.byref(message), self._clock.now)
                self.core.lease_gpu_say(ctypes.byref(self.gpu), tenant, *arguments)
                self._react()

        self.messages += 1
        self._clock.after(MESSAGE, hear)

    def _react(self) -> None:
        if self.together is not None:
            self.together()
        self.wake()

    def wake(self) -> None:
        """Wake tenants and set the timer after any change in the arbiter."""
        woken, self.gpu.wake = self.gpu.wake, 0
        for library in self._libraries.values():
            if woken >> library.process.tenant.number & 1:
                self._clock.after(WAKE, lambda library=library: self._news(library))
        due = self.core.lease_gpu_due(ctypes.byref(self.gpu))
        if due != self._timer_at:
            self._timer_at = due
            self._clock.at(due, lambda: self._timer(due))

    def _timer(self, due: int) -> None:
        if self._timer_at == due and self.died is None:
            self._timer_at = NEVER
            self.core.lease_gpu_timer(ctypes.byref(self.gpu), self._clock.now)
            self._react()

    def _news(self, library: Library) -> None:
        library.process.wake()
        if library.pace.pieces:
            self._look(library)

    # ---- failures ----

    def silence(self, process: Process) -> None:
        """Let a process hang: it reports and launches nothing from now on."""
        self._libraries[process].silent = True

    def die(self) -> None:
        """Kill the arbiter; after a while tenants fall back to their time slots."""
        self.died = self._clock.now
        for library in self._libraries.values():
            self._clock.after(HEARTBEAT_OLD + US, library.process.wake)

    def charged(self) -> list[int]:
        """The time that each tenant was charged."""
        self.core.lease_gpu_settle(ctypes.byref(self.gpu), self._clock.now)
        return [self.gpu.accounts.of[index].charged for index in range(len(self._words))]
