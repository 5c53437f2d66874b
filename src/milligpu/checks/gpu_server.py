"""The checks of `milligpu doctor --server`: whether this machine serves its GPUs over the network."""

import os
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path

from milligpu.checks.health_server import server_checks
from milligpu.checks.result import Check, CheckLevel, CheckResult, failed, passed, run_checks
from milligpu.model.errors import MilligpuError
from milligpu.remote.client import ask
from milligpu.remote.install import UNIT, UNITS
from milligpu.remote.pool import admin_access, read_pool
from milligpu.remote.protocol import VERSION, GpuList, ListGpus

_SECONDS = 30.0
_INSTALL_FIX = "install it: milligpu server install --address HOST:PORT"
_OTHERS = 0o077


async def check_gpu_server(folder: Path, server: str, units: Path = UNITS) -> list[CheckResult]:
    """Check the pool, the unit, the server's answer, and then all that its health report checks."""
    fix = f"run this command as root on the GPU server; {_INSTALL_FIX}"
    return await run_checks(
        [
            Check("pool", "authority", lambda: check_authority(folder), fix),
            Check("server", "unit", lambda: check_unit(units)),
            Check("server", "answer", lambda: check_answer(folder, server), fix),
            *server_checks(os.environ),
        ]
    )


def check_authority(folder: Path) -> Iterable[CheckResult]:
    """The pool's key has to be there, and only root may read it."""
    authority = read_pool(folder)
    days = (authority.certificate.not_valid_after_utc.timestamp() - time.time()) / 86400
    if days <= 0:
        yield failed(
            "authority", "it has expired", f"make a new pool: move {folder} away, then milligpu pool create"
        )
        return
    if folder.stat().st_mode & _OTHERS:
        yield failed("authority", f"{folder}: others may read it, and make tokens", f"chmod 700 {folder}")
        return
    yield passed("authority", f"{folder}, valid for {days:.0f} days")


def check_unit(units: Path) -> Iterable[CheckResult]:
    """A server that is started by hand does not come back with the machine."""
    if not (units / UNIT).exists():
        text = f"no {UNIT}: the server does not start with the machine"
        yield failed("unit", text, _INSTALL_FIX, CheckLevel.WARNING)
        return
    done = subprocess.run(["systemctl", "is-enabled", UNIT], capture_output=True, text=True, check=False)
    state = done.stdout.strip() or "unknown to systemd"
    if done.returncode:
        yield failed("unit", f"{UNIT} is {state}", f"systemctl enable --now {UNIT}", CheckLevel.WARNING)
        return
    yield passed("unit", f"{UNIT} is {state}")


def check_answer(folder: Path, server: str) -> Iterable[CheckResult]:
    """Ask the server as the pool's admin."""
    access = admin_access(folder, (server,), time.time())
    answer = ask(server, access, ListGpus(VERSION, access.token), GpuList, plain=False, seconds=_SECONDS)
    if isinstance(answer, MilligpuError):
        fix = f"start it: systemctl start {UNIT}; its log: journalctl -u {UNIT}"
        yield failed("answer", answer.message, answer.hint or fix)
        return
    if answer.draining:
        text = f"{server} is drained: it opens no sessions"
        yield failed("answer", text, f"milligpu pool drain --undo {server}", CheckLevel.WARNING)
        return
    versions = f", driver {answer.driver}, CUDA {answer.cuda}" if answer.driver else ""
    yield passed("answer", f"{server} serves {len(answer.gpus)} GPUs{versions}")
