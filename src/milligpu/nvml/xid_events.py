"""XIDs as the driver reports them: NVML's events, for a thread that waits for them."""

import ctypes
import time
from contextlib import suppress
from typing import Any

from milligpu.model.errors import Unavailable
from milligpu.nvml.gpus import NvmlGpus
from milligpu.nvml.readings import XidEvent


class XidEvents:
    """Waits for XIDs of all GPUs. A lost GPU leaves the event set and joins it again when it is back."""

    def __init__(self, gpus: NvmlGpus) -> None:
        self._gpus = gpus
        self._api = gpus.nvml.api
        self._set: Any = self._create()
        self._joined: set[str] = set()

    def _create(self) -> Any:
        try:
            return self._api.nvmlEventSetCreate()
        except self._api.NVMLError as error:
            raise Unavailable(f"NVML events: {error}") from None

    def close(self) -> None:
        """Free the event set."""
        with suppress(self._api.NVMLError):
            self._api.nvmlEventSetFree(self._set)

    def wait(self, seconds: float) -> XidEvent | None:
        """Wait for the next XID; None if there was none in this time, or a GPU was lost."""
        self._join()
        try:
            data = self._api.nvmlEventSetWait_v2(self._set, int(seconds * 1000))
        except self._api.NVMLError as error:
            if error.value == self._api.NVML_ERROR_TIMEOUT:
                return None
            if error.value in (self._api.NVML_ERROR_GPU_IS_LOST, self._api.NVML_ERROR_UNKNOWN):
                self._start_again(seconds)
                return None
            raise Unavailable(f"NVML events: {error}") from None
        return XidEvent(self._name(data.device), data.eventData)

    def _join(self) -> None:
        # An old GPU without events is monitored by its readings alone.
        joined = self._gpus.ask_each(
            "events",
            lambda handle: self._gpus.nvml.ask(
                "nvmlDeviceRegisterEvents", handle, self._api.nvmlEventTypeXidCriticalError, self._set
            ),
            self._joined,
        )
        self._joined |= joined.keys()

    def _start_again(self, seconds: float) -> None:
        """Make the event set again: with a lost GPU in it, it reports nothing about the others.

        The new one may fail in the same way at once, so this takes as long as waiting would have.
        """
        self.close()
        self._set = self._create()
        self._joined.clear()
        self._join()
        time.sleep(seconds)

    def _name(self, device: Any) -> str:
        """Return the address in a handle: NVML returns new handle objects for the same GPU."""
        address = _address(device)
        return next((uuid for uuid, each in self._gpus.handles().items() if _address(each) == address), "")


def _address(handle: Any) -> int:
    return ctypes.cast(handle, ctypes.c_void_p).value or 0
