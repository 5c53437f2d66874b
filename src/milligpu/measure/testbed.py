"""Software GPUs in modeled time, an arbiter, tenants with shares of the GPU, and programs of known load."""

import json
import os
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from milligpu.measure.share_windows import BusySample, Clock
from milligpu.model.errors import Unavailable
from milligpu.model.policy import SharePolicy
from milligpu.model.request import Share
from milligpu.model.units import WHOLE, Mib, Milli
from milligpu.native import library
from milligpu.softgpu.models import DEFAULT_MODEL, find_model
from milligpu.softgpu.start import (
    SoftgpuPaths,
    SoftgpuSpec,
    client_environment,
    read_state,
    start_daemon,
    stop_daemon,
)
from milligpu.tenancy.arbiter import Arbiter, LeaseUse
from milligpu.tenancy.tenant import CUDA, NVML, DriverLibraries, TenantFolder
from milligpu.tenancy.time_slots import divide_frame
from milligpu.wire.limits import GpuLimits, LimitsPage

_MEMORY = Mib(1024)
_GPUS = 2
# The lowest real-time priority: everything that is measured has it, the arbiter included.
_PRIORITY = 1
# If the GPU takes longer than this to answer, the time of the sample is too uncertain.
_SLOW_ANSWER_NS = 5_000_000


def compute_share(milli: int, limit: int = WHOLE, mib: Mib = _MEMORY) -> Share:
    """A share of the testbed's GPU; where memory is not measured, all shares have the same."""
    return Share(Milli(milli), mib, Milli(limit))


@dataclass(frozen=True, slots=True)
class LoadReport:
    """What a program of known load reports at its end."""

    launches: int
    seconds: float
    answers: int
    p50_ns: int
    p99_ns: int
    turns: int = 0
    """Of `calibrate`: turns of the loop that take as long as was asked for."""
    gpu: str = ""
    """Of `work`: the GPU's UUID, as digits."""
    samples: Sequence[tuple[int, int]] = ()
    """Of `work`: times in nanoseconds, and how many loops had ended by then."""


class LoadProgram:
    """One process with a known load; it does nothing before `begin`."""

    def __init__(
        self,
        load: Sequence[str],
        environment: Mapping[str, str],
        start: Sequence[str] = (),
        *,
        quiet: bool = False,
    ) -> None:
        """`start` is what starts it, such as `milligpu run -p 0.5 --`; `quiet` keeps stderr for error messages."""
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            [*start, library("milligpu-load"), *load],
            env=environment,
            stdin=pipe,
            stdout=pipe,
            stderr=pipe if quiet else None,
            text=True,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """None while it runs."""
        return self._process.poll()

    def wait_ready(self) -> None:
        """Wait until the program has its context and its kernels."""
        assert self._process.stdout is not None
        if self._process.stdout.readline() != "ready\n":
            _, errors = self._process.communicate()
            reason = f": {errors.strip().splitlines()[-1]}" if errors and errors.strip() else ""
            raise Unavailable(f"milligpu-load ended with {self._process.returncode} before it began{reason}")

    def begin(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()

    def end(self) -> LoadReport:
        """Stop the program and return its report."""
        out, _ = self._process.communicate(timeout=60)
        return LoadReport(**json.loads(out.splitlines()[-1]))

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()


def raise_priority(*, urgent: bool = True) -> bool:
    """Give this process and its children real-time priority, or take it away; False if that is not permitted.

    The measured time is modeled and takes almost no CPU time, but each turn must start when it is due.
    """
    try:
        if urgent:
            os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(_PRIORITY))
        else:
            os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    except OSError:
        return False
    return True


class Testbed:
    """The GPU, tenants and programs of one measurement."""

    def __init__(self, folder: Path, model: str = DEFAULT_MODEL) -> None:
        self.arbiter = Arbiter()
        self.model = find_model(model)
        self._softgpu = folder / "softgpu"
        self._folder = folder
        self._tenants: list[tuple[TenantFolder, LimitsPage, int]] = []
        self._programs: list[LoadProgram] = []
        self._late_before = 0
        start_daemon(
            self._softgpu,
            SoftgpuPaths.from_env(os.environ).cache,
            SoftgpuSpec(_GPUS, model, None, speed=1.0),
            watch=os.getpid(),
        )
        self._uuids: list[str] = [gpu["uuid"] for gpu in read_state(self._softgpu)]

    def close(self) -> None:
        self.kill()
        self.arbiter.close()
        stop_daemon(self._softgpu)

    def tenants(
        self,
        shares: Sequence[Share],
        *,
        policy: SharePolicy = SharePolicy.BEST_EFFORT,
        priorities: Sequence[int] = (),
        context_bytes: int = 1,
        gpus: int = 1,
    ) -> None:
        """Replace all tenants: one for each share, with GPU priority 0 unless `priorities` has another.

        Each has its share on each of the first `gpus` GPUs. `context_bytes` is what a CUDA context counts against a
        tenant's memory.
        """
        for _, _, number in self._tenants:
            self.arbiter.remove(number)
        self._tenants = []
        self._late_before += self.late_launches()
        slots = divide_frame([(str(at), share.milli) for at, share in enumerate(shares)], policy)
        for at, share in enumerate(shares):
            slot = slots[str(at)]
            limits = tuple(
                GpuLimits(
                    uuid,
                    share.milli,
                    share.limit,
                    share.mib << 20,
                    policy,
                    slot.start_us,
                    slot.length_us,
                    context_bytes=context_bytes,
                )
                for uuid in self._uuids[:gpus]
            )
            page = LimitsPage(limits, priorities[at] if priorities else 0)
            session = Path(tempfile.mkdtemp(dir=self._folder))
            (session / CUDA).symlink_to(library(f"enforce/{CUDA}"))
            drivers = DriverLibraries(library(f"softgpu/{CUDA}"), library(f"softgpu/{NVML}"))
            tenant = TenantFolder.make(session / "tenant", page, drivers, os.geteuid())
            self._tenants.append((tenant, page, self.arbiter.add(tenant.folder)))

    def resize(self, tenant: int, milli: int) -> None:
        """Change a running tenant's share, as the agent does."""
        folder, page, number = self._tenants[tenant]
        page = replace(page, gpus=(replace(page.gpus[0], milli=Milli(milli)),))
        folder.change(page)
        self._tenants[tenant] = (folder, page, number)

    def account(self, tenant: int) -> LeaseUse:
        """The GPU time that the arbiter has counted for the tenant."""
        return self.arbiter.accounts(self._tenants[tenant][2])[0]

    def new_file(self) -> Path:
        """A name for a file that programs share."""
        return Path(tempfile.mkdtemp(dir=self._folder)) / "shared"

    def folder(self, tenant: int) -> Path:
        """The tenant's directory, by which the arbiter identifies it."""
        return self._tenants[tenant][0].folder

    def environment(self, tenant: int | None) -> dict[str, str]:
        """Environment of programs in a tenant, or on the GPU without limits."""
        environment = {**os.environ, **client_environment(self._softgpu, os.environ)}
        if tenant is not None:
            session = self.folder(tenant).parent
            environment["LD_LIBRARY_PATH"] = f"{session}:{environment['LD_LIBRARY_PATH']}"
        return environment

    def start(self, tenant: int | None, *load: str, one_core: bool = False) -> LoadProgram:
        """Start a program of known load in a tenant, or on the GPU without limits."""
        cores = os.sched_getaffinity(0)
        try:
            if one_core:
                os.sched_setaffinity(0, {max(cores)})  # the program inherits it
            program = LoadProgram(load, self.environment(tenant))
        finally:
            os.sched_setaffinity(0, cores)
        self._programs.append(program)
        program.wait_ready()
        return program

    def begin(self) -> None:
        """Let all programs start their work."""
        for program in self._programs:
            program.begin()

    def stop(self) -> list[LoadReport]:
        """End all programs; their reports, in the order in which they were started."""
        reports = [program.end() for program in self._programs]
        self._programs = []
        return reports

    def kill(self) -> None:
        for program in self._programs:
            program.kill()
        self._programs = []

    def sample(self, clock: Clock) -> BusySample:
        """How long the GPUs have been busy with each process so far."""
        while True:
            before = clock()
            gpus = read_state(self._softgpu)
            after = clock()
            if after - before <= _SLOW_ANSWER_NS:
                busy: Counter[int] = Counter()
                for process in (each for gpu in gpus for each in gpu["processes"]):
                    busy[process["pid"]] += process["busy_ns"]
                return BusySample((before + after) // 2, busy)

    def processes(self) -> dict[int, tuple[int, int]]:
        """GPU time in nanoseconds and memory in bytes of every process, by PID."""
        gpu = read_state(self._softgpu)[0]
        return {each["pid"]: (each["busy_ns"], each["memory"]) for each in gpu["processes"]}

    def late_launches(self) -> int:
        """Launches of these tenants that the CPU could not run in time; with many, the figures are not exact."""
        return sum(gpu["late"]["launches"] for gpu in read_state(self._softgpu)) - self._late_before


@contextmanager
def open_testbed(model: str = DEFAULT_MODEL) -> Generator[Testbed]:
    """Start a software GPU of this model, and stop it at the end."""
    folder = Path(tempfile.mkdtemp(prefix="milligpu-measure-"))
    testbed = Testbed(folder, model)
    try:
        yield testbed
    finally:
        testbed.close()
        shutil.rmtree(folder, ignore_errors=True)
