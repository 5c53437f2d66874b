"""Recent measurements: those that a dashboard stored, or some that are taken now."""

from collections.abc import Callable, Mapping

import numpy as np

from milligpu.history.samples import HistoryLine, HistorySample, HistorySource, Level
from milligpu.status.picture import Picture
from milligpu.status.sampling import Sampler

# Verdicts look back this far.
ADVICE_S = 600.0


def recent_lines(history: HistorySource, at: float) -> Mapping[str, HistoryLine]:
    """The last minutes of all GPUs and shares, by key."""
    return {line.key: line for line in history.lines(Level.RAW, at - ADVICE_S)}


def measured_lines(
    read: Callable[[], Picture], seconds: float, step_s: float, sleep: Callable[[float], None]
) -> tuple[Picture, Mapping[str, HistoryLine]]:
    """Take pictures for some seconds; the last one, and what was measured."""
    sampler, found = Sampler(step_s), dict[str, list[tuple[int, HistorySample]]]()
    picture = read()
    begin = picture.at
    # The first picture has the counters from which the second is a rate.
    sampler.sample(picture)
    while picture.at - begin < seconds:
        sleep(step_s)
        picture = read()
        for key, sample in sampler.sample(picture).items():
            found.setdefault(key, []).append((int(picture.at), sample))
    return picture, {key: _line(key, samples) for key, samples in found.items()}


def _line(key: str, samples: list[tuple[int, HistorySample]]) -> HistoryLine:
    times = np.array([at for at, _ in samples], np.int64)
    rows = np.array([sample.row() for _, sample in samples], np.float32)
    return HistoryLine(key, samples[-1][1].labels, times, rows)
