"""NVML, opened once and asked with types: the only module that knows NVIDIA's binding."""

import importlib
from collections.abc import Callable
from typing import Any, NewType

from milligpu.model.errors import Unavailable

Handle = NewType("Handle", object)


class GpuLost(Exception):
    """The card has fallen off; nothing can be asked of it until it is back."""


class Nvml:
    """An open NVML. Every `ask` answers None where the card or the driver has no answer."""

    def __init__(self) -> None:
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
        )
        try:
            self.api.nvmlInit()
        except self.api.NVMLError as error:
            raise Unavailable(
                f"no GPU driver answers: {error}",
                hint="install NVIDIA's driver, or try the software GPU: milligpu softgpu up",
            ) from None

    def close(self) -> None:
        """Let go of it."""
        self.api.nvmlShutdown()

    def count(self) -> int:
        """How many cards there are, lost ones included."""
        return self.api.nvmlDeviceGetCount()

    def handle(self, index: int) -> Handle:
        """One card, or GpuLost."""
        return self._call(self.api.nvmlDeviceGetHandleByIndex, index)

    def ask(self, function: str, *arguments: Any) -> Any:
        """The answer of the NVML function of this name, None if there is none, or GpuLost."""
        call: Callable[..., Any] | None = getattr(self.api, function, None)
        return None if call is None else self._call(call, *arguments)

    def _call(self, call: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return call(*arguments)
        except self.api.NVMLError as error:
            if error.value in self._absent:
                return None
            if error.value in (self.api.NVML_ERROR_GPU_IS_LOST, self.api.NVML_ERROR_RESET_REQUIRED):
                raise GpuLost from None
            if error.value == self.api.NVML_ERROR_UNKNOWN:  # what some drivers say of a card that is gone
                raise GpuLost from None
            raise Unavailable(f"NVML: {error}") from None
