"""The history keeps what was measured, averages it, stays within its size, and survives whatever kills it."""

import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from milligpu.history.samples import UNKNOWN, HistorySample, Level
from milligpu.history.store import HistoryReader, HistoryStore

BEGIN = 1_800_000_000 // 3600 * 3600
NAN = float("nan")


def sample(used: float, *, seconds: float = 10.0, owner: str = "") -> HistorySample:
    return HistorySample(seconds, (used, 0.5, 100.0, 1.0, UNKNOWN, UNKNOWN, 2.0), {"owner": owner})


@pytest.fixture
def store(tmp_path: Path) -> HistoryStore:
    return HistoryStore(tmp_path / "history.db", now=lambda: BEGIN)


def test_samples_are_read_as_they_were_added_and_unknown_is_not_zero(store: HistoryStore) -> None:
    store.add(BEGIN, {"pod/a/b/c/GPU-1": sample(0.25, owner="a")})
    store.add(BEGIN + 10, {"pod/a/b/c/GPU-1": sample(0.5, owner="a"), "gpu/GPU-1": sample(0.75)})
    line = HistoryReader(store.path).line(Level.RAW, BEGIN, "pod/a/b/c/GPU-1")
    assert line is not None
    assert line.labels == {"owner": "a"}
    assert line.times.tolist() == [BEGIN, BEGIN + 10]
    assert line.values("used").tolist() == [0.25, 0.5]
    assert np.isnan(line.values("waiting")).all()
    assert [each.key for each in HistoryReader(store.path).lines(Level.RAW, BEGIN, prefix="gpu/")] == ["gpu/GPU-1"]


def test_minutes_and_hours_are_averages_weighted_by_time_with_the_peak(store: HistoryStore) -> None:
    for second in range(0, 3700, 10):
        store.add(BEGIN + second, {"gpu/GPU-1": sample(1.0 if second % 60 == 0 else 0.4)})
    reader = HistoryReader(store.path)
    minutes = reader.line(Level.MINUTES, BEGIN, "gpu/GPU-1")
    hours = reader.line(Level.HOURS, BEGIN, "gpu/GPU-1")
    assert minutes is not None
    assert hours is not None
    assert len(minutes.times) == 61
    assert minutes.values("used")[0] == pytest.approx((1.0 + 5 * 0.4) / 6)
    assert minutes.peak[0] == 1.0
    assert minutes.seconds[0] == 60
    assert hours.times.tolist() == [BEGIN]
    assert hours.seconds[0] == 3600
    assert hours.values("used")[0] == pytest.approx(0.5)
    assert np.isnan(hours.values("temperature")[0])


def test_everything_counts_each_second_once(store: HistoryStore) -> None:
    for second in range(0, 3600 * 2 + 600, 10):
        store.add(BEGIN + second, {"gpu/GPU-1": sample(0.5)})
    pieces = list(HistoryReader(store.path).pieces(BEGIN))
    assert sum(line.seconds.sum() for line in pieces) == 3600 * 2 + 600
    times = np.concatenate([line.times for line in pieces])
    assert (times[1:] > times[:-1]).all()


def test_a_history_of_the_version_before_is_read_and_gets_the_new_columns(store: HistoryStore) -> None:
    store.add(BEGIN, {"gpu/GPU-1": sample(0.25)})
    store.close()
    with sqlite3.connect(store.path) as db:
        (data,) = db.execute("SELECT data FROM block").fetchone()
        db.execute("UPDATE block SET data = ?", (data[:-4],))
        db.execute("PRAGMA user_version = 1")
    db.close()
    again = HistoryStore(store.path, now=lambda: BEGIN)
    again.add(BEGIN + 10, {"gpu/GPU-1": sample(0.5)})
    line = HistoryReader(store.path).line(Level.RAW, BEGIN, "gpu/GPU-1")
    assert line is not None
    assert line.values("used").tolist() == [0.25, 0.5]
    assert np.isnan(line.values("errors")[0])
    assert line.values("errors")[1] == 2.0


def test_old_points_are_forgotten_level_by_level(store: HistoryStore) -> None:
    store.add(BEGIN, {"gpu/GPU-1": sample(0.5)})
    store.add(BEGIN + 60, {"gpu/GPU-1": sample(0.5)})
    store.add(BEGIN + 2 * 3600, {"gpu/GPU-1": sample(0.5)})
    reader = HistoryReader(store.path)
    raw = reader.line(Level.RAW, BEGIN, "gpu/GPU-1")
    minutes = reader.line(Level.MINUTES, BEGIN, "gpu/GPU-1")
    assert raw is not None
    assert minutes is not None
    assert raw.times.tolist() == [BEGIN + 2 * 3600]
    assert minutes.times.tolist() == [BEGIN, BEGIN + 60]


def test_the_file_stays_within_its_size(tmp_path: Path) -> None:
    limit = 2 << 20
    store = HistoryStore(tmp_path / "history.db", size_max=limit, now=lambda: BEGIN)
    for tick in range(300):
        store.add(BEGIN + 10 * tick, {f"gpu/GPU-{number}": sample(0.5) for number in range(600)})
    store.close()
    assert (tmp_path / "history.db").stat().st_size <= limit
    newest = HistoryReader(store.path).line(Level.RAW, BEGIN, "gpu/GPU-1")
    assert newest is not None
    assert newest.times[-1] == BEGIN + 2990


def test_a_corrupt_file_is_set_aside_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "history.db"
    path.write_bytes(b"this is no database" * 500)
    store = HistoryStore(path, now=lambda: BEGIN)
    store.add(BEGIN, {"gpu/GPU-1": sample(0.5)})
    assert HistoryReader(path).line(Level.RAW, BEGIN, "gpu/GPU-1") is not None
    assert [each.name for each in tmp_path.glob("*.corrupt-*")] == [f"history.db.corrupt-{BEGIN}"]
    assert "set aside" in caplog.text


def test_a_file_that_is_damaged_in_the_middle_is_set_aside(tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    store = HistoryStore(path, now=lambda: BEGIN)
    for tick in range(50):
        store.add(BEGIN + 10 * tick, {f"gpu/GPU-{number}": sample(0.5) for number in range(300)})
    store.close()
    data = bytearray(path.read_bytes())
    data[4096:] = os.urandom(len(data) - 4096)
    path.write_bytes(data)
    again = HistoryStore(path, now=lambda: BEGIN)
    again.add(BEGIN + 1000, {"gpu/GPU-1": sample(0.5)})
    assert list(tmp_path.glob("*.corrupt-*"))
    assert HistoryReader(path).line(Level.RAW, BEGIN, "gpu/GPU-1") is not None


KILLED = """
import sys
from pathlib import Path
from milligpu.history.samples import HistorySample
from milligpu.history.store import HistoryStore
store = HistoryStore(Path(sys.argv[1]), now=lambda: int(sys.argv[2]))
for tick in range(10**9):
    samples = {f"gpu/GPU-{n}": HistorySample(1.0, (0.5,) * 7) for n in range(300)}
    store.add(int(sys.argv[2]) + tick, samples)
    print(tick, flush=True)
"""


def test_a_writer_that_was_killed_loses_nothing_that_it_had_stored(tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    seen, at = 0, BEGIN
    for _ in range(3):
        writer = subprocess.Popen(
            [sys.executable, "-c", KILLED, str(path), str(at)], stdout=subprocess.PIPE, text=True
        )
        assert writer.stdout is not None
        last = [int(writer.stdout.readline()) for _ in range(20)][-1]
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        writer.stdout.close()
        line = HistoryReader(path).line(Level.RAW, BEGIN, "gpu/GPU-7")
        assert line is not None
        assert len(line.times) >= seen + last + 1
        seen, at = len(line.times), int(line.times[-1]) + 1
    with sqlite3.connect(path) as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    db.close()
    assert not list(tmp_path.glob("*.corrupt-*"))
