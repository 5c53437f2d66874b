"""What a session's command finds in its environment: the libraries that show its share, and its GPUs only."""

from collections.abc import Mapping
from pathlib import Path

from milligpu.agent.processes import SESSION_VARIABLE
from milligpu.agent.protocol import Granted
from milligpu.native import library
from milligpu.softgpu.start import client_environment

_PATH = "LD_LIBRARY_PATH"


def session_environment(granted: Granted, env: Mapping[str, str]) -> dict[str, str]:
    """What to add to `env`.

    A whole GPU is the driver's own library, nothing of ours in the way. For a share the session's folder comes
    first on the library path, with the limits library under the driver's name.
    """
    added: dict[str, str] = {}
    if granted.softgpu is not None:
        added = client_environment(Path(granted.softgpu), env)
    if not granted.whole:
        path = added.get(_PATH, env.get(_PATH, "")).split(":")
        driver = str(library("softgpu/libcuda.so.1").parent)
        added[_PATH] = ":".join([granted.folder, *(part for part in path if part not in ("", driver))])
    added["CUDA_VISIBLE_DEVICES"] = ",".join(granted.gpus)
    added[SESSION_VARIABLE] = granted.session
    return added
