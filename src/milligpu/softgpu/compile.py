"""The compile service: resident compilers in processes of their own.

A process per compiler, because LLVM ends its process on some inputs instead of reporting them; a client then gets
an error for that module, and everybody else goes on.
"""

import asyncio
import ctypes
import hashlib
import logging
import multiprocessing
import os
import signal
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from milligpu.softgpu.cache import CompileCache
from milligpu.softgpu.llvm.compiler import Compiler
from milligpu.softgpu.llvm.compiler import fingerprint as compiler_fingerprint
from milligpu.softgpu.ptx.errors import BadImage, BadPtx, NoPtx, UnsupportedVersion
from milligpu.softgpu.ptx.fatbin import is_fatbin, ptx_for
from milligpu.softgpu.wire import Status

# Two: one long compilation must not hold up everybody, and more would take the CPUs from the kernels themselves.
_COMPILERS = 2
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True)
class Compiled:
    """A module's machine code, or why there is none."""

    status: Status
    log: str = ""
    descriptor: int = -1
    """Of the object file; whoever receives this closes it."""


class CompileService:
    """Compiles each module once, however many ask for it at the same time."""

    def __init__(self, folder: Path, *, timed: bool = False) -> None:
        self._timed = timed
        self._cache = CompileCache(folder, f"{compiler_fingerprint()} {_source_digest()} timed={timed}")
        self._pool = _pool()
        self._running: dict[str, asyncio.Task[tuple[Status, str]]] = {}
        self._descriptors: dict[str, int] = {}

    def warm_up(self) -> None:
        """Start the compilers now, so that the first module does not wait for them."""
        self._pool.submit(_compiler, self._timed)

    async def compile(self, image: bytes, capability: tuple[int, int]) -> Compiled:
        """The code of a module, text or a fat binary, for a card: from the cache, or made now."""
        # Only what is taken out of a container depends on the card.
        key = self._cache.key(image + bytes(capability) if is_fatbin(image) else image)
        found = self._cache.open(key)
        if found is not None:
            return Compiled(Status.SUCCESS, descriptor=found)
        task = self._running.get(key)
        if task is None:
            task = self._running[key] = asyncio.create_task(self._make(key, image, capability))
        status, log = await asyncio.shield(task)
        if status is not Status.SUCCESS:
            return Compiled(status, log)
        found = self._cache.open(key)
        if found is None:
            return Compiled(Status.INVALID_PTX, "the compile cache lost the module")
        return Compiled(status, log, found)

    def close(self) -> None:
        """End the compilers."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def _make(self, key: str, image: bytes, capability: tuple[int, int]) -> tuple[Status, str]:
        try:
            status, answer = await asyncio.get_running_loop().run_in_executor(
                self._pool, _compile, image, capability, self._timed
            )
        except BrokenProcessPool:
            self._pool = _pool()
            return Status.INVALID_PTX, "the compiler failed on this module"
        finally:
            del self._running[key]
        if isinstance(answer, bytes):
            os.close(self._cache.put(key, answer))
            return status, ""
        return status, answer


def _pool() -> ProcessPoolExecutor:
    spawn = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(_COMPILERS, spawn, initializer=_die_with_parent, initargs=(os.getpid(),))


def _die_with_parent(parent: int) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died while this process was starting
        os._exit(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)


@cache
def _compiler(timed: bool) -> Compiler:
    return Compiler(timed=timed)


def _compile(image: bytes, capability: tuple[int, int], timed: bool) -> tuple[Status, bytes | str]:
    try:
        ptx = ptx_for(image, capability) if is_fatbin(image) else image
        text = ptx.decode("ascii")
    except NoPtx as error:
        return Status.NO_BINARY_FOR_GPU, error.message
    except BadImage as error:
        return Status.INVALID_IMAGE, error.message
    except UnicodeDecodeError as error:
        return Status.INVALID_PTX, f"ptxas: not text at byte {error.start}"
    try:
        return Status.SUCCESS, _compiler(timed).compile(text)
    except UnsupportedVersion as error:
        return Status.UNSUPPORTED_PTX_VERSION, f"ptxas: {error.message}"
    except BadPtx as error:
        return Status.INVALID_PTX, f"ptxas: {error.message}"
    except Exception as error:
        # A fault of ours costs this module, not the card; the log says whose fault it was.
        logging.getLogger(__name__).exception("the translation of a module failed")
        return Status.INVALID_PTX, f"ptxas: internal error: {type(error).__name__}: {error}"


def _source_digest() -> str:
    """Of the translator's own source: a changed translation must not find the old one's results."""
    digest = hashlib.sha256()
    folder = Path(__file__).parent
    for name in ("ptx", "llvm"):
        for path in sorted((folder / name).glob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()
