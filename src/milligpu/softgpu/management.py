"""A card as NVML shows it: what the management library asks is answered here, and events are sent from here."""

import asyncio
import contextlib
import ctypes
import socket
import time
from collections.abc import Iterable

from milligpu.softgpu import frames, watch
from milligpu.softgpu.account import Account
from milligpu.softgpu.activity import Activity
from milligpu.softgpu.faults import EVENT_LOOK, IDLE, REASONS, Condition, Fault, Throttle
from milligpu.softgpu.fleet import Card
from milligpu.softgpu.meter import SECOND, Context, Meter, Work
from milligpu.softgpu.watch import Answer, Kind, Setting
from milligpu.softgpu.wire import Status

_ARCHITECTURES = {"kepler": 2, "pascal": 4, "volta": 5, "turing": 6, "ampere": 7, "hopper": 9}
_BRAND_TESLA, _BRAND_NVIDIA = 2, 14
_VENDOR = 0x10DE
# Clocks at rest, of all models: what they are matters to nobody, that they are low does.
_REST_GRAPHICS, _REST_MEMORY, _REST_VIDEO = 210, 405, 540
# How far clocks fall when something holds them down, in percent.
_HELD = {Throttle.POWER: 70, Throttle.THERMAL: 50, Throttle.POWER_BRAKE: 50}
_AT_WORK, _AT_REST = 0, 8
# Looking more often than this shows nothing new.
_FRESH = SECOND // 50
_MICRO = 1000


class Management:
    """One card's."""

    def __init__(self, card: Card, account: Account, activity: Activity) -> None:
        self.card = card
        self.account = account
        self.activity = activity
        self.condition = Condition()
        self.meter = Meter(card.model, time.monotonic_ns())
        self._epoch = time.time_ns() - time.monotonic_ns()
        self._persistence = False
        self._slowed = {Throttle.POWER: 0, Throttle.THERMAL: 0}
        self._listeners: dict[socket.socket, int] = {}

    @property
    def uuid(self) -> str:
        """As NVIDIA writes it."""
        return f"GPU-{self.account.uuid}"

    @property
    def in_use(self) -> bool:
        """Whether there is anything to sample."""
        return any(client.contexts for client in self.account.clients)

    def sample(self) -> None:
        """Take the counters of everything that runs here."""
        now = time.monotonic_ns()
        elapsed = now - self.meter.now
        if elapsed < _FRESH:
            return
        held = self._throttle()
        if held is not None and held in self._slowed:
            self._slowed[held] += elapsed
        work: dict[Context, Work] = {}
        for client in self.account.clients:
            for slot in client.slots:
                usage = self.activity.read(slot)
                work[Context(slot, client.pid)] = Work(usage.busy, usage.copy_busy, usage.bytes_in, usage.bytes_out)
        self.meter.sample(now, work, self._memory())

    def fault(self, fault: Fault) -> None:
        """Something befalls the card: its contexts may end with it, and everybody who listens hears of it."""
        if fault.lost or fault.ecc:
            self.activity.fail(Status.UNKNOWN if fault.lost else Status.ECC_UNCORRECTABLE)
        for kind, data in self.condition.apply(fault):
            for connection, wanted in self._listeners.items():
                if kind == EVENT_LOOK or kind & wanted:
                    # A listener that does not listen loses what does not fit.
                    with contextlib.suppress(OSError):
                        connection.send(bytes(watch.Event(kind, data)))

    async def serve(self, connection: socket.socket, kind: int, body: bytes, *, root: bool) -> None:
        """Answer a management library until it goes; EOFError or ConnectionError end it."""
        try:
            while True:
                status, answer = self._decide(kind, body, root=root)
                await frames.reply(connection, status, answer)
                if kind == Kind.EVENTS and status is Answer.SUCCESS:
                    self._listeners[connection] = int.from_bytes(body, "little")
                kind, body = await frames.receive_request(connection)
        finally:
            self._listeners.pop(connection, None)

    def _decide(self, kind: int, body: bytes, *, root: bool) -> tuple[Answer, bytes]:
        if kind == Kind.FACTS:
            return Answer.SUCCESS, bytes(self._facts())
        if self.condition.lost:
            return Answer.GPU_IS_LOST, b""
        self.sample()
        match kind:
            case Kind.READING:
                return Answer.SUCCESS, bytes(self._reading())
            case Kind.PROCESSES:
                return Answer.SUCCESS, _joined(watch.Process(pid, 0, size) for pid, size in self._memory().items())
            case Kind.SAMPLES if len(body) == 8:
                return Answer.SUCCESS, _joined(self._samples(int.from_bytes(body, "little")))
            case Kind.EVENTS if len(body) == 8:
                return Answer.SUCCESS, b""
            case Kind.ACCOUNTING:
                return Answer.SUCCESS, _joined(self._lives())
            case Kind.SET if len(body) == ctypes.sizeof(watch.Change):
                change = watch.Change.from_buffer_copy(body)
                return (self._set(change.what, change.value) if root else Answer.NO_PERMISSION), b""
            case _:
                return Answer.INVALID_ARGUMENT, b""

    def _memory(self) -> dict[int, int]:
        """Of each process with a context, or with memory however it came by it."""
        held: dict[int, int] = {}
        for client in self.account.clients:
            if client.memory:
                held[client.pid] = held.get(client.pid, 0) + client.memory
        return held

    def _throttle(self) -> Throttle | None:
        """What holds the clocks down, on request or because the card is too hot."""
        if self.condition.throttle:
            return self.condition.throttle
        return Throttle.THERMAL if self._temperature() >= self.card.model.heat.slowdown else None

    def _temperature(self) -> int:
        asked = self.condition.temperature
        return round(self.meter.celsius) if asked is None else asked

    def _facts(self) -> watch.Facts:
        card, model = self.card, self.card.model
        number = self.account.uuid.int % 10**12
        facts = watch.Facts(
            name=model.name.encode(),
            uuid=self.uuid.encode(),
            serial=f"1{number:012d}".encode(),
            vbios=b"90.00.00.00.01",
            part=f"900-{model.pci_device:05d}-0000-000".encode(),
            memory=card.memory,
            bar1=1 << (card.memory - 1).bit_length(),
            index=card.index,
            major=model.capability[0],
            minor=model.capability[1],
            architecture=_ARCHITECTURES[model.architecture],
            brand=_BRAND_TESLA if model.name.startswith("Tesla") else _BRAND_NVIDIA,
            multiprocessors=model.multiprocessors,
            cores=model.cores,
            bus_width=model.bus_width,
            pci_bus=card.pci_bus,
            pci_device=model.pci_device << 16 | _VENDOR,
            pci_subsystem=model.pci_device << 16 | _VENDOR,
            pcie_generation=model.pcie_generation,
            pcie_width=model.pcie_width,
            numa=card.numa,
            bridge=card.bridge,
            board=card.board,
            ecc=1,
            mig=model.mig,
            clock_graphics=model.clock_khz // 1000,
            clock_memory=model.memory_clock_khz // 1000,
            clock_video=model.clock_khz // 1100,
            power_default=model.power.default,
            power_least=model.power.least,
            power_most=model.power.most,
            slowdown=model.heat.slowdown,
            shutdown=model.heat.shutdown,
            link_version=model.nvlink.version if model.nvlink else 0,
        )
        for at, end in enumerate(card.links):
            facts.links[at] = watch.SWITCH if end is None else end + 1
        return facts

    def _reading(self) -> watch.Reading:
        load, held, model = self.meter.load(), self._throttle(), self.card.model
        working, part = load.busy > 0 or load.copying > 0, _HELD[held] if held else 100
        return watch.Reading(
            microseconds=self._microseconds(self.meter.now),
            used=self.account.used,
            energy=int(self.meter.millijoules),
            reasons=(REASONS[held] if held else 0) | (0 if working else IDLE),
            ecc_volatile=(ctypes.c_uint64 * 2)(*self.condition.ecc_volatile),
            ecc_aggregate=(ctypes.c_uint64 * 2)(*self.condition.ecc_aggregate),
            slowed_power=self._slowed[Throttle.POWER],
            slowed_thermal=self._slowed[Throttle.THERMAL],
            utilisation=_percent(load.busy),
            memory_utilisation=_percent(load.copying),
            temperature=self._temperature(),
            power=self.meter.power(load.busy),
            power_limit=self.meter.power_limit,
            clock_graphics=model.clock_khz // 1000 * part // 100 if working else _REST_GRAPHICS,
            clock_memory=model.memory_clock_khz // 1000 if working else _REST_MEMORY,
            clock_video=model.clock_khz // 1100 * part // 100 if working else _REST_VIDEO,
            performance_state=_AT_WORK if working else _AT_REST,
            pcie_sent=int(load.sent) // 1000,
            pcie_received=int(load.received) // 1000,
            persistence=self._persistence,
            accounting=self.meter.accounting,
            recovery=self.condition.reset_needed,
        )

    def _samples(self, newer: int) -> list[watch.Sample]:
        stamp = self._microseconds(self.meter.now)
        loads = self.meter.loads(newer * _MICRO - self._epoch)
        return [
            watch.Sample(stamp, pid, _percent(load.busy), _percent(load.copying), 0) for pid, load in loads.items()
        ]

    def _lives(self) -> list[watch.Accounted]:
        lives: list[watch.Accounted] = []
        for pid, life in self.meter.lives.items():
            lived = max(1, (life.end or self.meter.now) - life.start)
            lives.append(
                watch.Accounted(
                    most_memory=life.most_memory,
                    milliseconds=0 if life.end is None else lived // (SECOND // 1000),
                    start=self._microseconds(life.start),
                    pid=pid,
                    utilisation=_percent(min(1.0, life.work.busy / lived)),
                    memory_utilisation=_percent(min(1.0, life.work.copying / lived)),
                    running=life.end is None,
                )
            )
        return lives

    def _set(self, what: int, value: int) -> Answer:
        power = self.card.model.power
        match what:
            case Setting.PERSISTENCE:
                self._persistence = bool(value)
            case Setting.ACCOUNTING_MODE:
                self.meter.accounting = bool(value)
            case Setting.CLEAR_ACCOUNTS:
                self.meter.lives.clear()
            case Setting.CLEAR_ECC:
                (self.condition.ecc_aggregate if value else self.condition.ecc_volatile)[:] = [0, 0]
            case Setting.POWER_LIMIT if power.least <= value <= power.most:
                self.meter.power_limit = value
            case _:
                return Answer.INVALID_ARGUMENT
        return Answer.SUCCESS

    def _microseconds(self, monotonic: int) -> int:
        return (monotonic + self._epoch) // _MICRO


def _percent(part: float) -> int:
    return round(100 * part)


def _joined(structures: Iterable[ctypes.LittleEndianStructure]) -> bytes:
    return b"".join(map(bytes, structures))


async def sample_all(cards: list[Management]) -> None:
    """Sample what is in use ten times a second; a card at rest is sampled when somebody looks."""
    while True:
        used = [card for card in cards if card.in_use]
        for card in used:
            card.sample()
        await asyncio.sleep(0.1 if used else 1.0)
