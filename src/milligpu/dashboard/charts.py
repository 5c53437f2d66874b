"""Lines of the history as the charts need them: one list of times, one list of numbers per line and field."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from milligpu.history.samples import GPU_FIELDS, SHARE_FIELDS, HistoryLine, HistorySource, Level

ALL = "all"
"""The key that stands for all GPUs together."""


@dataclass(frozen=True, slots=True)
class ChartLine:
    """One thing's fields over the chart's times; null is unknown."""

    key: str
    fields: dict[str, list[float | None]]


@dataclass(frozen=True, slots=True)
class Chart:
    """What a chart draws."""

    times: list[int]
    lines: list[ChartLine]


def chart(history: HistorySource, level: Level, since: float, keys: Sequence[str]) -> Chart:
    """Read the lines of these keys and put them on common times."""
    found = [line for key in keys if key != ALL and (line := history.line(level, since, key)) is not None]
    if ALL in keys:
        found.append(_together(list(history.lines(level, since, prefix="gpu/"))))
    times = np.unique(np.concatenate([line.times for line in found])) if found else np.empty(0, np.int64)
    return Chart([int(each) for each in times], [_on(times, line) for line in found])


def _on(times: "np.ndarray[tuple[int], np.dtype[np.int64]]", line: HistoryLine) -> ChartLine:
    where = np.searchsorted(times, line.times)
    fields = SHARE_FIELDS if line.key.startswith(("pod/", "session/")) else GPU_FIELDS
    made: dict[str, list[float | None]] = {}
    for name in fields:
        values = np.full(len(times), np.nan)
        values[where] = line.values(name)
        made[name] = [None if np.isnan(each) else round(float(each), 4) for each in values]
    return ChartLine(line.key, made)


def _together(lines: list[HistoryLine]) -> HistoryLine:
    """The sum of all GPUs at each time."""
    if not lines:
        return HistoryLine("gpu/all", {}, np.empty(0, np.int64), np.empty((0, 2 + len(GPU_FIELDS)), np.float32))
    times = np.concatenate([line.times for line in lines])
    rows = np.concatenate([line.rows for line in lines])
    found, where = np.unique(times, return_inverse=True)
    total = np.zeros((len(found), rows.shape[1]))
    np.add.at(total, where, np.nan_to_num(rows))
    unknown = np.ones((len(found), rows.shape[1]), bool)
    np.logical_and.at(unknown, where, np.isnan(rows))
    total[unknown] = np.nan
    return HistoryLine("gpu/all", {}, found, total.astype(np.float32))
