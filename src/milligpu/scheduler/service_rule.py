"""One service in the leader: its load, its pods, and what it decided; no I/O."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from milligpu.cluster.pod_entry import PodEntry, PodStage
from milligpu.cluster.state import ClusterState
from milligpu.model.errors import MilligpuError
from milligpu.model.gpu_service import GpuService
from milligpu.model.reasons import ServiceReason
from milligpu.model.units import show_milli
from milligpu.scheduler.service_pods import WatchedPod, service_pod
from milligpu.scheduler.service_scale import TargetScale
from milligpu.scheduler.service_status import FRESH, SCALED, UPDATED, ServiceCondition
from milligpu.services.decide import ReplicaDecision, ReplicaState, next_replicas, next_share
from milligpu.services.divide import PodWant
from milligpu.services.load import PodLoad, UnknownMetric
from milligpu.services.updates import ServicePod, UpdateRole, claim, newest_version, roles
from milligpu.services.window import LoadWindow, Needs
from milligpu.wire.gpu_service import GpuServiceStatus
from milligpu.wire.kubernetes import RawObject

_NOT_YET = ServiceCondition(FRESH, ServiceReason.COLLECTING)
_NO_NEEDS = Needs(None, None, None, None)
# How much one more start counts in the average.
_START_PART = 0.3


@dataclass(slots=True)
class ServiceRule:
    """What is known of one service, from one second to the next."""

    object: RawObject
    spec: GpuService
    window: LoadWindow
    share: int
    """Milli-GPU that each pod should be guaranteed; 0 until pods were seen."""
    start_s: float | None
    starts: int
    scale: TargetScale | None = None
    scale_read_at: float = -1e9
    status_written_at: float = -1e9
    watched: list[WatchedPod] = field(default_factory=list[WatchedPod])
    pods: list[ServicePod] = field(default_factory=list[ServicePod])
    waiting: list[PodEntry] = field(default_factory=list[PodEntry])
    roles: Mapping[str, UpdateRole] = field(default_factory=dict[str, UpdateRole])
    needs: Needs = _NO_NEEDS
    fresh: ServiceCondition = _NOT_YET
    quota_until: float = -1e9
    """Until when the pods' shares do not grow beyond their template, because a quota counts them."""
    said: list[str] = field(default_factory=list[str])
    """Decisions that the status does not have yet."""
    reported: dict[str, str] = field(default_factory=dict[str, str])
    """The reason of each condition that an event was written about last."""
    _starting: set[str] = field(default_factory=set[str])
    """Pods that were seen before they were Ready for the first time."""
    _were_ready: set[str] = field(default_factory=set[str])
    _version: str = ""

    @property
    def ready(self) -> list[ServicePod]:
        return [each for each in self.pods if each.ready]

    @property
    def key(self) -> tuple[str, str]:
        return self.spec.namespace, self.spec.name

    def see(self, state: ClusterState, watched: Iterable[WatchedPod]) -> None:
        """Take over the pods of the target as they are now."""
        self.watched = [each for each in watched if not each.ended]
        self.pods, self.waiting = [], []
        waiting = dict[str, tuple[str, int]]()
        for each in self.watched:
            entry = state.entry(each.uid)
            if entry is None:
                continue
            pod = service_pod(state, entry, each)
            if pod is not None:
                self.pods.append(pod)
            elif entry.stage is not PodStage.BOUND and not each.leaving:
                self.waiting.append(entry)
                waiting[each.uid] = each.version, entry.number
        self.pods.sort(key=lambda each: each.number)
        self._version = newest_version((each for each in self.pods if not each.leaving), waiting)
        self.roles = roles(self.pods, self._version)
        self._learn_starts()

    def _learn_starts(self) -> None:
        """Count pods that became Ready for the first time while this instance watched."""
        for each in self.watched:
            if each.start_s is None:
                self._starting |= {each.uid} - self._were_ready
            elif each.uid in self._starting and each.uid not in self._were_ready:
                before = each.start_s if self.start_s is None else self.start_s
                self.start_s = before + _START_PART * (each.start_s - before)
                self.starts += 1
        present = {each.uid for each in self.watched}
        ready = {each.uid for each in self.watched if each.start_s is not None}
        self._were_ready = (self._were_ready | ready) & present
        self._starting = (self._starting - ready) & present

    def measure(self, now: float, loads: Mapping[str, PodLoad], problems: Mapping[str, MilligpuError]) -> None:
        """Add what the ready pods say; without all of them the last decision holds."""
        if problems:
            error = next(iter(problems.values()))
            unknown = isinstance(error, UnknownMetric)
            reason = ServiceReason.COUNTER_UNKNOWN if unknown else ServiceReason.METRICS_MISSING
            self.fresh, self.needs = ServiceCondition(FRESH, reason, error.message), _NO_NEEDS
            return
        if not loads:
            self.fresh = ServiceCondition(FRESH, ServiceReason.COLLECTING, "no pod is Ready")
            self.needs = _NO_NEEDS
            return
        self.window.add(now, loads)
        self.needs = self.window.needs(self.spec.load, self.start_s)
        full = self.needs.now is not None
        message = "" if full else "the first window is not full, or GPU time per request is not known yet"
        self.fresh = ServiceCondition(FRESH, ServiceReason.FRESH if full else ServiceReason.COLLECTING, message)

    def decide_share(self) -> None:
        """Let the guarantee of each pod follow the load."""
        known = [each.template for each in self.pods if each.resizable]
        high = self.spec.share.max
        low = min(self.spec.share.min or min(known, default=high), high)
        before = self.share or min(max(known, default=low), high)
        needs = _NO_NEEDS if self.spec.paused else self.needs
        self.share = next_share(before, needs, len(self.ready), low, high)
        if self.share != before and self.ready:
            need = f"{(self.needs.now or 0.0) / 1000:.2f}"
            self.said.append(
                f"share {show_milli(before)} to {show_milli(self.share)} GPU for each of {len(self.ready)} pods: "
                f"{need} GPU needed"
            )

    def wants(self, *, returning: frozenset[str], lending: frozenset[str], now: float) -> list[PodWant]:
        """Return what each pod that can be resized should have."""
        no_loans = now < self.quota_until
        found: list[PodWant] = []
        for each in self.pods:
            if each.resizable and not each.leaving:
                recalled = no_loans or each.uid in returning
                role = self.roles[each.uid]
                own, loan, rank = claim(each, role, self.share, recalled=recalled, lends=each.uid in lending)
                found.append(PodWant(each.uid, each.gpus, each.present, own, loan, rank))
        return found

    def old_pods(self, uid: str) -> list[ServicePod]:
        """Return the ready pods of the former version that may lend to this new one; none without an update.

        A pod is new if its version is that of the youngest pod, so that a rollback goes the same way.
        """
        version = next((each.version for each in self.watched if each.uid == uid), "")
        if not version or version != self._version:
            return []
        return [each for each in self.ready if each.version != version and each.resizable]

    def decide_replicas(self, free: Mapping[tuple[str, str], int]) -> ReplicaDecision | None:
        """Return how many pods there should be; None if the target is not known."""
        if self.scale is None:
            return None
        together = dict[tuple[str, str], int]()
        for each in self.ready:
            for gpu in each.gpus:
                together[gpu] = together.get(gpu, 0) + 1
        capacities = [self._capacity(each, free, together) for each in self.ready]
        starting = len(self.ready) != self.scale.replicas or bool(self.waiting) or len(self.pods) != len(self.ready)
        state = ReplicaState(self.scale.replicas, starting, capacities, self.share, self.spec.share.max)
        if self.spec.paused:
            return ReplicaDecision(self.scale.replicas, ServiceReason.AS_NEEDED, "paused")
        return next_replicas(state, self.needs, self.spec.replicas)

    def _capacity(
        self, pod: ServicePod, free: Mapping[tuple[str, str], int], together: Mapping[tuple[str, str], int]
    ) -> int:
        if not pod.resizable:
            return pod.present
        room = min(max(0, free.get(gpu, 0)) // together[gpu] for gpu in pod.gpus)
        most = self.spec.share.max if pod.borrows else min(self.spec.share.max, pod.template)
        return min(most, pod.present + room)

    def scaled(self, decision: ReplicaDecision | None, now: float) -> ServiceCondition:
        """Return the condition `Scaled`."""
        if now < self.quota_until or any(not each.borrows for each in self.pods):
            who = "a quota" if now < self.quota_until else "a queue"
            message = f"{who} counts the pods' shares, so they do not grow beyond their template"
            return ServiceCondition(SCALED, ServiceReason.QUOTA_COUNTS_TEMPLATE, message)
        stuck = [each for each in self.pods if not each.resizable and not each.leaving]
        if stuck and len(stuck) == len(self.pods):
            message = "the pods hold whole GPUs, several shares, or shares that milligpu.dev/resize sets"
            return ServiceCondition(SCALED, ServiceReason.WHOLE_GPU, message)
        if decision is None:
            return ServiceCondition(SCALED, ServiceReason.TARGET_NOT_FOUND)
        return ServiceCondition(SCALED, decision.reason, decision.message)

    def updated(
        self, lending: Iterable[str], problems: Mapping[str, tuple[ServiceReason, str]], clock: float
    ) -> ServiceCondition:
        """Return the condition `Updated`; `lending` are the new pods that are lent a place."""
        new = [each for each in self.waiting if self.old_pods(each.spec.pod.uid)]
        called = set(lending)
        for each in new:
            uid, name = each.spec.pod.uid, each.spec.pod.name
            if uid in problems:
                return ServiceCondition(UPDATED, problems[uid][0], f"new pod {name}: {problems[uid][1]}")
            if uid in called:
                return ServiceCondition(UPDATED, ServiceReason.LENDING, f"for new pod {name}")
        if new:
            return ServiceCondition(
                UPDATED, ServiceReason.UPDATING, f"pod {new[0].spec.pod.name} is being scheduled"
            )
        starting = [
            each
            for each in self.watched
            if each.version == self._version and not each.ready and self._has_former(each.version)
        ]
        for each in starting:
            name = each.object.metadata.name
            if clock - each.created > self.spec.deadline_s:
                message = f"pod {name} was not Ready within {self.spec.deadline_s} s"
                return ServiceCondition(UPDATED, ServiceReason.START_FAILED, message)
        if starting:
            message = f"pod {starting[0].object.metadata.name} {_ready_in(self.start_s, self.starts)}"
            return ServiceCondition(UPDATED, ServiceReason.UPDATING, message)
        return ServiceCondition(UPDATED, ServiceReason.UP_TO_DATE)

    def _has_former(self, version: str) -> bool:
        return any(each.version != version and not each.leaving for each in self.watched)

    def in_time(self, uid: str, clock: float) -> bool:
        """Whether a new pod is younger than the deadline of updates."""
        return any(each.uid == uid and clock - each.created <= self.spec.deadline_s for each in self.watched)

    def status(self, granted: int, before: GpuServiceStatus) -> GpuServiceStatus:
        """Return the status without conditions."""
        sample, seconds = self.window.average(), self.window.learned.seconds
        return GpuServiceStatus(
            self.share,
            granted,
            0 if self.scale is None else self.scale.replicas,
            len(self.ready),
            None if sample is None else round(sample.rate, 2),
            None if sample is None or not self.spec.source.running else round(sample.running, 2),
            None if sample is None or not self.spec.source.waiting else round(sample.waiting, 2),
            None if self.needs.now is None else round(self.needs.now),
            None if seconds is None else round(seconds, 6),
            None if self.start_s is None else round(self.start_s, 1),
            self.starts,
            before.decisions,
        )


def fewest(pods: Sequence[ServicePod], free: Mapping[tuple[str, str], int], count: int) -> list[str]:
    """Return the pods that go first when so many are too many: those whose GPUs have the least room."""
    room = {each.uid: each.present + min(free.get(gpu, 0) for gpu in each.gpus) for each in pods}
    return sorted(room, key=lambda uid: (room[uid], uid))[:count]


def _ready_in(start_s: float | None, starts: int) -> str:
    if start_s is None:
        return "starts"
    return f"is ready in about {start_s:.0f} s ({starts} {'start' if starts == 1 else 'starts'})"
