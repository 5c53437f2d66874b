"""A session's share as a CDI device, for containers that podman or Docker starts: `milligpu run --cdi`.

The same edits as a pod's container gets. Two hooks tell the process that holds the session when the container
starts and when it has ended: the runtime makes a directory at either time. A second container cannot have the same
device, because the first directory exists.
"""

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from milligpu.agent.attachments import our_libraries
from milligpu.agent.cdi import ContainerEdits, Hook, cdi_document, read_only
from milligpu.agent.driver import (
    NodeDriver,
    find_host_paths,
    locate_driver,
    open_node_nvml,
    share_edits,
    softgpu_driver,
    whole_edits,
)
from milligpu.model.errors import Unavailable
from milligpu.sessions.members import SESSION_VARIABLE
from milligpu.sessions.protocol import ShareGranted
from milligpu.softgpu.start import read_state
from milligpu.tenancy.tenant import CUDA, NVML, REAL, USAGE

SESSION_KIND = "milligpu.dev/session"
STARTED, ENDED = "started", "ended"
_TENANT = "tenant"
# The first version with everything used here but groups; podman 4.3 and Docker 25 read it.
_CDI_VERSION = "0.5.0"


def session_document(granted: ShareGranted, driver: NodeDriver, notes: Path, mkdir: str) -> str:
    """Return the CDI file of a session; hooks make the directories STARTED and ENDED in `notes`."""
    tenant = Path(granted.folder, _TENANT)
    if granted.whole:
        edits = whole_edits(driver, granted.gpus)
    else:
        edits = share_edits(driver, our_libraries(), granted.gpus, tenant, USAGE).plus(_real_driver(tenant))
    hooks = (
        Hook("createRuntime", mkdir, ("mkdir", str(notes / STARTED))),
        Hook("poststop", mkdir, ("mkdir", "-p", str(notes / ENDED))),
    )
    edits = edits.plus(ContainerEdits({SESSION_VARIABLE: granted.session}, hooks=hooks))
    edits = replace(edits, version=edits.version if edits.groups else _CDI_VERSION)
    return cdi_document(granted.session, edits, SESSION_KIND)


def _real_driver(tenant: Path) -> ContainerEdits:
    """The limits library follows the links in the tenant's directory, which name the machine's own paths."""
    links = [(tenant / REAL / name).readlink() for name in (CUDA, NVML)]
    return ContainerEdits(mounts=tuple(read_only(path, path) for path in links))


def find_mkdir() -> str:
    """The program of the hooks; a hook that does not exist would keep the container from starting."""
    found = shutil.which("mkdir")
    if found is None:
        raise Unavailable("mkdir is not installed", hint="install coreutils")
    return found


def driver_of(granted: ShareGranted, env: Mapping[str, str]) -> NodeDriver:
    """Return the machine's driver, or that of the software GPUs on which the session is."""
    if granted.softgpu is not None:
        folder = Path(granted.softgpu)
        return softgpu_driver({each["uuid"]: at for at, each in enumerate(read_state(folder))}, folder)
    host = find_host_paths(Path("/"), None, env)
    with open_node_nvml(host) as nvml:
        driver = locate_driver(nvml, env, host)
        if problem := driver.refresh(granted.gpus):
            raise Unavailable(problem)
        return driver
