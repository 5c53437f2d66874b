"""A tenant's folder: the pages between the agent and the tenant's processes, and the driver that they wrap.

    limits      what the tenant may use; it can read this and not write it
    usage       its own account
    arbiter     the socket on which it asks for the lease
    real/       the driver's own libraries

Whoever finds no folder, or half of one, has no GPU; so a folder is made under another name and renamed.
"""

import ctypes
import mmap
import os
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from milligpu.agent.slots import Slot
from milligpu.model.errors import BadFormat, MilligpuError
from milligpu.model.grant import GpuShare, Grant
from milligpu.native import library
from milligpu.wire.limits import LIMITS_SIZE, GpuLimits, LimitsPage, decode_limits, encode_limits
from milligpu.wire.usage import USAGE_SIZE, Account, UsagePage, decode_usage, encode_usage

LIMITS, USAGE, ARBITER, REAL = "limits", "usage", "arbiter", "real"
CUDA, NVML = "libcuda.so.1", "libnvidia-ml.so.1"


@dataclass(frozen=True, slots=True)
class Drivers:
    """Where the driver's own libraries are."""

    cuda: Path
    nvml: Path


def limits_page(
    grant: Grant, shares: tuple[GpuShare, ...], slots: Mapping[str, Slot], contexts: Mapping[str, int]
) -> LimitsPage:
    """What a tenant may use, in its page's terms; by GPU its slots, and what a context takes."""
    return LimitsPage(
        tuple(
            GpuLimits(
                share.gpu,
                share.milli,
                share.limit,
                share.mib << 20,
                grant.policy,
                slots[share.gpu].start_us,
                slots[share.gpu].length_us,
                context_bytes=contexts[share.gpu],
            )
            for share in shares
        ),
        grant.priority,
        grant.generation,
    )


class Tenant:
    """One tenant's folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def make(cls, folder: Path, page: LimitsPage, drivers: Drivers, uid: int) -> "Tenant":
        """Write a new folder, of which the tenant's user may write only the usage page."""
        folder.mkdir(mode=0o755)
        _write(folder / LIMITS, encode_limits(page), 0o644)
        _write(folder / USAGE, encode_usage(UsagePage((Account(),) * len(page.gpus))), 0o600)
        if uid != os.geteuid():
            os.chown(folder / USAGE, uid, -1)
        real = folder / REAL
        real.mkdir(mode=0o755)
        for name, driver in ((CUDA, drivers.cuda), (NVML, drivers.nvml)):
            (real / name).symlink_to(driver)
        return cls(folder)

    def give_socket(self, uid: int) -> None:
        """Only the tenant's user speaks for the tenant: who connects to the arbiter's socket is believed."""
        (self.folder / ARBITER).chmod(0o600)
        if uid != os.geteuid():
            os.chown(self.folder / ARBITER, uid, -1)

    def change(self, page: LimitsPage) -> None:
        """Replace the configuration in place; running processes see the old one or the new one, never a mixture."""
        next_page = encode_limits(page)
        with (self.folder / LIMITS).open("r+b") as file, closing(mmap.mmap(file.fileno(), LIMITS_SIZE)) as shared:
            present = (ctypes.c_char * LIMITS_SIZE).from_buffer(shared)
            refused = _pages().mg_limits_write(ctypes.byref(present), next_page)
            del present  # else the mapping could not be closed
        if refused:
            raise MilligpuError(f"{self.folder / LIMITS}: the page was refused")

    def limits(self) -> LimitsPage:
        """What the page says now."""
        return decode_limits((self.folder / LIMITS).read_bytes())

    def usage(self) -> UsagePage | None:
        """The tenant's own account, or None when the tenant spoilt it; only the tenant is the worse for that."""
        try:
            with (self.folder / USAGE).open("rb") as file:
                return decode_usage(file.read(USAGE_SIZE + 1))
        except (OSError, BadFormat):
            return None


def _write(path: Path, data: bytes, mode: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as file:
        os.fchmod(descriptor, mode)  # whatever the umask is
        file.write(data)


@cache
def _pages() -> ctypes.CDLL:
    return ctypes.CDLL(str(library("libmilligpu-pages.so")))
