"""A machine with software GPUs of four models behind the strict NVML."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from milligpu.native import library
from milligpu.softgpu.names import SOCKET_VARIABLE
from milligpu.softgpu.start import SoftgpuSpec, start_daemon, stop_daemon
from testing.strictnvml.build import build

CLIENTS = Path(__file__).parent / "clients"
PROGRAM = Path(sys.executable).parent / "milligpu"
MODELS = ("V100-16GB", "A100-40GB", "T4", "H100")
PATIENCE_S = 240


class StrictNode:
    """Programs find the strict NVML and the software GPU's libcuda as if a driver were installed."""

    def __init__(self, folder: Path, nvml: Path) -> None:
        self._gpus = folder / "gpus"
        self._rules = folder / "rules"
        cache = Path(tempfile.gettempdir(), "milligpu-test-cache")
        start_daemon(self._gpus, cache, SoftgpuSpec(None, ",".join(MODELS), None))
        driver = folder / "driver"
        driver.mkdir()
        (driver / "libnvidia-ml.so.1").symlink_to(nvml)
        (driver / "libcuda.so.1").symlink_to(library("softgpu/libcuda.so.1"))
        self.environment = {
            **os.environ,
            "LD_LIBRARY_PATH": str(driver),
            "XDG_RUNTIME_DIR": str(folder),
            SOCKET_VARIABLE: str(self._gpus),
            "STRICT_NVML": str(self._rules),
            "STRICT_NVML_NEXT": str(library("softgpu/libnvidia-ml.so.1")),
            "COLUMNS": "200",
        }
        self.folder = folder
        self.rule()

    def rule(self, *rules: str) -> None:
        """Put these rules into force at once, instead of those before."""
        new = self._rules.with_suffix(".new")
        new.write_text("".join(f"{rule}\n" for rule in rules))
        new.rename(self._rules)

    def start(self, *command: str | Path) -> "subprocess.Popen[str]":
        pipe = subprocess.PIPE
        return subprocess.Popen(command, env=self.environment, stdin=pipe, stdout=pipe, stderr=pipe, text=True)

    def milligpu(self, *arguments: str) -> "subprocess.Popen[str]":
        return self.start(PROGRAM, *arguments)

    def client(self, name: str, cases: Iterable[object] = ()) -> list[Any]:
        """What a client prints, one line of JSON for each case on its input."""
        process = self.start(sys.executable, CLIENTS / f"{name}.py")
        out, err = process.communicate("".join(json.dumps(each) + "\n" for each in cases), timeout=PATIENCE_S)
        assert process.returncode == 0, err[-3000:]
        return [json.loads(line) for line in out.splitlines()]

    def close(self) -> None:
        """End the GPUs, and the session service that a command may have started."""
        for file in self.folder.glob("milligpu/agent/*.pid"):
            os.kill(int(file.read_text()), signal.SIGTERM)
        stop_daemon(self._gpus)


def answer(process: "subprocess.Popen[str]") -> tuple[int, Any]:
    """The exit code and the JSON that a command prints."""
    out, err = process.communicate(timeout=PATIENCE_S)
    assert out, err[-3000:]
    return process.returncode, json.loads(out)


@pytest.fixture(scope="session")
def strict_nvml(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The compiled library."""
    return build(tmp_path_factory.mktemp("strictnvml"))


@pytest.fixture(scope="module")
def node(strict_nvml: Path) -> Iterator[StrictNode]:
    with tempfile.TemporaryDirectory() as folder:
        made = StrictNode(Path(folder), strict_nvml)
        yield made
        made.close()
