"""A tenant's directory: the pages that it shares with the agent, and the driver behind the limits library.

    limits      what the tenant may use; the tenant can only read it
    usage       what the tenant says it uses
    arbiter     the socket on which it asks for the lease
    real/       links to the driver's own libraries

A process that finds the directory missing or incomplete gets no GPU.
"""

import ctypes
import mmap
import os
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from milligpu.model.errors import BadFormat, MilligpuError
from milligpu.model.gpu import Gpu
from milligpu.model.grant import GpuShare, Grant
from milligpu.model.overheads import GpuOverheads
from milligpu.native import library
from milligpu.tenancy.time_slots import TimeSlot
from milligpu.wire.limits import LIMITS_SIZE, LimitsPage, decode_limits, encode_limits, gpu_limits
from milligpu.wire.usage import USAGE_SIZE, MemoryAccount, UsagePage, decode_usage, encode_usage

LIMITS, USAGE, ARBITER, REAL = "limits", "usage", "arbiter", "real"
CUDA, NVML = "libcuda.so.1", "libnvidia-ml.so.1"


@dataclass(frozen=True, slots=True)
class DriverLibraries:
    """Paths of the driver's own libraries."""

    cuda: Path
    nvml: Path


def limits_page(
    grant: Grant,
    shares: Sequence[GpuShare],
    gpus: Mapping[str, Gpu],
    slots: Mapping[str, TimeSlot],
    overheads: Mapping[str, GpuOverheads],
) -> LimitsPage:
    """Make a tenant's page from its shares. The share policy is that of each GPU, for all tenants alike."""
    return LimitsPage(
        tuple(
            gpu_limits(
                share,
                gpus[share.gpu],
                slot_start_us=slots[share.gpu].start_us,
                slot_length_us=slots[share.gpu].length_us,
                overheads=overheads[share.gpu],
            )
            for share in shares
        ),
        grant.priority,
        grant.generation,
    )


class TenantFolder:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def make(cls, folder: Path, page: LimitsPage, drivers: DriverLibraries, uid: int) -> "TenantFolder":
        """Make a new directory in which user `uid` may write only the usage page."""
        folder.mkdir(mode=0o755)
        _write(folder / LIMITS, encode_limits(page), 0o644)
        _write(folder / USAGE, encode_usage(UsagePage((MemoryAccount(),) * len(page.gpus))), 0o600)
        if uid != os.geteuid():
            os.chown(folder / USAGE, uid, -1)
        real = folder / REAL
        real.mkdir(mode=0o755)
        for name, driver in ((CUDA, drivers.cuda), (NVML, drivers.nvml)):
            (real / name).symlink_to(driver)
        return cls(folder)

    def give_socket(self, uid: int) -> None:
        """Let only the tenant's user connect: the arbiter trusts every process that can."""
        (self.folder / ARBITER).chmod(0o600)
        if uid != os.geteuid():
            os.chown(self.folder / ARBITER, uid, -1)

    def change(self, page: LimitsPage) -> None:
        """Replace the limits in place; running processes see the old ones or the new ones, never a mixture."""
        next_page = encode_limits(page)
        with (self.folder / LIMITS).open("r+b") as file, closing(mmap.mmap(file.fileno(), LIMITS_SIZE)) as shared:
            present = (ctypes.c_char * LIMITS_SIZE).from_buffer(shared)
            refused = _pages().mg_limits_write(ctypes.byref(present), next_page)
            del present  # a mapping with exported buffers cannot be closed
        if refused:
            raise MilligpuError(f"{self.folder / LIMITS}: could not write the limits page")

    def limits(self) -> LimitsPage:
        return decode_limits((self.folder / LIMITS).read_bytes())

    def usage(self) -> UsagePage | None:
        """Read the usage page; None when it is missing or corrupt, which harms only the tenant itself."""
        try:
            with (self.folder / USAGE).open("rb") as file:
                return decode_usage(file.read(USAGE_SIZE + 1))
        except (OSError, BadFormat):
            return None


def _write(path: Path, data: bytes, mode: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as file:
        os.fchmod(descriptor, mode)  # independent of the umask
        file.write(data)


@cache
def _pages() -> ctypes.CDLL:
    return ctypes.CDLL(str(library("libmilligpu-pages.so")))
