"""A card in modelled time, an arbiter, tenants with shares of the card, and programs of known load in them."""

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from milligpu.agent.arbiter import Arbiter, LeaseAccount
from milligpu.agent.slots import divide
from milligpu.agent.tenant import CUDA, NVML, Drivers, Tenant
from milligpu.bench.shares import Clock, Sample
from milligpu.model.errors import Unavailable
from milligpu.model.qos import Policy
from milligpu.model.units import WHOLE, Milli
from milligpu.native import library
from milligpu.softgpu.models import DEFAULT_MODEL
from milligpu.softgpu.start import Fleet, Places, client_environment, read_state, start_daemon, stop_daemon
from milligpu.wire.limits import GpuLimits, LimitsPage

_CAP = 1 << 30
# The least there is: all that is measured shares it, the arbiter included.
_PRIORITY = 1
# A question to the card that took longer than this was about another moment than we think.
_SLOW_ANSWER_NS = 5_000_000


@dataclass(frozen=True, slots=True)
class Share:
    """What a tenant is promised."""

    milli: int
    limit: int = WHOLE
    priority: int = 0
    policy: Policy = Policy.BEST_EFFORT


@dataclass(frozen=True, slots=True)
class Report:
    """What a program of known load says it did."""

    launches: int
    seconds: float
    answers: int
    p50_ns: int
    p99_ns: int


class Program:
    """One process with a known load; it waits for `begin`."""

    def __init__(self, load: Sequence[str], environment: dict[str, str]) -> None:
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            [library("milligpu-load"), *load], env=environment, stdin=pipe, stdout=pipe, text=True
        )

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    def wait_ready(self) -> None:
        """Until it has its context and its kernels."""
        assert self._process.stdout is not None
        if self._process.stdout.readline() != "ready\n":
            raise Unavailable(f"milligpu-load ended with {self._process.wait()} before it began")

    def begin(self) -> None:
        """Let it work."""
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()

    def end(self) -> Report:
        """Stop it; what it did."""
        out, _ = self._process.communicate(timeout=60)
        return Report(**json.loads(out.splitlines()[-1]))

    def kill(self) -> None:
        """Whatever it does."""
        self._process.kill()
        self._process.communicate()


def come_first(*, urgent: bool = True) -> bool:
    """Let this process and its children run before all else here, or no longer; whether that was granted.

    What is measured is modelled time, and takes next to no CPU time; but a hand-over must get it when it is due.
    """
    try:
        if urgent:
            os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(_PRIORITY))
        else:
            os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    except OSError:
        return False
    return True


class Stage:
    """Everything of one measurement."""

    def __init__(self, folder: Path) -> None:
        self.arbiter = Arbiter()
        self._cards = folder / "cards"
        self._folder = folder
        self._tenants: list[tuple[Tenant, LimitsPage, int]] = []
        self._programs: list[Program] = []
        self._late_before = 0
        start_daemon(
            self._cards,
            Places.from_env(os.environ).cache,
            Fleet(1, DEFAULT_MODEL, None, speed=1.0),
            watch=os.getpid(),
        )
        self._uuid: str = read_state(self._cards)[0]["uuid"]

    def close(self) -> None:
        """End it all."""
        self.kill()
        self.arbiter.close()
        stop_daemon(self._cards)

    def tenants(self, shares: Sequence[Share]) -> None:
        """New tenants in the place of those before."""
        for _, _, number in self._tenants:
            self.arbiter.remove(number)
        self._tenants = []
        self._late_before += self.late_launches()
        slots = divide([(str(at), Milli(share.milli)) for at, share in enumerate(shares)], shares[0].policy)
        for at, share in enumerate(shares):
            slot = slots[str(at)]
            gpu = GpuLimits(
                self._uuid,
                Milli(share.milli),
                Milli(share.limit),
                _CAP,
                share.policy,
                slot.start_us,
                slot.length_us,
                context_bytes=1,
            )
            page = LimitsPage((gpu,), share.priority)
            session = Path(tempfile.mkdtemp(dir=self._folder))
            (session / CUDA).symlink_to(library(f"enforce/{CUDA}"))
            drivers = Drivers(library(f"softgpu/{CUDA}"), library(f"softgpu/{NVML}"))
            tenant = Tenant.make(session / "tenant", page, drivers, os.geteuid())
            self._tenants.append((tenant, page, self.arbiter.add(tenant.folder)))

    def resize(self, tenant: int, milli: int) -> None:
        """Change a running tenant's share, as the agent does."""
        folder, page, number = self._tenants[tenant]
        page = replace(page, gpus=(replace(page.gpus[0], milli=Milli(milli)),))
        folder.change(page)
        self._tenants[tenant] = (folder, page, number)

    def account(self, tenant: int) -> LeaseAccount:
        """What the arbiter knows of it."""
        return self.arbiter.accounts(self._tenants[tenant][2])[0]

    def folder(self, tenant: int) -> Path:
        """What an arbiter needs to know of a tenant."""
        return self._tenants[tenant][0].folder

    def environment(self, tenant: int | None) -> dict[str, str]:
        """Of programs in a tenant; or without any limits, on the bare card."""
        environment = {**os.environ, **client_environment(self._cards, os.environ)}
        if tenant is not None:
            session = self.folder(tenant).parent
            environment["LD_LIBRARY_PATH"] = f"{session}:{environment['LD_LIBRARY_PATH']}"
        return environment

    def start(self, tenant: int | None, *load: str) -> Program:
        """A program of known load in a tenant, or on the bare card."""
        program = Program(load, self.environment(tenant))
        self._programs.append(program)
        program.wait_ready()
        return program

    def begin(self) -> None:
        """Let all programs work."""
        for program in self._programs:
            program.begin()

    def stop(self) -> list[Report]:
        """End all programs, in the order in which they were started."""
        reports = [program.end() for program in self._programs]
        self._programs = []
        return reports

    def kill(self) -> None:
        """End all programs, whatever they do."""
        for program in self._programs:
            program.kill()
        self._programs = []

    def sample(self, clock: Clock) -> Sample:
        """How long the card was busy with each process so far."""
        while True:
            before = clock()
            card = read_state(self._cards)[0]
            after = clock()
            if after - before <= _SLOW_ANSWER_NS:
                busy = {process["pid"]: process["busy_ns"] for process in card["processes"]}
                return Sample((before + after) // 2, busy)

    def late_launches(self) -> int:
        """How many launches of these tenants the CPU could not run in time: with many, figures are not exact."""
        return read_state(self._cards)[0]["late"]["launches"] - self._late_before


@contextmanager
def stage() -> Generator[Stage]:
    """Set it up and clear it away."""
    folder = Path(tempfile.mkdtemp(prefix="milligpu-bench-"))
    scene = Stage(folder)
    try:
        yield scene
    finally:
        scene.close()
        shutil.rmtree(folder, ignore_errors=True)
