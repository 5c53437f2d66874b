"""NVML, opened once and called with types: the only module that imports NVIDIA's binding."""

import ctypes
import importlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NewType

from milligpu.model.errors import Unavailable
from milligpu.nvml.patience import PatientCalls

Handle = NewType("Handle", object)

# Without persistence mode the driver wakes up every GPU first, which takes a few seconds each.
_OPEN_S = 60.0


class GpuLostError(Exception):
    """The GPU does not answer as it should; the text says how; empty if it has fallen off the bus."""


class Nvml:
    """An open NVML. `ask` returns None if the GPU or the driver does not report the value."""

    def __init__(self, library: Path | None = None) -> None:
        """`library` is the driver's file; without it, the loader finds one by name."""
        if library is not None:
            try:
                # A library that is loaded under its name is found before all others.
                ctypes.CDLL(str(library), ctypes.RTLD_GLOBAL)
            except OSError as error:
                raise Unavailable(f"could not load {library}: {error}") from None
        try:
            self.api: Any = importlib.import_module("pynvml")
        except ImportError:
            raise Unavailable("NVIDIA's NVML binding is missing", hint="pip install 'milligpu[node]'") from None
        self._absent = (
            self.api.NVML_ERROR_NOT_SUPPORTED,
            self.api.NVML_ERROR_FUNCTION_NOT_FOUND,
            self.api.NVML_ERROR_NOT_FOUND,
            self.api.NVML_ERROR_NO_PERMISSION,
            self.api.NVML_ERROR_NO_DATA,
            self.api.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
            # Real drivers answer this about what a GPU does not have, such as its 13th NVLink.
            self.api.NVML_ERROR_INVALID_ARGUMENT,
        )
        self._open()

    def _open(self) -> None:
        try:
            PatientCalls(_OPEN_S).one("nvmlInit", self.api.nvmlInit)
        except TimeoutError:
            raise Unavailable(
                f"NVML could not be initialized for {_OPEN_S:g} s", hint="look at: dmesg; nvidia-smi"
            ) from None
        except self.api.NVMLError as error:
            raise Unavailable(
                f"could not initialize NVML: {error}",
                hint="install NVIDIA's driver, or try the software GPU: milligpu softgpu up",
            ) from None

    def reopen(self) -> None:
        """Let NVML look for GPUs again. All handles become invalid, so nobody else may call it meanwhile."""
        with suppress(self.api.NVMLError):  # it is closed if it could not be opened again last time
            self.api.nvmlShutdown()
        self._open()

    def close(self) -> None:
        """Shut NVML down. The process is done with it, so it does not matter if that fails."""
        with suppress(self.api.NVMLError):
            self.api.nvmlShutdown()

    def count(self) -> int:
        """Return the number of GPUs, lost ones included."""
        try:
            return self.api.nvmlDeviceGetCount()
        except self.api.NVMLError as error:
            raise Unavailable(f"NVML: {error}") from None

    def handle(self, index: int) -> Handle:
        """Return the handle of a GPU; raise `GpuLostError` if it is lost."""
        return self._call(self.api.nvmlDeviceGetHandleByIndex, index)

    def ask(self, function: str, *arguments: Any) -> Any:
        """Call an NVML function by name; None if it reports no value. Raise `GpuLostError` if the GPU is lost."""
        call: Callable[..., Any] | None = getattr(self.api, function, None)
        return None if call is None else self._call(call, *arguments)

    def lacks(self, function: str, *arguments: Any) -> bool:
        """Whether the GPU has nothing for this function to report, rather than keeping it from this process."""
        try:
            getattr(self.api, function)(*arguments)
        except self.api.NVMLError as error:
            return error.value == self.api.NVML_ERROR_NOT_SUPPORTED
        return False

    def try_ask(self, function: str, *arguments: Any) -> Any:
        """Ask as `ask` does, for what only people look at: None, too, where NVML answers something unexpected."""
        try:
            return self.ask(function, *arguments)
        except GpuLostError as error:
            if not str(error):
                raise
            return None

    def ask_system(self, function: str) -> Any:
        """Ask something that is not about a GPU; None where NVML does not answer it, for whatever reason."""
        with suppress(GpuLostError):
            return self.ask(function)
        return None

    def _call(self, call: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return call(*arguments)
        except self.api.NVMLLibraryMismatchError:  # the driver is older than the binding and lacks this version
            return None
        except self.api.NVMLError as error:
            if error.value in self._absent:
                return None
            if error.value in (self.api.NVML_ERROR_GPU_IS_LOST, self.api.NVML_ERROR_RESET_REQUIRED):
                raise GpuLostError from None
            if error.value == self.api.NVML_ERROR_UNKNOWN:  # what some drivers return for a lost GPU
                raise GpuLostError from None
            # Nothing is known about the GPU, so it must not be given out; other GPUs are not affected.
            raise GpuLostError(f"{getattr(call, '__name__', 'NVML')} answers: {error}") from None
