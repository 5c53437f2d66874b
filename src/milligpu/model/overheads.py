"""What a GPU's driver takes for itself, and how it rounds. Measured once for each GPU model and driver version."""

from dataclasses import dataclass

from milligpu.model.units import BYTES_PER_MIB

# Every allocation takes a page of GPU memory at least; no driver is known to give more than 2 MiB at a time.
GRANULE_LEAST, GRANULE_MOST = 4096, 64 * BYTES_PER_MIB
# What NVIDIA's drivers do where nothing could be measured.
GRANULE_USUAL = 2 * BYTES_PER_MIB
# For a driver whose overhead could not be measured: code, printf buffers, stacks of kernels, alignment.
SLACK_USUAL = 64 * BYTES_PER_MIB


@dataclass(frozen=True, slots=True)
class GpuOverheads:
    """Bytes that a process takes on one GPU beside what it allocates."""

    context_bytes: int
    """An empty CUDA context."""
    granule_bytes: int = 0
    """The driver gives memory in multiples of this; 0: not known, counted in pages of 4 KiB."""
    slack_bytes: int = SLACK_USUAL
    """What the driver may count for an honest process beyond its usage page."""
