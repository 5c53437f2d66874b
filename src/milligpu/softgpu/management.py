"""A GPU as NVML shows it: answers the management library and sends it events."""

import asyncio
import contextlib
import ctypes
import socket
import time
from collections.abc import Iterable

from milligpu.softgpu import frames, nvml_wire
from milligpu.softgpu.account import SoftGpuMemory
from milligpu.softgpu.activity import Activity
from milligpu.softgpu.driver_wire import DriverStatus
from milligpu.softgpu.faults import EVENT_CHECK, IDLE, REASONS, Fault, FaultState, InjectedThrottle
from milligpu.softgpu.fleet import SoftGpu
from milligpu.softgpu.meter import SECOND, Context, SensorModel, Work
from milligpu.softgpu.nvml_wire import NvmlMessage, NvmlSetting, NvmlStatus

_ARCHITECTURES = {"kepler": 2, "pascal": 4, "volta": 5, "turing": 6, "ampere": 7, "hopper": 9}
_BRAND_TESLA, _BRAND_NVIDIA = 2, 14
_VENDOR = 0x10DE
# Clocks of an idle GPU, for all models: the exact values do not matter, only that they are low.
_REST_GRAPHICS, _REST_MEMORY, _REST_VIDEO = 210, 405, 540
# Reduced clocks, in percent.
_HELD = {InjectedThrottle.POWER: 70, InjectedThrottle.THERMAL: 50, InjectedThrottle.POWER_BRAKE: 50}
_AT_WORK, _AT_REST = 0, 8
# Sampling more often than this shows nothing new.
_FRESH = SECOND // 50
_MICRO = 1000


class Management:
    """Serves the NVML side of one GPU."""

    def __init__(self, gpu: SoftGpu, account: SoftGpuMemory, activity: Activity) -> None:
        self.gpu = gpu
        self.account = account
        self.activity = activity
        self.faults = FaultState()
        self.sensors = SensorModel(gpu.model, time.monotonic_ns())
        self._epoch = time.time_ns() - time.monotonic_ns()
        self._persistence = False
        self._slowed = dict.fromkeys(InjectedThrottle, 0)
        self._listeners: dict[socket.socket, int] = {}

    @property
    def uuid(self) -> str:
        """The UUID in NVIDIA's format."""
        return f"GPU-{self.account.uuid}"

    @property
    def in_use(self) -> bool:
        """Whether any context is open."""
        return any(client.contexts for client in self.account.clients)

    def sample(self) -> None:
        """Read the counters of all contexts."""
        now = time.monotonic_ns()
        elapsed = now - self.sensors.now
        if elapsed < _FRESH:
            return
        held = self._throttle()
        if held is not None:
            self._slowed[held] += elapsed
        work: dict[Context, Work] = {}
        for client in self.account.clients:
            for slot in client.slots:
                usage = self.activity.read(slot)
                work[Context(slot, client.pid)] = Work(usage.busy, usage.copy_busy, usage.bytes_in, usage.bytes_out)
        self.sensors.sample(now, work, self._memory())

    def inject(self, fault: Fault) -> None:
        """Inject a fault: end the contexts that it breaks and send the events that it raises."""
        if fault.lost or fault.ecc:
            self.activity.fail(DriverStatus.UNKNOWN if fault.lost else DriverStatus.ECC_UNCORRECTABLE)
        for kind, data in self.faults.apply(fault):
            for connection, wanted in self._listeners.items():
                if kind == EVENT_CHECK or kind & wanted:
                    # A client that does not read its events loses those that do not fit.
                    with contextlib.suppress(OSError):
                        connection.send(bytes(nvml_wire.WireEvent(kind, data)))

    async def serve(self, connection: socket.socket, kind: int, body: bytes, *, root: bool) -> None:
        """Answer a management library until it disconnects, with EOFError or ConnectionError."""
        try:
            while True:
                status, answer = self._decide(kind, body, root=root)
                await frames.reply(connection, status, answer)
                if kind == NvmlMessage.EVENTS and status is NvmlStatus.SUCCESS:
                    self._listeners[connection] = int.from_bytes(body, "little")
                kind, body = await frames.receive_request(connection)
        finally:
            self._listeners.pop(connection, None)

    def _decide(self, kind: int, body: bytes, *, root: bool) -> tuple[NvmlStatus, bytes]:
        if kind == NvmlMessage.FACTS:
            return NvmlStatus.SUCCESS, bytes(self._facts())
        if self.faults.lost:
            return NvmlStatus.GPU_IS_LOST, b""
        self.sample()
        match kind:
            case NvmlMessage.READING:
                return NvmlStatus.SUCCESS, bytes(self._reading())
            case NvmlMessage.PROCESSES:
                return NvmlStatus.SUCCESS, _joined(
                    nvml_wire.WireProcess(pid, 0, size) for pid, size in self._memory().items()
                )
            case NvmlMessage.SAMPLES if len(body) == 8:
                return NvmlStatus.SUCCESS, _joined(self._samples(int.from_bytes(body, "little")))
            case NvmlMessage.EVENTS if len(body) == 8:
                return NvmlStatus.SUCCESS, b""
            case NvmlMessage.ACCOUNTING:
                return NvmlStatus.SUCCESS, _joined(self._accounting())
            case NvmlMessage.SET if len(body) == ctypes.sizeof(nvml_wire.WireSetting):
                change = nvml_wire.WireSetting.from_buffer_copy(body)
                return (self._set(change.what, change.value) if root else NvmlStatus.NO_PERMISSION), b""
            case _:
                return NvmlStatus.INVALID_ARGUMENT, b""

    def _memory(self) -> dict[int, int]:
        """Memory by PID, for each process that holds any."""
        held: dict[int, int] = {}
        for client in self.account.clients:
            if client.memory:
                held[client.pid] = held.get(client.pid, 0) + client.memory
        return held

    def _throttle(self) -> InjectedThrottle | None:
        """Why clocks are reduced: an injected fault, or the temperature."""
        if self.faults.throttle:
            return self.faults.throttle
        return InjectedThrottle.THERMAL if self._temperature() >= self.gpu.model.heat.slowdown else None

    def _temperature(self) -> int:
        asked = self.faults.temperature
        return round(self.sensors.celsius) if asked is None else asked

    def _facts(self) -> nvml_wire.WireFacts:
        gpu, model = self.gpu, self.gpu.model
        number = self.account.uuid.int % 10**12
        facts = nvml_wire.WireFacts(
            name=model.name.encode(),
            uuid=self.uuid.encode(),
            serial=f"1{number:012d}".encode(),
            vbios=b"90.00.00.00.01",
            part=f"900-{model.pci_device:05d}-0000-000".encode(),
            memory=gpu.memory,
            bar1=1 << (gpu.memory - 1).bit_length(),
            index=gpu.index,
            major=model.capability[0],
            minor=model.capability[1],
            architecture=_ARCHITECTURES[model.architecture],
            brand=_BRAND_TESLA if model.name.startswith("Tesla") else _BRAND_NVIDIA,
            multiprocessors=model.multiprocessors,
            cores=model.cores,
            bus_width=model.bus_width,
            pci_bus=gpu.pci_bus,
            pci_device=model.pci_device << 16 | _VENDOR,
            pci_subsystem=model.pci_device << 16 | _VENDOR,
            pcie_generation=model.pcie_generation,
            pcie_width=model.pcie_width,
            numa=gpu.numa,
            bridge=gpu.bridge,
            board=gpu.board,
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
        for at, end in enumerate(gpu.links):
            facts.links[at] = nvml_wire.SWITCH if end is None else end + 1
        return facts

    def _reading(self) -> nvml_wire.WireReading:
        load, held, model = self.sensors.load(), self._throttle(), self.gpu.model
        working, part = load.busy > 0 or load.copying > 0, _HELD[held] if held else 100
        pcie, links = self._traffic()
        return nvml_wire.WireReading(
            microseconds=self._microseconds(self.sensors.now),
            used=self.account.used,
            energy=int(self.sensors.millijoules),
            reasons=(REASONS[held] if held else 0) | (0 if working else IDLE),
            ecc_volatile=(ctypes.c_uint64 * 2)(*self.faults.ecc_volatile),
            ecc_aggregate=(ctypes.c_uint64 * 2)(*self.faults.ecc_aggregate),
            slowed_power=self._slowed[InjectedThrottle.POWER],
            slowed_thermal=self._slowed[InjectedThrottle.THERMAL],
            slowed_brake=self._slowed[InjectedThrottle.POWER_BRAKE],
            pcie_total=(ctypes.c_uint64 * 2)(*pcie),
            link_total=(ctypes.c_uint64 * 2)(*links),
            utilization=_percent(load.busy),
            memory_utilization=_percent(load.copying),
            temperature=self._temperature(),
            power=self.sensors.power(load.busy),
            power_limit=self.sensors.power_limit,
            clock_graphics=model.clock_khz // 1000 * part // 100 if working else _REST_GRAPHICS,
            clock_memory=model.memory_clock_khz // 1000 if working else _REST_MEMORY,
            clock_video=model.clock_khz // 1100 * part // 100 if working else _REST_VIDEO,
            performance_state=_AT_WORK if working else _AT_REST,
            pcie_sent=int(load.sent) // 1000,
            pcie_received=int(load.received) // 1000,
            persistence=self._persistence,
            accounting=self.sensors.accounting,
            recovery=self.faults.reset_needed,
            replays=self.faults.replays,
            encoder=self.faults.encoder,
            decoder=self.faults.decoder,
        )

    def _traffic(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """Bytes sent and received over PCIe and over NVLink: a GPU that has links uses them for all peer copies."""
        received, sent = self.activity.peer_bytes()
        pcie = (self.sensors.sent, self.sensors.received)
        return (pcie, (sent, received)) if self.gpu.links else ((pcie[0] + sent, pcie[1] + received), (0, 0))

    def _samples(self, newer: int) -> list[nvml_wire.WireSample]:
        stamp = self._microseconds(self.sensors.now)
        loads = self.sensors.loads(newer * _MICRO - self._epoch)
        return [
            nvml_wire.WireSample(stamp, pid, _percent(load.busy), _percent(load.copying), 0)
            for pid, load in loads.items()
        ]

    def _accounting(self) -> list[nvml_wire.WireAccounting]:
        accounted: list[nvml_wire.WireAccounting] = []
        for pid, process in self.sensors.accounted.items():
            lived = max(1, (process.end or self.sensors.now) - process.start)
            accounted.append(
                nvml_wire.WireAccounting(
                    most_memory=process.most_memory,
                    milliseconds=0 if process.end is None else lived // (SECOND // 1000),
                    start=self._microseconds(process.start),
                    pid=pid,
                    utilization=_percent(min(1.0, process.work.busy / lived)),
                    memory_utilization=_percent(min(1.0, process.work.copying / lived)),
                    running=process.end is None,
                )
            )
        return accounted

    def _set(self, what: int, value: int) -> NvmlStatus:
        power = self.gpu.model.power
        match what:
            case NvmlSetting.PERSISTENCE:
                self._persistence = bool(value)
            case NvmlSetting.ACCOUNTING_MODE:
                self.sensors.accounting = bool(value)
            case NvmlSetting.CLEAR_ACCOUNTS:
                self.sensors.accounted.clear()
            case NvmlSetting.CLEAR_ECC:
                (self.faults.ecc_aggregate if value else self.faults.ecc_volatile)[:] = [0, 0]
            case NvmlSetting.POWER_LIMIT if power.least <= value <= power.most:
                self.sensors.power_limit = value
            case _:
                return NvmlStatus.INVALID_ARGUMENT
        return NvmlStatus.SUCCESS

    def _microseconds(self, monotonic: int) -> int:
        return (monotonic + self._epoch) // _MICRO


def _percent(part: float) -> int:
    return round(100 * part)


def _joined(structures: Iterable[ctypes.LittleEndianStructure]) -> bytes:
    return b"".join(map(bytes, structures))


async def sample_all(gpus: list[Management]) -> None:
    """Sample the GPUs in use ten times a second; an idle GPU is sampled when a client asks."""
    while True:
        used = [gpu for gpu in gpus if gpu.in_use]
        for gpu in used:
            gpu.sample()
        await asyncio.sleep(0.1 if used else 1.0)
