"""What a session's command finds in its environment: the libraries that show its share, and its GPUs only."""

from collections.abc import Mapping
from pathlib import Path

from milligpu.native import library
from milligpu.sessions.members import SESSION_VARIABLE
from milligpu.sessions.protocol import ShareGranted
from milligpu.softgpu.start import client_environment

_PATH = "LD_LIBRARY_PATH"


def session_environment(granted: ShareGranted, env: Mapping[str, str]) -> dict[str, str]:
    """Return what to add to `env`.

    For a whole GPU, programs load the driver's own library. For a share, the session's directory comes first on the
    library path, with the limits library under the driver's name.
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
