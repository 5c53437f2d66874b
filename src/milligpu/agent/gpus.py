"""This node's GPUs and their health: checked every second, and at once when the driver reports an error."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import replace
from typing import TypeVar

import structlog

from milligpu.agent.attachment import Attachment
from milligpu.agent.pod_processes import pod_uid_of_process
from milligpu.model.card_rules import CardRule, limit_by, reserved_by, rule_of
from milligpu.model.errors import Unavailable
from milligpu.model.gpu import Gpu, GpuState, SharingMode
from milligpu.model.policy import DEFAULT_POLICY, SharePolicy
from milligpu.model.units import Mib, Milli
from milligpu.nvml.gpus import NvmlGpus
from milligpu.nvml.health_records import HealthRecords
from milligpu.nvml.hotplug import HotPlug
from milligpu.nvml.library import GpuLostError
from milligpu.nvml.readings import GpuReading, GpuVitals, LostGpu, XidEvent
from milligpu.nvml.throttle_times import ThrottleTimes
from milligpu.nvml.xid_events import XidEvents
from milligpu.tenancy.energy import EnergyReading
from milligpu.wait import wait_for_event
from milligpu.wire.gpu_settings import GpuSettings
from milligpu.wire.node_layout import NO_LAYOUT, NodeLayout

_Seen = TypeVar("_Seen")

log = structlog.get_logger()

LOOK_S = 1.0
# If no GPU answered for this long, the driver hangs; a restarted agent may get through to it.
ALIVE_S = 30.0
# How soon a GPU is measured that was unhealthy or full when the agent started.
_MEASURE_S = 30.0
# The thread that waits for XIDs looks up this often, so it pauses sooner.
_PAUSED_S = 5.0
# How often the thread checks whether NVML is open again.
_PAUSE_S = 0.05
# How long the thread waits for an XID before it checks whether it should end.
_EVENT_S = 1.0


class GpuWatch:
    """The GPUs as the inventory shows them, with their state."""

    def __init__(
        self,
        nvml: NvmlGpus,
        changed: Callable[[], None],
        reserved: Callable[[int, Gpu], Milli] = lambda _index, _gpu: Milli(0),
        policy: Callable[[int], SharePolicy] = lambda _index: DEFAULT_POLICY,
        *,
        now: Callable[[], float] = time.monotonic,
        unmeasured: MutableMapping[str, str] | None = None,
        hotplug: HotPlug | None = None,
    ) -> None:
        """`reserved` returns the part of a GPU that is reserved for sessions, `policy` its first share policy.

        `unmeasured` has the GPUs that cannot be shared yet, and why.
        """
        self._reserved = reserved
        self._policy = policy
        self._now = now
        self._unmeasured: MutableMapping[str, str] = {} if unmeasured is None else unmeasured
        self._measures = unmeasured is not None
        self._new = asyncio.Event()
        self._hotplug = hotplug or HotPlug()
        # Nobody may call NVML while it is opened again.
        self._asking = asyncio.Lock()
        self._pause, self._paused = threading.Event(), threading.Event()
        self._answered = now()
        self._nvml = nvml
        self._changed = changed
        self._records = HealthRecords(now)
        self._settings = GpuSettings()
        self._layout = NO_LAYOUT
        self.xids: dict[str, int] = {}
        """Number of XIDs of each GPU since the agent started."""
        self.readings: dict[str, GpuReading] = {}
        """The latest reading of each GPU that answers."""
        self.throttle_times = ThrottleTimes()
        self.energies: dict[str, EnergyReading] = {}
        """The energy counter of each GPU that has one."""
        self._reported: list[XidEvent] = []
        self._wake = asyncio.Event()
        self._bare: dict[str, Gpu] = {}
        self._held_by_sessions: dict[str, Milli] = {}
        self._held_by_pods: dict[str, Milli] = {}
        self._add_new(later=False)
        self.gpus = {uuid: self._assessed(gpu) for uuid, gpu in self._bare.items()}

    def _add_new(self, *, later: bool = True) -> None:
        """Add GPUs that NVML has identified since: one was plugged in, or one that was lost at first is back.

        Then the others have links to it, too.
        """
        for index, gpu in self._nvml.known().items():
            if gpu.uuid in self._bare:
                self._bare[gpu.uuid] = replace(self._bare[gpu.uuid], links=gpu.links)
                continue
            self._bare[gpu.uuid] = replace(gpu, reserved=self._reserved(index, gpu), policy=self._policy(index))
            if later and self._measures and gpu.mode is not SharingMode.MIG:
                self._unmeasured.setdefault(gpu.uuid, "its empty CUDA context is being measured")
                self._new.set()

    @property
    def alive(self) -> bool:
        """Whether the driver answered lately about any GPU."""
        return self._now() - self._answered < ALIVE_S

    async def read(self) -> None:
        """Read everything that is monitored, on request: it takes too long for every second."""
        seen = await self._ask_all(self._nvml.read)
        self.readings = {each.uuid: each for each in seen if isinstance(each, GpuReading)}
        self._note(each.vitals for each in self.readings.values())

    def _note(self, seen: Iterable[GpuVitals]) -> None:
        """Note counters that grow: the time with reduced clocks, and the energy."""
        now = self._now()
        for each in seen:
            self.throttle_times.add(each, now)
            if each.millijoules is not None:
                self.energies[each.uuid] = EnergyReading(now, each.millijoules)

    async def _ask_all(self, ask: Callable[[], Sequence[_Seen | LostGpu]]) -> Sequence[_Seen | LostGpu]:
        """Ask about every GPU; all of them are lost while NVML itself does not answer."""
        async with self._asking:
            try:
                seen = await asyncio.to_thread(ask)
            except Unavailable as error:
                return [LostGpu(index, gpu.uuid, error.message) for index, gpu in self._nvml.known().items()]
        if not all(isinstance(each, LostGpu) and each.silent for each in seen) or not seen:
            self._answered = self._now()
        return seen

    async def memory_by_pod(self, attachments: Iterable[Attachment]) -> dict[tuple[str, str], Mib]:
        """Return what resized pods use, by pod and GPU, as the driver counts it.

        A limit that was lowered below what is in use frees only what is not in use.
        """
        resized = {each.holder.uid: each for each in attachments if each.grant.generation > 1}
        if not resized:
            return {}
        await self.read()
        found: dict[tuple[str, str], Mib] = {}
        for gpu in {gpu for each in resized.values() for gpu in each.grant.gpus} & self.readings.keys():
            for process in self.readings[gpu].processes:
                uid = pod_uid_of_process(process.pid)
                if uid in resized:
                    found[uid, gpu] = Mib(found.get((uid, gpu), 0) + (process.memory or 0))
        return found

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        stop = threading.Event()

        def listen() -> None:
            while not stop.is_set():
                if self._pause.is_set():
                    self._paused.set()
                    stop.wait(_PAUSE_S)
                    continue
                try:
                    self._follow_xids(stop, lambda event: loop.call_soon_threadsafe(self._on_xid, event))
                except Exception as error:
                    log.warning("Could not wait for XIDs, trying again", error=str(error))
                    stop.wait(_EVENT_S)

        thread = threading.Thread(target=listen, name="xid-events", daemon=True)
        thread.start()
        try:
            while True:
                if self._hotplug.due():
                    await self._reopen()
                self._wake.clear()
                reported, self._reported = self._reported, []
                self._on_look(reported, await self._ask_all(self._nvml.vitals))
                await wait_for_event(self._wake, LOOK_S)
        finally:
            stop.set()

    async def _reopen(self) -> None:
        """Let NVML list GPUs that were added, while nobody else calls it."""
        self._paused.clear()
        self._pause.set()
        listed = 0
        try:
            await asyncio.to_thread(self._paused.wait, _PAUSED_S)
            async with self._asking:
                if self._paused.is_set():
                    listed = await asyncio.to_thread(self._nvml.reopen)
                    log.info("Opened NVML again, because a GPU was added", gpus=listed)
        except (Unavailable, GpuLostError) as error:
            log.warning("Could not open NVML again", error=str(error))
        finally:
            self._hotplug.opened(listed)
            self._pause.clear()

    def _follow_xids(self, stop: threading.Event, tell: Callable[[XidEvent], object]) -> None:
        events = XidEvents(self._nvml)
        try:
            while not stop.is_set() and not self._pause.is_set():
                event = events.wait(_EVENT_S)
                if event is not None:
                    tell(event)
        finally:
            events.close()

    async def measure(self, measure: Callable[[Iterable[Gpu]], None]) -> None:
        """Measure again and again what could not be measured yet, until cancelled."""
        while True:
            if self._unmeasured:
                # A measurement on a GPU that hangs would hold up the others.
                healthy = [
                    gpu for gpu in self._bare.values() if self._records.health(gpu.uuid).state is GpuState.OK
                ]
                gpus = [gpu for gpu in healthy if gpu.uuid in self._unmeasured]
                await asyncio.to_thread(measure, gpus)
                self._assess_all()
            await wait_for_event(self._new, _MEASURE_S)
            self._new.clear()

    def apply_settings(self, settings: GpuSettings) -> None:
        """Apply an admin's GPU settings; the past XID of a GPU that was cleared since is forgotten."""
        for uuid, when in settings.cleared.items():
            if self._settings.cleared.get(uuid) != when:
                self._records.clear(uuid)
        self._settings = settings
        self._assess_all()

    def apply_layout(self, layout: NodeLayout) -> None:
        """Apply what the present layout asks of the GPUs; tenants that run follow it."""
        self._layout = layout
        self._assess_all()

    def reserve_for_sessions(self, parts: Mapping[str, Milli], pods: Mapping[str, Milli]) -> None:
        """Reserve what sessions hold, even if an admin now reserves less; never what `pods` still hold."""
        self._held_by_sessions, self._held_by_pods = dict(parts), dict(pods)
        self._assess_all()

    def _on_xid(self, event: XidEvent) -> None:
        self.xids[event.uuid] = self.xids.get(event.uuid, 0) + 1
        self._reported.append(event)
        self._wake.set()

    def _on_look(self, reported: Sequence[XidEvent], seen: Sequence[GpuVitals | LostGpu]) -> None:
        """Assess XIDs together with a later reading, which says whether the driver asks for a reset."""
        self._note(each for each in seen if isinstance(each, GpuVitals))
        listed = {each.uuid for each in seen}
        gone = [LostGpu(-1, uuid, "the driver no longer lists it") for uuid in self._bare if uuid not in listed]
        self._records.note(reported, [*seen, *gone])
        self._add_new()
        self._assess_all()

    def _assess_all(self) -> None:
        gpus = {uuid: self._assessed(gpu) for uuid, gpu in self._bare.items()}
        if gpus != self.gpus:
            for uuid in (uuid for uuid, gpu in gpus.items() if gpu != self.gpus.get(uuid)):
                gpu = gpus[uuid]
                log.warning(
                    "GPU changed", gpu=uuid, state=gpu.state.value, message=gpu.message, policy=gpu.policy.value
                )
            self.gpus = gpus
            self._changed()

    def _assessed(self, gpu: Gpu) -> Gpu:
        # An admin's setting of a single GPU goes before the layout, and the layout before the agent's options.
        rule = rule_of(self._layout.cards, "", gpu)
        gpu = replace(
            gpu,
            reserved=max(self._reserved_now(rule, gpu), self._held_by_sessions.get(gpu.uuid, Milli(0))),
            limit=limit_by(rule, gpu),
            policy=self._settings.policies.get(gpu.uuid, rule.policy or gpu.policy),
        )
        health = self._records.health(gpu.uuid)
        if health.state is GpuState.OK and gpu.uuid in self._settings.cordoned:
            return replace(gpu, state=GpuState.CORDONED, message=self._settings.cordoned[gpu.uuid])
        if health.state is GpuState.OK and gpu.uuid in self._unmeasured:
            return replace(gpu, state=GpuState.UNHEALTHY, message=self._unmeasured[gpu.uuid])
        return replace(gpu, state=health.state, message=health.message)

    def _reserved_now(self, rule: CardRule, gpu: Gpu) -> Milli:
        """The part that the layout reserves; it grows as pods end that hold more than the rest."""
        wanted = reserved_by(rule, gpu)
        free = gpu.milli - self._held_by_pods.get(gpu.uuid, 0)
        return Milli(max(min(wanted, gpu.reserved), min(wanted, free)))
