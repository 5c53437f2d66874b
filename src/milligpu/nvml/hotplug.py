"""Notices GPUs that were added while NVML is open: NVML lists its GPUs once, when it is opened."""

import time
from collections.abc import Callable
from pathlib import Path

KERNEL_GPUS = Path("/proc/driver/nvidia/gpus")
"""The driver's kernel module has a directory here for each GPU, named by its bus address."""
# The kernel lists a GPU before it answers.
_AGAIN_S = 3.0
_TRIES = 20


class HotPlug:
    """Says when NVML should be opened again."""

    def __init__(self, folder: Path = KERNEL_GPUS, now: Callable[[], float] = time.monotonic) -> None:
        self._folder = folder
        self._now = now
        self._seen = self._look()
        self._tries = 0
        self._next = 0.0

    def due(self) -> bool:
        """Whether the kernel has GPUs that NVML, as far as is known, does not list."""
        found = self._look()
        if found - self._seen:
            self._tries, self._next = _TRIES, 0.0
        self._seen = found
        return self._tries > 0 and self._now() >= self._next

    def opened(self, listed: int) -> None:
        """NVML was opened again and lists so many GPUs."""
        self._tries = 0 if listed >= len(self._seen) else self._tries - 1
        self._next = self._now() + _AGAIN_S

    def _look(self) -> frozenset[str]:
        try:
            return frozenset(each.name for each in self._folder.iterdir())
        except OSError:  # the module is not loaded, or these are software GPUs
            return frozenset()
