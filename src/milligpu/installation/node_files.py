"""The files that an agent leaves on its node."""

import fcntl
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from milligpu.agent.handover import LOCK
from milligpu.agent.settings import AgentSettings
from milligpu.kubelet.device_plugin import SOCKET_PREFIX
from milligpu.model.errors import Unavailable
from milligpu.softgpu.start import is_running

SOFTGPU = "softgpu"
"""The directory of the chart's software GPUs, in the run directory."""
_LOOK_S = 0.2


def under(root: Path, settings: AgentSettings) -> AgentSettings:
    """The same paths below `root`, for a container that has the node's directories mounted there."""

    def moved(path: Path) -> Path:
        return root / path.relative_to(path.anchor)

    return replace(
        settings,
        kubelet=moved(settings.kubelet),
        cdi=moved(settings.cdi),
        state=moved(settings.state),
        run=moved(settings.run),
    )


def remove_files(settings: AgentSettings, deadline_s: float) -> list[Path]:
    """Wait until agent and software GPUs have ended, then remove their files and return them."""
    _wait("the agent", lambda: not _is_locked(settings.run / LOCK), deadline_s)
    _wait("the software GPUs", lambda: not is_running(settings.run / SOFTGPU), deadline_s)
    files = [*settings.cdi.glob("milligpu-*.json"), *settings.device_plugins.glob(f"{SOCKET_PREFIX}*")]
    folders = [folder for folder in (settings.state, settings.run) if folder.exists()]
    for file in files:
        file.unlink(missing_ok=True)
    for folder in folders:
        shutil.rmtree(folder)
    return [*files, *folders]


def _wait(what: str, gone: Callable[[], bool], deadline_s: float) -> None:
    end = time.monotonic() + deadline_s
    while not gone():
        if time.monotonic() >= end:
            raise Unavailable(f"{what} of this node still runs", hint="stop it, then run this command again")
        time.sleep(_LOOK_S)


def _is_locked(path: Path) -> bool:
    """Whether a process has the agent's lock."""
    try:
        with path.open("r+b") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False
