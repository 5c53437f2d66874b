"""One agent per GPU, whoever runs it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from milligpu.agent.claims import Claims
from milligpu.model.errors import Unavailable
from tests.agent.conftest import Machine


def test_a_card_that_another_agent_shares_out_is_refused_and_the_holder_named(tmp_path: Path) -> None:
    first, second = Claims(tmp_path / "locks"), Claims(tmp_path / "locks")
    first.hold(["GPU-a", "GPU-b"])
    with pytest.raises(Unavailable, match=rf"GPU-b is shared out by another agent .*process {os.getpid()}"):
        second.hold(["GPU-c", "GPU-b"])
    Claims(tmp_path / "locks").hold(["GPU-c"])  # nothing was kept of what was refused


def test_a_card_that_is_let_go_can_be_had(tmp_path: Path) -> None:
    first, second = Claims(tmp_path / "locks"), Claims(tmp_path / "locks")
    first.hold(["GPU-a"])
    first.hold(["GPU-a"])
    first.hold([])
    second.hold(["GPU-a"])


def test_an_agent_that_is_killed_holds_nothing(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from milligpu.agent.claims import Claims\n"
        "claims = Claims(Path(sys.argv[1])); claims.hold(['GPU-a']); print('held', flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with pytest.raises(Unavailable, match=f"process {other.pid}"):
            Claims(tmp_path).hold(["GPU-a"])
        other.kill()
        other.wait()
        Claims(tmp_path).hold(["GPU-a"])


def test_a_folder_that_cannot_be_written_is_a_refusal_and_not_a_grant(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Unavailable, match="Not a directory"):
        Claims(tmp_path / "file" / "locks").hold(["GPU-a"])


def test_a_second_agent_on_the_same_cards_grants_nothing(machine: Machine, tmp_path: Path) -> None:
    machine.hold("-p", "0.3")
    other = Machine(tmp_path / "other")
    (other.folder / "milligpu").mkdir(parents=True)
    (other.folder / "milligpu/softgpu").symlink_to(machine.folder / "milligpu/softgpu")
    try:
        refused = other.run("run", "--no-wait", "-p", "0.1", "--", "true")
        assert refused.returncode != 0
        assert "is shared out by another agent on this machine" in refused.stderr
        assert len(machine.sessions()) == 1
    finally:
        for pid in other.agents():
            os.kill(pid, 9)
