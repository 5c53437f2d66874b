"""A GPU server of this test run's own, with software GPUs of its own, and its clients."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.sessions.conftest import Machine, wait_for

BIN = Path(sys.executable).parent
ROOT = Path(__file__).parents[2]
CLIENTS = Path(__file__).parent / "clients"
TOOLKIT = next(Path(sys.prefix).glob("lib/python*/site-packages/nvidia/cu*"))


def free_port(host: str) -> int:
    with socket.create_server((host, 0)) as probe:
        return int(probe.getsockname()[1])


class GpuServer:
    """`milligpu server` on a machine with software GPUs."""

    def __init__(
        self,
        folder: Path,
        devices: int,
        *options: str,
        pool: Path | None = None,
        host: str = "127.0.0.1",
        speed: str | None = None,
    ) -> None:
        """`speed`: the GPUs take modeled time."""
        self.options = options
        self.machine = Machine(folder)
        pace = () if speed is None else ("--speed", speed)
        self.machine.run("softgpu", "up", "--devices", str(devices), "--memory", "8Gi", *pace)
        self.folder = folder
        self.host = host
        self.port = free_port(host)
        self.pool = pool or folder / "pool"
        self.run("pool", "create", "--pool", str(self.pool))
        self.token = self.make_token("alice")
        self._clients: list[subprocess.Popen[str]] = []
        self.process: subprocess.Popen[bytes]
        self.start()

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    def run(self, *args: str, program: str = "milligpu", check: bool = True) -> subprocess.CompletedProcess[str]:
        """A command, to its end."""
        done = subprocess.run(
            [BIN / program, *args],
            capture_output=True,
            text=True,
            env=self.client_env(),
            timeout=200,
            check=False,
        )
        assert not check or done.returncode == 0, done.stderr[-2000:]
        return done

    def make_token(self, name: str, *options: str) -> Path:
        path = self.folder / f"{name}.json"
        self.run(
            "pool",
            "token",
            "create",
            name,
            "--pool",
            str(self.pool),
            "--server",
            self.address,
            "-o",
            str(path),
            *options,
        )
        return path

    def client_env(self) -> dict[str, str]:
        """The environment of a machine without GPUs, which has the CUDA toolkit."""
        env = {**os.environ, "CUDA_PATH": str(TOOLKIT), "LD_LIBRARY_PATH": str(TOOLKIT / "lib")}
        env["XDG_RUNTIME_DIR"] = str(self.folder / "client")
        if hasattr(self, "token"):
            env["MILLIGPU_TOKEN_FILE"] = str(self.token)
        return env

    def start(self) -> None:
        log = self.folder / "server.log"
        args = [
            "server",
            "--listen",
            self.address,
            "--pool",
            str(self.pool),
            "--state-dir",
            str(self.folder / "state"),
            *(each.replace("{address}", self.address) for each in self.options),
        ]
        with log.open("a") as output:
            self.process = subprocess.Popen(
                [BIN / "milligpu", *args],
                env={**self.machine.env, "PYTHONUNBUFFERED": "1"},
                stderr=output,
                start_new_session=True,
            )
        wait_for("the server", self._answers)

    def _answers(self) -> bool:
        assert self.process.poll() is None, (self.folder / "server.log").read_text()
        try:
            socket.create_connection((self.host, self.port), 1).close()
        except OSError:
            return False
        return True

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        self.process.send_signal(number)
        self.process.wait(30)

    def client(self, *args: str | Path, **options: Any) -> subprocess.Popen[str]:
        """`milligpu run --remote ARGS`, which goes on."""
        process = subprocess.Popen(
            [BIN / "milligpu", "run", "--remote", *args],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**self.client_env(), **options.pop("env", {})},
            start_new_session=True,
            **options,
        )
        self._clients.append(process)
        return process

    def program(self, name: Path, *share: str, env: dict[str, str] | None = None) -> str:
        """Run a Python program remotely, and return what it prints."""
        process = self.client(*share, "--", sys.executable, name, env=env or {}, cwd=ROOT)
        output, errors = process.communicate(timeout=280)
        assert process.returncode == 0, errors[-2000:]
        return output

    def results(self, name: Path, *share: str, env: dict[str, str] | None = None) -> dict[str, Any]:
        return json.loads(self.program(name, *share, env=env).splitlines()[-1])

    def processes(self, *words: str) -> list[int]:
        """Processes of this server's sessions with these words on their command lines."""
        found: list[int] = []
        marker = f"XDG_RUNTIME_DIR={self.machine.folder}\0".encode()
        for entry in Path("/proc").iterdir():
            try:
                line = (entry / "cmdline").read_bytes() if entry.name.isdigit() else b""
                ours = line and marker in (entry / "environ").read_bytes() + b"\0"
                if ours and all(word.encode() in line for word in words):
                    found.append(int(entry.name))
            except OSError:
                continue
        return found

    def end_clients(self) -> None:
        for process in self._clients:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
        self._clients.clear()
        wait_for("all shares to be free", lambda: not self.machine.sessions())

    def close(self) -> None:
        for process in self._clients:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
        if self.process.poll() is None:
            self.stop(signal.SIGKILL)
        self.machine.close()
        shutil.rmtree(self.folder, ignore_errors=True)


@pytest.fixture(scope="module")
def devices() -> int:
    """The number of GPUs; a module may have its own."""
    return 1


@pytest.fixture(scope="module")
def module_server(devices: int) -> Iterator[GpuServer]:
    server = GpuServer(Path(tempfile.mkdtemp(prefix="mgr-")), devices)
    yield server
    server.close()


@pytest.fixture
def server(module_server: GpuServer) -> Iterator[GpuServer]:
    """The module's server, running, with no session on it."""
    if module_server.process.poll() is not None:
        module_server.start()
    yield module_server
    module_server.end_clients()


class Holder:
    """A program that holds memory of a remote GPU, and says what its next call returns."""

    def __init__(self, server: GpuServer, *share: str, mib: int = 64) -> None:
        self.process = server.client(*share, "--", sys.executable, CLIENTS / "hold.py", str(mib))
        self.first = self.read()

    def read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.process.stderr and self.process.stderr.read()[-2000:]
        return json.loads(line)

    def call(self) -> int:
        """The status of a copy from the device."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return int(self.read()["status"])


@pytest.fixture
def holder(server: GpuServer) -> Callable[..., Holder]:
    def start(*share: str, mib: int = 64) -> Holder:
        return Holder(server, *share, mib=mib)

    return start
