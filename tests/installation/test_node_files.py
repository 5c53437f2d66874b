"""The files of a node go when its agent has ended, and only ours."""

import asyncio
from pathlib import Path

import pytest

from milligpu.agent.handover import AgentHandover
from milligpu.agent.settings import AgentSettings
from milligpu.cli.main import run
from milligpu.installation.node_files import remove_files, under
from milligpu.model.errors import Unavailable


@pytest.fixture
def settings(tmp_path: Path) -> AgentSettings:
    return under(tmp_path, AgentSettings("n1"))


def fill(settings: AgentSettings) -> list[Path]:
    """The files of an agent; returns those of others."""
    others = [
        settings.cdi / "nvidia.yaml",
        settings.device_plugins / "kubelet.sock",
        settings.state.parent / "other" / "file",
    ]
    ours = [
        settings.cdi / "milligpu-1.json",
        settings.device_plugins / "milligpu-nvidia.com-vgpu-0.sock",
        settings.state / "program" / "1" / "file",
        settings.run / "containers" / "1" / "limits",
    ]
    for file in (*others, *ours):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    return others


def test_the_command_removes_our_files_and_directories_and_no_others(
    tmp_path: Path, settings: AgentSettings, capsys: pytest.CaptureFixture[str]
) -> None:
    others = fill(settings)
    assert run(["uninstall", "node", "--root", str(tmp_path)]) == 0
    assert sorted(path for path in tmp_path.rglob("*") if path.is_file()) == sorted(others)
    assert not settings.state.exists()
    assert not settings.run.exists()
    assert f"removed {settings.state}\n" in capsys.readouterr().out
    assert run(["uninstall", "node", "--root", str(tmp_path)]) == 0, "it can be run again"


def test_other_directories_than_the_default_ones_can_be_named(tmp_path: Path) -> None:
    names = ("kubelet-dir", "cdi-dir", "state-dir", "run-dir")
    folders = {name: tmp_path / "elsewhere" / name for name in names}
    settings = AgentSettings(
        node="n",
        kubelet=folders["kubelet-dir"],
        cdi=folders["cdi-dir"],
        state=folders["state-dir"],
        run=folders["run-dir"],
    )
    others = fill(settings)
    options = [part for name, folder in folders.items() for part in (f"--{name}", str(folder))]
    # As on the command line: "--kubelet-dir", "--cdi-dir", "--state-dir" and "--run-dir".
    assert run(["uninstall", "node", *options]) == 0
    assert sorted(path for path in tmp_path.rglob("*") if path.is_file()) == sorted(others)


def test_nothing_is_removed_under_an_agent_that_runs(tmp_path: Path, settings: AgentSettings) -> None:
    fill(settings)

    async def with_agent() -> None:
        agent = AgentHandover(settings.run)
        await agent.take_over()
        with pytest.raises(Unavailable, match="the agent of this node still runs"):
            remove_files(settings, deadline_s=0.0)
        assert run(["uninstall", "node", "--root", str(tmp_path), "--timeout", "0"]) != 0
        assert settings.state.exists()
        agent.close()

    asyncio.run(with_agent())
    assert (settings.cdi / "milligpu-1.json").exists()
    assert remove_files(settings, deadline_s=0.0)
