"""An agent of this test run's own, with software GPUs of its own; reached as people reach it."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from milligpu.sessions.client import SessionClient
from milligpu.sessions.protocol import ReadStatus, StatusRead
from milligpu.status.machine import machine_data

PROGRAM = Path(sys.executable).parent / "milligpu"
ROOT = Path(__file__).parents[2]
WAIT_SECONDS = 60.0


def wait_for(what: str, condition: Callable[[], Any], seconds: float = WAIT_SECONDS) -> Any:
    """The first true answer."""
    started = time.monotonic()
    while not (answer := condition()):
        waited = time.monotonic() - started
        assert waited < seconds, f"waited {seconds:.0f} s for: {what}"
        # Every question takes CPU time from those who are waited for.
        time.sleep(max(0.02, min(0.2, waited / 20)))
    return answer


# Tests may themselves run under nohup or in the background, where these are ignored; children would inherit it.
HEED_SIGNALS = ("env", "--default-signal=INT,HUP")


class Machine:
    """One machine as its user sees it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        cache = tempfile.gettempdir() + "/milligpu-test-cache"
        self.env = {**os.environ, "XDG_RUNTIME_DIR": str(folder), "XDG_CACHE_HOME": cache}
        self.agent = folder / "milligpu/agent"
        self._started: list[subprocess.Popen[str]] = []

    def run(self, *args: str, **options: Any) -> subprocess.CompletedProcess[str]:
        """`milligpu ARGS`, to its end."""
        return subprocess.run(
            [PROGRAM, *args], capture_output=True, text=True, env=self.env, timeout=120, check=False, **options
        )

    def start(self, *args: str, **options: Any) -> subprocess.Popen[str]:
        """`milligpu run ARGS`, which goes on."""
        process = subprocess.Popen(
            [*HEED_SIGNALS, PROGRAM, "run", *args],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self.env,
            start_new_session=True,
            **options,
        )
        self._started.append(process)
        return process

    def hold(self, *args: str) -> subprocess.Popen[str]:
        """A command that holds a share; returns when it runs."""
        process = self.start(*args, "--", "sleep", "600")
        wait_for("a share", lambda: process.pid in [each["pid"] for each in self.ps()["sessions"]])
        # Between the grant and the exec a signal still meets milligpu, which answers it as Python does.
        command = Path(f"/proc/{process.pid}/cmdline")
        wait_for("the command", lambda: command.read_bytes().startswith(b"sleep\0"))
        return process

    def ps(self) -> dict[str, Any]:
        """What `milligpu ps -o json` prints, without the cost of a process."""
        answer = SessionClient(self.env).ask(ReadStatus())
        assert isinstance(answer, StatusRead)
        return machine_data(answer.status)

    def sessions(self) -> list[dict[str, Any]]:
        """Who holds something."""
        return self.ps()["sessions"]

    def agents(self) -> list[int]:
        """The agent's processes: the one that watches comes first."""
        found: list[int] = []
        for entry in Path("/proc").iterdir():
            with suppress(OSError):
                if entry.name.isdigit() and f"milligpu.sessions\0{self.agent}\0".encode() in (
                    (entry / "cmdline").read_bytes()
                ):
                    found.append(int(entry.name))
        return sorted(found)

    def close(self) -> None:
        """End everything."""
        for process in self._started:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
        for pid in self.agents():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        subprocess.run([PROGRAM, "softgpu", "down"], env=self.env, capture_output=True, check=False)
        shutil.rmtree(self.folder, ignore_errors=True)

    def end_all(self) -> None:
        """End all commands that were started, and wait until nobody holds anything."""
        for process in self._started:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
        self._started.clear()
        wait_for("all shares to be free", lambda: not self.sessions())


@pytest.fixture(scope="module")
def module_machine() -> Iterator[Machine]:
    machine = Machine(Path(tempfile.mkdtemp(prefix="mg-")))
    yield machine
    machine.close()


@pytest.fixture
def machine(module_machine: Machine) -> Iterator[Machine]:
    """The module's machine, with nothing running on it."""
    yield module_machine
    module_machine.end_all()
