"""The agent's own program on the node, for an agent that runs in a container.

Tenants' containers mount the limits library, and the container runtime takes what they mount from the node. So an
agent in a container copies its package into a directory that node and container share under one path, and runs from
there. Each version has a directory of its own: containers of the version before keep their files.
"""

import fcntl
import hashlib
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import milligpu

# Set for the process that runs from the copy, so that it does not copy again.
_VARIABLE = "MILLIGPU_PROGRAM"
_LOCK = "in-use"


def run_from(folder: Path, cdi: Path) -> None:
    """Start this process again from a copy of the package in `folder`; returns in the process that runs from it."""
    if os.environ.get(_VARIABLE):
        return
    copy = install(Path(milligpu.__file__).parent, folder)
    # The lock is inherited, and the kernel releases it when the agent ends, however it ends.
    lock = os.open(copy / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(lock, fcntl.LOCK_SH)
    os.set_inheritable(lock, True)
    sweep(folder, copy, cdi)
    environment = {**os.environ, _VARIABLE: str(copy), "PYTHONPATH": str(copy)}
    os.execve(sys.executable, [sys.executable, *sys.argv], environment)


def install(package: Path, folder: Path) -> Path:
    """Copy the package into a directory named by its content, whole or not at all, and return that directory."""
    target = folder / _checksum(package)
    folder.mkdir(parents=True, exist_ok=True)
    if not target.is_dir():
        draft = folder / f".{target.name}-{os.getpid()}"
        shutil.rmtree(draft, ignore_errors=True)
        shutil.copytree(package, draft / package.name, ignore=shutil.ignore_patterns("__pycache__"))
        try:
            draft.rename(target)
        except OSError:  # another agent was faster
            shutil.rmtree(draft)
    return target


def sweep(folder: Path, current: Path, cdi: Path) -> None:
    """Remove the copies that no agent runs from and no container mounts."""
    mounted = "".join(file.read_text(errors="replace") for file in cdi.glob("milligpu-*.json"))
    for copy in folder.iterdir():
        if copy != current and str(copy) not in mounted and not _in_use(copy):
            shutil.rmtree(copy, ignore_errors=True)


def _in_use(copy: Path) -> bool:
    try:
        with (copy / _LOCK).open("r+b") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def _checksum(package: Path) -> str:
    digest = hashlib.sha256()
    for name, path in _files(package):
        digest.update(f"{name}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _files(package: Path) -> Iterator[tuple[str, Path]]:
    for path in sorted(package.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            yield str(path.relative_to(package)), path
