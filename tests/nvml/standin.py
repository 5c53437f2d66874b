"""A stand-in for NVIDIA's binding that answers as strictly as real drivers do, or in any way that a test wants."""

import importlib
import sys
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

real: Any = importlib.import_module("pynvml")
MIB = 1 << 20


class StrictNvml:
    """GPUs with a few links; every other question is answered NOT_SUPPORTED."""

    def __init__(self, gpus: int = 2, links: int = 6) -> None:
        self.count = gpus
        self.links = links
        self.answers: dict[tuple[str, int], Callable[[], Any]] = {}
        """What a function answers about a GPU, instead of the ordinary."""
        self.hang = threading.Event()
        """Set when calls that hang may return."""
        self.asked: list[str] = []

    def install(self, monkeypatch: pytest.MonkeyPatch) -> "StrictNvml":
        monkeypatch.setitem(sys.modules, "pynvml", self)
        return self

    def fails(self, function: str, gpu: int, code: int) -> None:
        def fail() -> Any:
            raise real.NVMLError(code)

        self.answers[function, gpu] = fail

    def hangs(self, function: str, gpu: int) -> None:
        def hang() -> Any:
            self.hang.wait(60)
            raise real.NVMLError(real.NVML_ERROR_TIMEOUT)

        self.answers[function, gpu] = hang

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("nvml") or name.startswith("nvmlEventType"):
            return getattr(real, name)

        def call(*arguments: Any) -> Any:
            return self._answer(name, arguments)

        call.__name__ = name
        return call

    def _answer(self, name: str, arguments: tuple[Any, ...]) -> Any:
        self.asked.append(name)
        gpu = arguments[0] if arguments and isinstance(arguments[0], int) else 0
        if (name, gpu) in self.answers:
            return self.answers[name, gpu]()
        ordinary: dict[str, Any] = {
            "nvmlInit": None,
            "nvmlShutdown": None,
            "nvmlDeviceGetCount": self.count,
            "nvmlDeviceGetHandleByIndex": gpu,
            "nvmlDeviceGetName": "Tesla V100-SXM2-16GB",
            "nvmlDeviceGetUUID": f"GPU-{gpu}",
            "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=16384 * MIB, used=0),
            "nvmlDeviceGetCudaComputeCapability": (7, 0),
            "nvmlDeviceGetMinorNumber": gpu,
            "nvmlDeviceGetTemperature": 40,
            "nvmlDeviceGetTopologyCommonAncestor": 30,
            "nvmlEventSetCreate": object(),
            "nvmlEventSetFree": None,
        }
        if name in ordinary:
            return ordinary[name]
        if name == "nvmlDeviceGetNvLinkState":
            if arguments[1] >= self.links:
                raise real.NVMLError(real.NVML_ERROR_INVALID_ARGUMENT)
            return 1
        raise real.NVMLError(real.NVML_ERROR_NOT_SUPPORTED)
