"""`milligpu agent --policy`: which GPU starts with which share policy, and what is refused."""

import os
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from milligpu.agent.settings import AgentSettings
from milligpu.cli.agent import node_options
from milligpu.cli.main import run
from milligpu.model.errors import BadRequest

Capture = pytest.CaptureFixture[str]
MILLIGPU = str(Path(sys.executable).parent / "milligpu")


@pytest.mark.parametrize(
    ("options", "policies"),
    [
        ([], ["best-effort"] * 3),
        (["fixed"], ["fixed"] * 3),
        (["1=equal"], ["best-effort", "equal", "best-effort"]),
        (["2=fixed", "equal", "0=best-effort"], ["best-effort", "equal", "fixed"]),
    ],
)
def test_a_policy_is_for_one_gpu_by_its_index_or_for_all_others(options: list[str], policies: list[str]) -> None:
    found: list[AgentSettings] = []

    @click.command()
    @node_options
    def command(settings: AgentSettings) -> None:
        found.append(settings)

    words = [word for option in options for word in ("--policy", option)]
    assert CliRunner().invoke(command, words).exit_code == 0
    found[0].check_indices(3)
    assert [found[0].share_policy(index) for index in range(3)] == policies


def test_a_policy_for_a_gpu_that_the_machine_does_not_have_is_refused_with_the_indices() -> None:
    settings = AgentSettings("n1", policy={3: AgentSettings("n1").share_policy(0)})
    settings.check_indices(4)
    with pytest.raises(BadRequest, match="--policy: invalid value 3: must be the index of a GPU, from 0 to 2"):
        settings.check_indices(3)
    with pytest.raises(BadRequest, match="must be left out: there is no GPU"):
        settings.check_indices(0)


@pytest.mark.parametrize("mode", [[], ["--local"]], ids=["node", "local"])
@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("fair", "--policy: invalid value 'fair': must be fixed or equal or best-effort"),
        ("0=fair", "--policy: invalid value 'fair': must be fixed or equal or best-effort"),
        ("0=", "--policy: invalid value '': must be fixed or equal or best-effort"),
        ("first=fixed", "--policy: invalid value 'first': must be"),
        ("=fixed", "--policy: invalid value '': must be"),
        ("-1=fixed", "--policy: invalid value '-1': must be"),
    ],
)
def test_a_policy_or_index_that_cannot_be_read_is_refused(
    mode: list[str], text: str, error: str, capsys: Capture
) -> None:
    assert run(["agent", *mode, "--policy", text]) == 2
    assert capsys.readouterr().err.startswith(f"error: {error}")


def test_a_local_agent_refuses_a_policy_for_a_gpu_that_the_machine_does_not_have(tmp_path: Path) -> None:
    agent = [MILLIGPU, "agent", "--local", "--policy", "7=fixed"]
    done = subprocess.run(
        [MILLIGPU, "softgpu", "exec", "--devices", "2", "--", *agent],
        capture_output=True,
        text=True,
        env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)},
        timeout=60,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert "error: --policy: invalid value 7: must be the index of a GPU, from 0 to 1" in done.stderr
