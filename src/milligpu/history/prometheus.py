"""The history as a Prometheus that scrapes the agents has it: the same lines, without a file of our own."""

import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from milligpu.history.samples import (
    FIRST,
    GPU_FIELDS,
    PEAK,
    SECONDS,
    SHARE_FIELDS,
    UNKNOWN,
    WIDTH,
    HistoryLine,
    Level,
    Values,
)
from milligpu.model.errors import Unavailable

# Prometheus itself gives up on a query after two minutes; a page must not wait that long.
_TIMEOUT_S = 30.0
# Points of the finest level, and what a rate needs: two scrapes at the usual interval of up to a minute.
_RAW_STEP_S, _RATE_S = 15, 150
_GPU_QUERIES = {
    "used": "sum by (UUID) (rate({{__name__=~'milligpu_(container|session)_gpu_seconds_total'{also}}}[{window}]))"
    " or sum by (UUID) (avg_over_time(milligpu_gpu_utilization_ratio{which}[{window}]))",
    "allocated": "avg_over_time(milligpu_gpu_capacity_ratio{which}[{window}])"
    " - avg_over_time(milligpu_gpu_unallocated_ratio{which}[{window}])",
    "memory": "avg_over_time(milligpu_gpu_memory_used_bytes{which}[{window}])",
    "power": "avg_over_time(milligpu_gpu_power_watts{which}[{window}])",
    "temperature": "avg_over_time(milligpu_gpu_temperature_celsius{which}[{window}])",
    "throttled": "max by (UUID) (rate(milligpu_gpu_throttled_seconds_total{which}[{window}]))",
    "errors": "rate(milligpu_gpu_xid_errors_total{which}[{window}])",
}
_SHARE_QUERIES = {
    "used": "rate(milligpu_{holder}_gpu_seconds_total{which}[{window}])",
    "share": "avg_over_time(milligpu_{holder}_share_ratio{which}[{window}])",
    "memory": "avg_over_time(milligpu_{holder}_memory_used_bytes{which}[{window}])",
    "limit": "avg_over_time(milligpu_{holder}_limit_ratio{which}[{window}])",
    "waiting": "rate(milligpu_{holder}_waiting_seconds_total{which}[{window}])",
    "throttled": "rate(milligpu_{holder}_throttled_seconds_total{which}[{window}])",
    "refused": "rate(milligpu_{holder}_out_of_memory_total{which}[{window}])",
}
_LABELS = {
    "gpu": ("UUID",),
    "pod": ("namespace", "pod", "container", "UUID"),
    "session": ("session", "UUID"),
}
"""Of which the key of each kind of line is made."""
_Series = dict[str, tuple[dict[str, str], dict[int, float]]]
"""Labels, and values by time, by the key of the line."""


class PrometheusHistory:
    """Asks a Prometheus server; `now` tells until when."""

    def __init__(self, url: str, now: Callable[[], float]) -> None:
        self._url = url.rstrip("/")
        self._now = now

    @property
    def place(self) -> str:
        return self._url

    def size(self) -> int | None:
        """Nobody here knows how much Prometheus has stored."""
        return None

    def lines(self, level: Level, since: float, *, prefix: str = "") -> Iterator[HistoryLine]:
        """Read all GPUs and shares whose key has this beginning."""
        for kind in _LABELS:
            if prefix.startswith(f"{kind}/") or f"{kind}/".startswith(prefix):
                yield from (each for each in self._read(kind, {}, level, since) if each.key.startswith(prefix))

    def line(self, level: Level, since: float, key: str) -> HistoryLine | None:
        """Read one GPU or share; None if Prometheus does not know it."""
        kind, *parts = key.split("/")
        if kind not in _LABELS or len(parts) != len(_LABELS[kind]):
            return None
        which = dict(zip(_LABELS[kind], parts, strict=True))
        return next((line for line in self._read(kind, which, level, since) if line.key == key), None)

    def pieces(self, since: float, levels: Sequence[Level] = (Level.HOURS, Level.MINUTES)) -> Iterator[HistoryLine]:
        """Read each second once: whole hours, then the rest in minutes."""
        hour = self._now() // Level.HOURS.step_s * Level.HOURS.step_s
        if Level.HOURS in levels and since < hour:
            yield from self.lines(Level.HOURS, max(since, hour - Level.HOURS.kept_s))
        if Level.MINUTES in levels:
            yield from self.lines(Level.MINUTES, max(since, hour))

    def _read(self, kind: str, which: dict[str, str], level: Level, since: float) -> list[HistoryLine]:
        step = level.step_s or _RAW_STEP_S
        # Prometheus looks back from each of its times; a line's points begin at theirs.
        start, end = (since // step + 1) * step, self._now() // step * step
        if start > end:
            return []
        fields, queries = (GPU_FIELDS, _GPU_QUERIES) if kind == "gpu" else (SHARE_FIELDS, _SHARE_QUERIES)
        selector = ",".join(f"{name}={json.dumps(value)}" for name, value in which.items())
        words = {
            "holder": "container" if kind == "pod" else kind,
            "window": f"{max(step, _RATE_S)}s",
            "which": f"{{{selector}}}" if selector else "",
            "also": f",{selector}" if selector else "",
        }
        found = [self._series(kind, queries[name].format(**words), start, end, step) for name in fields]
        times = np.arange(int(start), int(end) + 1, step, dtype=np.int64)
        # What exists is what has a share, or what the agent says of the GPU: the second field.
        known = found[1].items()
        lines = [_line(key, labels, times, [each.get(key) for each in found], step) for key, (labels, _) in known]
        return [line for line in lines if len(line.times)]

    def _series(self, kind: str, query: str, start: float, end: float, step: int) -> _Series:
        parameters = {"query": query, "start": str(start), "end": str(end), "step": str(step)}
        made: _Series = {}
        for each in self._ask("query_range", parameters)["result"]:
            labels: dict[str, str] = each["metric"]
            key = "/".join([kind, *(labels.get(name, "") for name in _LABELS[kind])])
            made[key] = (labels, {int(at): float(value) for at, value in each["values"]})
        return made

    def _ask(self, path: str, parameters: dict[str, str]) -> Any:
        body = urllib.parse.urlencode(parameters).encode()
        try:
            with urllib.request.urlopen(f"{self._url}/api/v1/{path}", body, timeout=_TIMEOUT_S) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            with error:
                text = error.read(1000).decode(errors="replace")
            raise Unavailable(f"Prometheus at {self._url} answered {error.code}: {text}") from None
        except (OSError, ValueError, KeyError) as error:
            raise Unavailable(f"Prometheus at {self._url} does not answer: {error}") from None


def _line(
    key: str,
    labels: dict[str, str],
    times: NDArray[np.int64],
    columns: Sequence[tuple[dict[str, str], dict[int, float]] | None],
    step: int,
) -> HistoryLine:
    rows: Values = np.full((len(times), WIDTH), UNKNOWN, np.float32)
    rows[:, SECONDS] = step
    for place, column in enumerate(columns):
        if column is not None:
            rows[:, FIRST + place] = [column[1].get(int(at), UNKNOWN) for at in times]
    rows[:, PEAK] = rows[:, FIRST]
    # Before it began and after it ended there are no points, so that nobody pays for that time.
    there = ~np.isnan(rows[:, FIRST + 1])
    return HistoryLine(key, _people(labels), times[there] - step, rows[there])


def _people(labels: dict[str, str]) -> dict[str, str]:
    if "session" in labels:
        return {"owner": ""}
    if "namespace" in labels:
        return {"owner": labels["namespace"]}
    return {"model": labels.get("modelName", ""), "node": labels.get("Hostname", "")}
