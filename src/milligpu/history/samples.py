"""One measurement of one GPU or share, and averages of several. Pure. NaN is unknown, which is not 0."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

Values: TypeAlias = NDArray[np.float32]
UNKNOWN = float("nan")

GPU_FIELDS = ("used", "allocated", "memory", "power", "temperature", "throttled", "errors")
"""Fractions of the GPU's card, bytes, watts, degrees Celsius, the fraction of the time with reduced clocks, and
XIDs per second."""
SHARE_FIELDS = ("used", "share", "memory", "limit", "waiting", "throttled", "refused")
"""Fractions of a card, bytes; `waiting` and `throttled` of the time; refused allocations per second."""
_EXTRA = ("seconds", "peak")
WIDTH = len(_EXTRA) + len(GPU_FIELDS)
SECONDS, PEAK, FIRST = 0, 1, 2
assert len(GPU_FIELDS) == len(SHARE_FIELDS)


class Level(Enum):
    """How fine a part of the history is: the seconds of one point, and how long points are kept."""

    RAW = (0, 0, 3600)
    MINUTES = (1, 60, 24 * 3600)
    HOURS = (2, 3600, 90 * 24 * 3600)

    def __init__(self, number: int, step_s: int, kept_s: int) -> None:
        self.number = number
        self.step_s = step_s
        self.kept_s = kept_s


@dataclass(frozen=True, slots=True)
class HistorySample:
    """What was measured of one GPU or share over some seconds."""

    seconds: float
    values: tuple[float, ...]
    """In the order of `GPU_FIELDS` or `SHARE_FIELDS`."""
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    """What identifies the thing to people later, such as its model or its user; the latest ones count."""

    def row(self) -> tuple[float, ...]:
        """The numbers as a block stores them."""
        return (self.seconds, self.values[0], *self.values)


@dataclass(frozen=True, slots=True)
class HistoryLine:
    """The points of one GPU or share, oldest first."""

    key: str
    labels: Mapping[str, str]
    times: NDArray[np.int64]
    rows: Values
    """One row per time, `WIDTH` wide."""

    @property
    def seconds(self) -> Values:
        """How many seconds each point covers."""
        return self.rows[:, SECONDS]

    @property
    def peak(self) -> Values:
        """The largest `used` inside each point."""
        return self.rows[:, PEAK]

    def values(self, name: str) -> Values:
        """The column of a field of this kind of thing."""
        fields = GPU_FIELDS if self.key.startswith("gpu/") else SHARE_FIELDS
        return self.rows[:, FIRST + fields.index(name)]


class HistorySource(Protocol):
    """Where lines are read: our own file, or a Prometheus."""

    @property
    def place(self) -> str:
        """What people call it."""
        ...

    def size(self) -> int | None:
        """Bytes on the disk; None if that is not ours to know."""
        ...

    def lines(self, level: Level, since: float, *, prefix: str = "") -> Iterator[HistoryLine]:
        """Read all lines whose key has this beginning and that have points."""
        ...

    def line(self, level: Level, since: float, key: str) -> HistoryLine | None:
        """Read one line; None if it has no points."""
        ...

    def pieces(self, since: float, levels: Sequence[Level] = ...) -> Iterator[HistoryLine]:
        """Read each second once; a line may come in several pieces."""
        ...


def average(ids: NDArray[np.uint8], rows: Values) -> tuple[NDArray[np.uint8], Values]:
    """Average the rows of each ID, weighted by the seconds that each covers; unknown values do not count."""
    found, where = np.unique(ids, return_inverse=True)
    seconds = rows[:, SECONDS].astype(np.float64)
    made = np.full((len(found), WIDTH), UNKNOWN, np.float64)
    made[:, SECONDS] = np.bincount(where, seconds, len(found))
    peaks = np.full(len(found), -np.inf)
    np.maximum.at(peaks, where, np.nan_to_num(rows[:, PEAK], nan=-np.inf))
    made[:, PEAK] = np.where(np.isfinite(peaks), peaks, UNKNOWN)
    for column in range(FIRST, WIDTH):
        values = rows[:, column].astype(np.float64)
        known = ~np.isnan(values)
        weight = np.bincount(where[known], seconds[known], len(found))
        total = np.bincount(where[known], seconds[known] * values[known], len(found))
        made[:, column] = np.divide(total, weight, out=np.full(len(found), UNKNOWN), where=weight > 0)
    return found.astype(np.uint8), made.astype(np.float32)


def encode_block(ids: NDArray[Any], rows: Values) -> bytes:
    """Write the rows of up to 256 lines at one time."""
    return bytes([len(ids) - 1]) + ids.astype(np.uint8).tobytes() + rows.astype("<f4").tobytes()


def decode_block(block: bytes) -> tuple[NDArray[np.uint8], Values]:
    """Read what `encode_block` wrote; columns that an older version did not have are unknown."""
    count = block[0] + 1
    ids = np.frombuffer(block, np.uint8, count, 1)
    rows = np.frombuffer(block, "<f4", -1, 1 + count).reshape(count, -1)
    if rows.shape[1] < WIDTH:
        rows = np.pad(rows, ((0, 0), (0, WIDTH - rows.shape[1])), constant_values=np.float32(UNKNOWN))
    return ids, rows
