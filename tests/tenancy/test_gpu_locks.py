"""One agent per GPU, whoever runs it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from milligpu.model.errors import Unavailable
from milligpu.tenancy.gpu_locks import GpuLocks


def test_a_gpu_locked_by_another_service_is_refused_with_its_pid(tmp_path: Path) -> None:
    first, second = GpuLocks(tmp_path / "locks"), GpuLocks(tmp_path / "locks")
    first.hold(["GPU-a", "GPU-b"])
    with pytest.raises(Unavailable, match=rf"GPU-b is already managed by another agent .*process {os.getpid()}"):
        second.hold(["GPU-c", "GPU-b"])
    GpuLocks(tmp_path / "locks").hold(["GPU-c"])  # nothing was kept of what was refused


def test_a_released_gpu_can_be_locked_again(tmp_path: Path) -> None:
    first, second = GpuLocks(tmp_path / "locks"), GpuLocks(tmp_path / "locks")
    first.hold(["GPU-a"])
    first.hold(["GPU-a"])
    first.hold([])
    second.hold(["GPU-a"])


def test_a_killed_process_releases_its_gpu_locks(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from milligpu.tenancy.gpu_locks import GpuLocks\n"
        "locks = GpuLocks(Path(sys.argv[1])); locks.hold(['GPU-a']); print('held', flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with pytest.raises(Unavailable, match=f"process {other.pid}"):
            GpuLocks(tmp_path).hold(["GPU-a"])
        other.kill()
        other.wait()
        GpuLocks(tmp_path).hold(["GPU-a"])


def test_a_lock_directory_that_cannot_be_written_refuses_all_gpus(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Unavailable, match="Not a directory"):
        GpuLocks(tmp_path / "file" / "locks").hold(["GPU-a"])
