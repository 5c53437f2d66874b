"""Two session services on one machine, with the same GPUs."""

import os
import shutil
import tempfile
from pathlib import Path

from tests.sessions.conftest import Machine


def test_a_second_service_on_the_same_gpus_grants_nothing(machine: Machine) -> None:
    machine.hold("-p", "0.3")
    # Not pytest's directory: with its long name a socket's path can exceed the 107 bytes that Linux allows.
    other = Machine(Path(tempfile.mkdtemp(prefix="mg-")))
    (other.folder / "milligpu").mkdir()
    (other.folder / "milligpu/softgpu").symlink_to(machine.folder / "milligpu/softgpu")
    try:
        refused = other.run("run", "--no-wait", "-p", "0.1", "--", "true")
        assert refused.returncode != 0
        assert "is already managed by another agent" in refused.stderr
        assert len(machine.sessions()) == 1
    finally:
        for pid in other.agents():
            os.kill(pid, 9)
        shutil.rmtree(other.folder)
