"""Four software GPUs that stay up, and programs on them in processes of their own."""

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

from milligpu.softgpu.names import SOCKET_VARIABLE
from milligpu.softgpu.start import inject_fault

CLIENTS = Path(__file__).parent / "clients"
ROOT = Path(__file__).parents[2]
FLEET = "A100-40GBx2,T4x2"
# Far longer than any step here takes.
PATIENCE = 60.0


class Machine:
    def __init__(self, softgpu: Callable[..., subprocess.CompletedProcess[str]], folder: Path) -> None:
        self._softgpu = softgpu
        self._places = {"XDG_RUNTIME_DIR": str(folder)}
        started = softgpu("up", "--model", FLEET, env=self._places)
        assert started.returncode == 0, started.stderr
        exports = softgpu("env", env=self._places).stdout.splitlines()
        pairs = [line.removeprefix("export ").split("=", 1) for line in exports]
        # A fixed width, so that the tools' output does not depend on the terminal.
        self.environment = {**os.environ, **{name: value.strip("'") for name, value in pairs}, "COLUMNS": "130"}

    def end(self) -> None:
        assert self._softgpu("down", env=self._places).returncode == 0

    def run(self, *command: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, env=self.environment, capture_output=True, text=True, timeout=PATIENCE, check=False, cwd=ROOT
        )

    def ask(self, *arguments: str) -> Any:
        done = self.run(sys.executable, CLIENTS / "nvml.py", *arguments)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    def fault(self, gpu: int | str, **fault: object) -> None:
        inject_fault(Path(self.environment[SOCKET_VARIABLE]), str(gpu), fault)

    def until(self, holds: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not holds():
            assert time.monotonic() < deadline

    @contextlib.contextmanager
    def program(self, *arguments: str) -> Generator[subprocess.Popen[str]]:
        """Run a client until the end of the block, which begins when the client prints its first line."""
        command = [sys.executable, CLIENTS / arguments[0], *arguments[1:]]
        with subprocess.Popen(command, env=self.environment, stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None
                assert process.stdout.readline().strip() in ("running", "waiting")
                yield process
            finally:
                process.kill()
