"""The load of one service over the last minutes: rates from counters, and the GPU time that a request takes."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise, takewhile

from milligpu.model.gpu_service import LoadTarget
from milligpu.model.units import WHOLE
from milligpu.services.load import PodLoad

NOW_S = 2.0
"""Guarantees grow by the average of this time."""
STEADY_S = 6.0
"""Replicas are added by the average of this time: a pod that starts costs more than a resize."""
SHRINK_S = 30.0
REMOVE_S = 60.0
REMOVE_STARTS = 3
"""Replicas are removed after the longer one of `REMOVE_S` and so many start times."""
_REMOVE_MAX_S = 1800.0
UTILIZATION = 0.7
"""Requests arrive unevenly. Above this part of its share a pod's queue grows faster than its work."""
# A scrape that came later than this is a gap, over which no rate is known.
_GAP_S = 5.0
_LATE_S = 0.5
"""How much later than a second after the last one a scrape may be."""
_FADES = 0.9
"""How much of what was learned counts after the next reading; half of it after about seven."""
_SEED_REQUESTS = 20.0
"""As many requests as a learned time from the object's status counts for."""
_LEARN_REQUESTS = 5.0


@dataclass(frozen=True, slots=True)
class LoadSample:
    """What a service served within about a second."""

    at: float
    seconds: float
    requests: float
    """Within the time."""
    running: float
    waiting: float

    @property
    def rate(self) -> float:
        return self.requests / self.seconds


@dataclass(frozen=True, slots=True)
class Needs:
    """Milli-GPU that a service needs, all pods together. None: the window is not full."""

    now: float | None
    steady: float | None
    most_shrink: float | None
    """The most within `SHRINK_S`."""
    most_remove: float | None
    """The most within the time after which replicas are removed."""


class LearnedTime:
    """GPU time per request, from the agents' accounts: an average that forgets."""

    def __init__(self, seconds: float | None) -> None:
        """`seconds` is what an earlier leader learned."""
        self._gpu = 0.0 if seconds is None else seconds * _SEED_REQUESTS
        self._requests = 0.0 if seconds is None else _SEED_REQUESTS
        self._before: dict[str, int] = {}

    @property
    def seconds(self) -> float | None:
        """None until enough requests were seen."""
        return self._gpu / self._requests if self._requests >= _LEARN_REQUESTS and self._gpu > 0 else None

    def add(self, gpu_ns: Mapping[str, int], requests: float) -> None:
        """Add a reading of all pods' accounts, and the requests since the last reading."""
        before, self._before = self._before, dict(gpu_ns)
        if not gpu_ns or not gpu_ns.keys() <= before.keys():
            return  # a new pod's account may have time from before it was Ready
        used = sum(max(0, now - before[uid]) for uid, now in gpu_ns.items()) / 1e9
        if requests > 0:
            self._gpu, self._requests = self._gpu * _FADES + used, self._requests * _FADES + requests


class LoadWindow:
    """Samples of one service, one a second."""

    def __init__(self, learned: float | None) -> None:
        self.learned = LearnedTime(learned)
        self._samples: deque[LoadSample] = deque()
        self._counters: dict[str, float] = {}
        self._at: float | None = None
        self._whole_since: float | None = None
        self._unread = 0.0

    def add(self, at: float, loads: Mapping[str, PodLoad]) -> None:
        """Add what all ready pods say now."""
        requests = sum(self._increase(uid, each.requests) for uid, each in loads.items())
        self._counters = {uid: each.requests for uid, each in loads.items()}
        before, self._at = self._at, at
        if before is None or not 0 < at - before <= _GAP_S:
            self._whole_since = at
            return
        running, waiting = (
            sum(each.running for each in loads.values()),
            sum(each.waiting for each in loads.values()),
        )
        self._samples.append(LoadSample(at, at - before, requests, running, waiting))
        self._unread += requests
        while self._samples[0].at < at - _REMOVE_MAX_S:
            self._samples.popleft()

    def _increase(self, uid: str, counter: float) -> float:
        before = self._counters.get(uid)
        if before is None:
            return 0.0
        return counter - before if counter >= before else counter  # a program that began anew counts from 0

    def learn(self, gpu_ns: Mapping[str, int]) -> None:
        """Add a reading of the agents' accounts of all ready pods."""
        self.learned.add(gpu_ns, self._unread)
        self._unread = 0.0

    def average(self) -> LoadSample | None:
        """Return the last samples as one; None until the first window is full."""
        return self._over(NOW_S)

    def needs(self, target: LoadTarget, start_s: float | None) -> Needs:
        """Return what the service needs; `start_s` is how long its pods take to start."""
        remove_s = min(_REMOVE_MAX_S, max(REMOVE_S, REMOVE_STARTS * (start_s or 0.0)))
        each = self._over
        return Needs(
            self._need(each(NOW_S), target),
            self._need(each(STEADY_S), target),
            self._most(SHRINK_S, target),
            self._most(remove_s, target),
        )

    def _over(self, seconds: float) -> LoadSample | None:
        taken = self._last(seconds)
        if not taken:
            return None
        time = sum(each.seconds for each in taken)
        running, waiting = (
            sum(getattr(each, key) * each.seconds for each in taken) / time for key in ("running", "waiting")
        )
        return LoadSample(taken[0].at, time, sum(each.requests for each in taken), running, waiting)

    def _last(self, seconds: float) -> list[LoadSample]:
        """Return the samples of this time, the latest first; none unless all of it was observed without a gap."""
        at, since = self._at, self._whole_since
        if at is None or since is None or at - since < seconds - _LATE_S:
            return []
        return list(takewhile(lambda each: each.at > at - seconds, reversed(self._samples)))

    def _most(self, seconds: float, target: LoadTarget) -> float | None:
        """Return the most that any stretch of `NOW_S` within the time needed."""
        most: float | None = None
        for other, one in pairwise(self._last(seconds)):
            both = LoadSample(
                other.at,
                one.seconds + other.seconds,
                one.requests + other.requests,
                (one.running + other.running) / 2,
                (one.waiting + other.waiting) / 2,
            )
            need = self._need(both, target)
            most = need if most is None else max(most, need or 0.0)
        return most

    def _need(self, sample: LoadSample | None, target: LoadTarget) -> float | None:
        if sample is None:
            return None
        if target.running is not None:
            return (sample.running + sample.waiting) / target.running * WHOLE
        if target.requests is not None:
            return sample.rate / target.requests * WHOLE
        seconds = self.learned.seconds
        if seconds is None:
            return 0.0 if sample.requests == 0 else None
        return sample.rate * seconds / UTILIZATION * WHOLE
