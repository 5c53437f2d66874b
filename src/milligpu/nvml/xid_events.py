"""XIDs as they happen: NVML's events, for a thread that waits for them."""

import ctypes
from typing import Any

from milligpu.devices.cards import Cards
from milligpu.devices.nvml import GpuLost
from milligpu.devices.reading import XidEvent
from milligpu.model.errors import Unavailable


class XidEvents:
    """Waits for errors of all cards. A lost card leaves the set and joins again when it is back."""

    def __init__(self, cards: Cards) -> None:
        self._cards = cards
        self._api = cards.nvml.api
        self._set: Any = self._api.nvmlEventSetCreate()
        self._joined: set[str] = set()

    def close(self) -> None:
        """Wait no more."""
        self._api.nvmlEventSetFree(self._set)

    def wait(self, seconds: float) -> XidEvent | None:
        """The next error, or None when there was none for so long, or a card was lost."""
        self._join()
        try:
            data = self._api.nvmlEventSetWait_v2(self._set, int(seconds * 1000))
        except self._api.NVMLError as error:
            if error.value == self._api.NVML_ERROR_TIMEOUT:
                return None
            if error.value in (self._api.NVML_ERROR_GPU_IS_LOST, self._api.NVML_ERROR_UNKNOWN):
                self._start_again()
                return None
            raise Unavailable(f"NVML events: {error}") from None
        return XidEvent(self._name(data.device), data.eventData)

    def _join(self) -> None:
        for uuid, handle in self._cards.handles().items():
            if uuid in self._joined:
                continue
            try:
                # An old card without events is watched by its readings alone.
                self._cards.nvml.ask(
                    "nvmlDeviceRegisterEvents", handle, self._api.nvmlEventTypeXidCriticalError, self._set
                )
            except GpuLost:
                continue
            self._joined.add(uuid)

    def _start_again(self) -> None:
        """A set with a lost card in it tells nothing of the others."""
        self._api.nvmlEventSetFree(self._set)
        self._set = self._api.nvmlEventSetCreate()
        self._joined.clear()

    def _name(self, device: Any) -> str:
        """NVML gives a new handle object for the card; the address in it is the same."""
        address = _address(device)
        return next((uuid for uuid, each in self._cards.handles().items() if _address(each) == address), "")


def _address(handle: Any) -> int:
    return ctypes.cast(handle, ctypes.c_void_p).value or 0
