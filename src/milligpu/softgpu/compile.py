"""The compile service: compilers that stay resident, each in a process of its own.

LLVM ends its process on some inputs instead of reporting an error. In a process of its own that costs one module:
its client gets an error, and other clients are not affected.
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
from milligpu.softgpu.driver_wire import DriverStatus
from milligpu.softgpu.llvm.compiler import Compiler
from milligpu.softgpu.llvm.compiler import fingerprint as compiler_fingerprint
from milligpu.softgpu.ptx.errors import BadImage, BadPtx, NoPtx, UnsupportedVersion
from milligpu.softgpu.ptx.fatbin import is_fatbin, ptx_for

# Two, so that one long compilation does not block everyone; more would take CPU time from the kernels.
_COMPILERS = 2
# CPU seconds for a module, and for each 10,000 bytes of it. Ordinary modules take a tenth of the first; what takes
# longer is compiled again without optimization, which is linear. Both together are less than the 120 s after which
# a client gives up on its GPU.
_LIMITS = {False: (1.0, 0.5, 20.0), True: (4.0, 1.0, 60.0)}
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True)
class Compiled:
    """A module's machine code, or the reason why there is none."""

    status: DriverStatus
    log: str = ""
    descriptor: int = -1
    """Of the object file; the receiver closes it."""


class CompileService:
    """Compiles each module once, even if several clients ask for it at the same time."""

    def __init__(self, folder: Path, *, timed: bool = False) -> None:
        self._timed = timed
        self._cache = CompileCache(folder, f"{compiler_fingerprint()} {_source_digest()} timed={timed}")
        self._idle: asyncio.Queue[ProcessPoolExecutor] = asyncio.Queue()
        for _ in range(_COMPILERS):
            self._idle.put_nowait(_one_compiler())
        self._closed = False
        self._running: dict[str, asyncio.Task[tuple[DriverStatus, str]]] = {}
        self._descriptors: dict[str, int] = {}

    def warm_up(self) -> None:
        """Start the compilers now, so that the first module does not wait for them to start."""
        for _ in range(self._idle.qsize()):
            compiler = self._idle.get_nowait()
            compiler.submit(_compiler, self._timed)
            self._idle.put_nowait(compiler)

    async def compile(self, image: bytes, capability: tuple[int, int]) -> Compiled:
        """Return a module's code for a GPU, from the cache or freshly compiled; `image` is PTX or a fat binary."""
        # The capability only decides which PTX is taken out of a fat binary.
        key = self._cache.key(image + bytes(capability) if is_fatbin(image) else image)
        found = self._cache.open(key)
        if found is not None:
            return Compiled(DriverStatus.SUCCESS, descriptor=found)
        task = self._running.get(key)
        if task is None:
            task = self._running[key] = asyncio.create_task(self._make(key, image, capability))
        status, log = await asyncio.shield(task)
        if status is not DriverStatus.SUCCESS:
            return Compiled(status, log)
        found = self._cache.open(key)
        if found is None:
            return Compiled(DriverStatus.INVALID_PTX, "the compiled module is no longer in the cache")
        return Compiled(status, log, found)

    def close(self) -> None:
        """End the compilers, whatever they do: Python would wait for them when this process ends."""
        self._closed = True
        for process in multiprocessing.active_children():
            process.kill()

    async def _make(self, key: str, image: bytes, capability: tuple[int, int]) -> tuple[DriverStatus, str]:
        compiler = await self._idle.get()
        try:
            for simple in (False, True):
                try:
                    status, answer = await asyncio.get_running_loop().run_in_executor(
                        compiler, compile_in_time, image, capability, self._timed, simple
                    )
                    break
                except BrokenProcessPool:
                    compiler = _one_compiler()
                    if self._closed:
                        return DriverStatus.INVALID_PTX, "the GPU was stopped"
            else:
                return DriverStatus.INVALID_PTX, "the compiler crashed on this module, or took too long"
        finally:
            self._idle.put_nowait(compiler)
            del self._running[key]
        if isinstance(answer, bytes):
            os.close(self._cache.put(key, answer))
            return status, ""
        return status, answer


def _one_compiler() -> ProcessPoolExecutor:
    """A process of its own for each, so that the end of one fails no other module."""
    spawn = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(1, spawn, initializer=_die_with_parent, initargs=(os.getpid(),))


def _die_with_parent(parent: int) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent died while this process was starting
        os._exit(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)


@cache
def _compiler(timed: bool) -> Compiler:
    return Compiler(timed=timed)


def compile_in_time(
    image: bytes, capability: tuple[int, int], timed: bool, simple: bool
) -> tuple[DriverStatus, bytes | str]:
    """Compile, or end this process when the module has taken too much CPU time: LLVM cannot be interrupted."""
    compiler = _compiler(timed)
    least, more, most = _LIMITS[simple]
    signal.setitimer(signal.ITIMER_PROF, min(least + len(image) / 10_000 * more, most))
    try:
        return _translate(compiler, image, capability, simple)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def _translate(
    compiler: Compiler, image: bytes, capability: tuple[int, int], simple: bool
) -> tuple[DriverStatus, bytes | str]:
    try:
        ptx = ptx_for(image, capability) if is_fatbin(image) else image
        text = ptx.decode("ascii")
    except NoPtx as error:
        return DriverStatus.NO_BINARY_FOR_GPU, error.message
    except BadImage as error:
        return DriverStatus.INVALID_IMAGE, error.message
    except UnicodeDecodeError as error:
        return DriverStatus.INVALID_PTX, f"ptxas: invalid character at byte {error.start}"
    try:
        return DriverStatus.SUCCESS, compiler.compile(text, simple=simple)
    except UnsupportedVersion as error:
        return DriverStatus.UNSUPPORTED_PTX_VERSION, f"ptxas: {error.message}"
    except BadPtx as error:
        return DriverStatus.INVALID_PTX, f"ptxas: {error.message}"
    except Exception as error:
        # An error in our translator fails this module, not the GPU; the log has the traceback.
        logging.getLogger(__name__).exception("Could not translate a PTX module")
        return DriverStatus.INVALID_PTX, f"ptxas: internal error: {type(error).__name__}: {error}"


def _source_digest() -> str:
    """Hash the translator's own source, so that a changed translator does not reuse old results."""
    digest = hashlib.sha256()
    folder = Path(__file__).parent
    for name in ("ptx", "llvm"):
        for path in sorted((folder / name).glob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()
