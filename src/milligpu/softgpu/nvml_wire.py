"""The protocol between the management library and the daemon: mirrors `native/softnvml/watch.h`."""

import ctypes
from enum import IntEnum

LINKS, SWITCH = 18, 0xFFFF

_U32, _U64 = ctypes.c_uint32, ctypes.c_uint64


class NvmlMessage(IntEnum):
    """The kind of a request."""

    FACTS = 64
    READING = 65
    PROCESSES = 66
    SAMPLES = 67
    EVENTS = 68
    SET = 69
    ACCOUNTING = 70


class NvmlStatus(IntEnum):
    """The status of a reply, in NVML's own codes."""

    SUCCESS = 0
    INVALID_ARGUMENT = 2
    NOT_SUPPORTED = 3
    NO_PERMISSION = 4
    GPU_IS_LOST = 15


class NvmlSetting(IntEnum):
    """A property that NVML can set."""

    PERSISTENCE = 1
    POWER_LIMIT = 2
    ACCOUNTING_MODE = 3
    CLEAR_ACCOUNTS = 4
    CLEAR_ECC = 5


class WireFacts(ctypes.LittleEndianStructure):
    """Properties of a GPU that never change."""

    _fields_ = (
        [("name", ctypes.c_char * 96), ("uuid", ctypes.c_char * 48)]
        + [(name, ctypes.c_char * 32) for name in ("serial", "vbios", "part")]
        + [("memory", _U64), ("bar1", _U64)]
        + [(name, _U32) for name in ("index", "major", "minor", "architecture", "brand", "multiprocessors")]
        + [(name, _U32) for name in ("cores", "bus_width", "pci_bus", "pci_device", "pci_subsystem")]
        + [(name, _U32) for name in ("pcie_generation", "pcie_width", "numa", "bridge", "board", "ecc", "mig")]
        + [(name, _U32) for name in ("clock_graphics", "clock_memory", "clock_video", "power_default")]
        + [(name, _U32) for name in ("power_least", "power_most", "slowdown", "shutdown", "link_version")]
        + [("links", _U32 * LINKS)]
    )


class WireReading(ctypes.LittleEndianStructure):
    """The current state of a GPU."""

    _fields_ = (
        [(name, _U64) for name in ("microseconds", "used", "energy", "reasons")]
        + [("ecc_volatile", _U64 * 2), ("ecc_aggregate", _U64 * 2)]
        + [(name, _U64) for name in ("slowed_power", "slowed_thermal", "slowed_brake")]
        + [("pcie_total", _U64 * 2), ("link_total", _U64 * 2)]
        + [(name, _U32) for name in ("utilization", "memory_utilization", "temperature", "power", "power_limit")]
        + [(name, _U32) for name in ("clock_graphics", "clock_memory", "clock_video", "performance_state")]
        + [(name, _U32) for name in ("pcie_sent", "pcie_received", "persistence", "accounting", "recovery")]
        + [(name, _U32) for name in ("replays", "encoder", "decoder", "reserved")]
    )


class WireProcess(ctypes.LittleEndianStructure):
    """A process that holds memory of the GPU."""

    _fields_ = [("pid", _U32), ("reserved", _U32), ("memory", _U64)]


class WireSample(ctypes.LittleEndianStructure):
    """A process's utilization of the GPU."""

    _fields_ = [
        ("microseconds", _U64),
        ("pid", _U32),
        ("utilization", _U32),
        ("memory_utilization", _U32),
        ("reserved", _U32),
    ]


class WireEvent(ctypes.LittleEndianStructure):
    """An event. Type 0 is not NVML's: it makes the library check whether the GPU is lost."""

    _fields_ = [("type", _U64), ("data", _U64)]


class WireSetting(ctypes.LittleEndianStructure):
    _fields_ = [("what", _U32), ("value", _U32)]


class WireAccounting(ctypes.LittleEndianStructure):
    """What a process has used over its lifetime."""

    _fields_ = [(name, _U64) for name in ("most_memory", "milliseconds", "start")] + [
        (name, _U32) for name in ("pid", "utilization", "memory_utilization", "running")
    ]


assert (ctypes.sizeof(WireFacts), ctypes.sizeof(WireReading)) == (
    440,
    192,
)  # mirrored by static assertions in watch.h
