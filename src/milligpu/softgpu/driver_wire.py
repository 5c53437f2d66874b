"""The protocol between the driver library and the daemon: mirrors `native/softgpu/wire.h`."""

import struct
from enum import IntEnum

from milligpu.softgpu.account import SoftGpuMemory

VERSION = 2
REQUEST = struct.Struct("<II")
REPLY = struct.Struct("<II")
AMOUNT = struct.Struct("<Q")
MEMORY = struct.Struct("<QQ")
HELLO = struct.Struct("<I")
SLOT = struct.Struct("<I")
CHECKPOINT = struct.Struct("<iI")
XID = struct.Struct("<I")
DEVICE = struct.Struct("<64s16sQ12I")
assert DEVICE.size == 136  # mirrored by a static assertion in wire.h

# The largest PTX module we read: about a hundred times what compilers make of one source file.
LARGEST_BODY = 256 << 20


class DriverMessage(IntEnum):
    """The kind of a request."""

    HELLO = 1
    RESERVE = 2
    RELEASE = 3
    MEMORY = 4
    CONTEXT_OPEN = 5
    CONTEXT_CLOSE = 6
    COMPILE = 7
    XID = 8
    CHECKPOINT_CLIENT = 9
    CHECKPOINT_REQUEST = 10


class DriverStatus(IntEnum):
    """The status of a reply, in the driver API's own error codes."""

    SUCCESS = 0
    INVALID_VALUE = 1
    OUT_OF_MEMORY = 2
    INVALID_IMAGE = 200
    NO_BINARY_FOR_GPU = 209
    ECC_UNCORRECTABLE = 214
    NOT_PERMITTED = 800
    SYSTEM_DRIVER_MISMATCH = 803
    UNKNOWN = 999
    INVALID_PTX = 218
    UNSUPPORTED_PTX_VERSION = 222


def device(account: SoftGpuMemory) -> bytes:
    """Encode a GPU's fixed properties, as the reply to HELLO."""
    model = account.model
    return DEVICE.pack(
        model.name.encode(),
        account.uuid.bytes,
        account.memory,
        *model.capability,
        model.multiprocessors,
        model.threads_per_multiprocessor,
        model.clock_khz,
        model.memory_clock_khz,
        model.bus_width,
        model.l2_bytes,
        model.shared_per_block,
        model.shared_per_block_optin,
        model.shared_per_multiprocessor,
        account.index + 1,
    )
