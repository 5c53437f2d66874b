"""What the management library and the daemon say to each other: mirrors `native/softnvml/watch.h`."""

import ctypes
from enum import IntEnum

LINKS, SWITCH = 18, 0xFFFF

_U32, _U64 = ctypes.c_uint32, ctypes.c_uint64


class Kind(IntEnum):
    """What is asked."""

    FACTS = 64
    READING = 65
    PROCESSES = 66
    SAMPLES = 67
    EVENTS = 68
    SET = 69
    ACCOUNTING = 70


class Answer(IntEnum):
    """NVML's own codes."""

    SUCCESS = 0
    INVALID_ARGUMENT = 2
    NOT_SUPPORTED = 3
    NO_PERMISSION = 4
    GPU_IS_LOST = 15


class Setting(IntEnum):
    """What can be set."""

    PERSISTENCE = 1
    POWER_LIMIT = 2
    ACCOUNTING_MODE = 3
    CLEAR_ACCOUNTS = 4
    CLEAR_ECC = 5


class Facts(ctypes.LittleEndianStructure):
    """What never changes."""

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


class Reading(ctypes.LittleEndianStructure):
    """How a card stands now."""

    _fields_ = (
        [(name, _U64) for name in ("microseconds", "used", "energy", "reasons")]
        + [("ecc_volatile", _U64 * 2), ("ecc_aggregate", _U64 * 2)]
        + [(name, _U64) for name in ("slowed_power", "slowed_thermal")]
        + [(name, _U32) for name in ("utilisation", "memory_utilisation", "temperature", "power", "power_limit")]
        + [(name, _U32) for name in ("clock_graphics", "clock_memory", "clock_video", "performance_state")]
        + [(name, _U32) for name in ("pcie_sent", "pcie_received", "persistence", "accounting", "recovery")]
    )


class Process(ctypes.LittleEndianStructure):
    """A process with a context on the card."""

    _fields_ = [("pid", _U32), ("reserved", _U32), ("memory", _U64)]


class Sample(ctypes.LittleEndianStructure):
    """A process's part of the card's time."""

    _fields_ = [
        ("microseconds", _U64),
        ("pid", _U32),
        ("utilisation", _U32),
        ("memory_utilisation", _U32),
        ("reserved", _U32),
    ]


class Event(ctypes.LittleEndianStructure):
    """Something happened; type 0 says: look whether the card is lost."""

    _fields_ = [("type", _U64), ("data", _U64)]


class Change(ctypes.LittleEndianStructure):
    """A setting and its new value."""

    _fields_ = [("what", _U32), ("value", _U32)]


class Accounted(ctypes.LittleEndianStructure):
    """What a process used in all its life."""

    _fields_ = [(name, _U64) for name in ("most_memory", "milliseconds", "start")] + [
        (name, _U32) for name in ("pid", "utilisation", "memory_utilisation", "running")
    ]


assert (ctypes.sizeof(Facts), ctypes.sizeof(Reading)) == (440, 136)  # and so does watch.h
