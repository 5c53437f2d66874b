"""A tenant on a software GPU, made by hand: what the agent will do, as small as it can be."""

import fcntl
import os
import struct
import subprocess
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from milligpu.model.qos import Policy
from milligpu.model.units import Milli
from milligpu.native import library
from milligpu.softgpu.models import find_model
from milligpu.softgpu.start import Fleet, client_environment, read_state, start_daemon, stop_daemon
from milligpu.wire.limits import FRAME_US, GpuLimits, LimitsPage, encode_limits
from milligpu.wire.usage import USAGE_SLOTS_OFFSET, Account, UsagePage, decode_usage, encode_usage

MIB = 1 << 20
MODEL = "T4"
CONTEXT = find_model(MODEL).context_memory
CAP = CONTEXT + 256 * MIB
# struct flock of Linux: type, whence, start, length, pid.
_FLOCK = struct.Struct("hhqqi4x")
_SLOT = 144


@dataclass(frozen=True, slots=True)
class Cards:
    """Software GPUs that tenants share."""

    folder: Path
    cache: Path

    @property
    def uuids(self) -> list[str]:
        return [card["uuid"] for card in read_state(self.folder)]

    def used(self, index: int = 0) -> int:
        """What the card itself says is in use, by all tenants."""
        return read_state(self.folder)[index]["used"]


@contextmanager
def cards(folder: Path, devices: int = 1, memory: int = 2 << 30) -> Generator[Cards]:
    """Start cards and end them."""
    found = Cards(folder / "cards", folder / "cache")
    start_daemon(found.folder, found.cache, Fleet(devices, MODEL, memory), watch=os.getpid())
    try:
        yield found
    finally:
        stop_daemon(found.folder)


@dataclass(frozen=True, slots=True)
class Tenant:
    """A session folder: the libraries, and the tenant folder beside them."""

    folder: Path
    cards: Cards
    uuids: Sequence[str] = ()
    processes: list[subprocess.Popen[str]] = field(default_factory=list[subprocess.Popen[str]])

    @property
    def page(self) -> Path:
        return self.folder / "tenant/limits"

    @property
    def usage(self) -> Path:
        return self.folder / "tenant/usage"

    def set_limits(self, cap: int, slot_us: int = FRAME_US) -> None:
        """Change the page in place, as the agent does."""
        with self.page.open("r+b") as file:
            file.write(limits(self.uuids, cap, slot_us))

    def environment(self) -> dict[str, str]:
        env = client_environment(self.cards.folder, os.environ)
        env["LD_LIBRARY_PATH"] = f"{self.folder}:{env['LD_LIBRARY_PATH']}"
        return {**os.environ, **env}

    def start(self, *command: str | Path, **env: str) -> subprocess.Popen[str]:
        """Run a program as this tenant."""
        environment = {**self.environment(), **env}
        pipe = subprocess.PIPE
        started = subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
        self.processes.append(started)
        return started

    def close(self) -> None:
        """End what a test left running."""
        for process in self.processes:
            with process:
                process.kill()

    def run(self, *command: str | Path, **env: str) -> subprocess.CompletedProcess[str]:
        with self.start(*command, **env) as process:
            out, err = process.communicate(timeout=200)
        return subprocess.CompletedProcess(command, process.returncode, out, err)

    def python(self, code: str, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
        return self.run(sys.executable, "-c", code, *arguments, **env)

    def account(self, gpu: int = 0) -> Account:
        return decode_usage(self.usage.read_bytes()).accounts[gpu]

    def held(self, gpu: int = 0) -> int:
        """What living processes hold: a slot counts while its process has it locked."""
        with self.usage.open("r+b") as file:
            data = file.read()
            slots = range(USAGE_SLOTS_OFFSET, len(data), _SLOT)
            return sum(
                int.from_bytes(data[at + 16 + 8 * gpu : at + 24 + 8 * gpu], "little")
                for at in slots
                if data[at + 4] and _is_locked(file.fileno(), at)
            )


def _is_locked(file: int, at: int) -> bool:
    question = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, at, 1, 0)
    return _FLOCK.unpack(fcntl.fcntl(file, fcntl.F_GETLK, question))[0] != fcntl.F_UNLCK


def limits(uuids: Sequence[str], cap: int, slot_us: int = FRAME_US) -> bytes:
    # Without an arbiter a tenant runs in its slot of the frame: here, all of it.
    gpus = tuple(
        GpuLimits(uuid, Milli(500), Milli(500), cap, Policy.FIXED, slot_length_us=slot_us, context_bytes=CONTEXT)
        for uuid in uuids
    )
    return encode_limits(LimitsPage(gpus))


def tenant(folder: Path, on: Cards, cap: int = CAP, uuids: Sequence[str] | None = None) -> Tenant:
    """Make the session folder of a tenant."""
    made = Tenant(folder, on, on.uuids if uuids is None else uuids)
    (folder / "tenant/real").mkdir(parents=True)
    for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
        (folder / name).symlink_to(library(f"enforce/{name}"))
        (folder / "tenant/real" / name).symlink_to(library(f"softgpu/{name}"))
    made.page.write_bytes(limits(made.uuids, cap))
    made.usage.write_bytes(encode_usage(UsagePage(tuple(Account() for _ in made.uuids))))
    return made
