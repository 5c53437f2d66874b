"""The history as one SQLite file: written by one process, read by any.

All lines of one time are stored in blocks of 256 lines, so that a tick of 25,000 lines writes a hundred rows. Times
that are complete are averaged into minutes, and minutes into hours, from what is in the file: a process that was
killed goes on where the file ends.
"""

import json
import logging
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from milligpu.history.samples import (
    HistoryLine,
    HistorySample,
    Level,
    Values,
    average,
    decode_block,
    encode_block,
)

_log = logging.getLogger(__name__)

SIZE_MAX = 4 << 30
"""Bytes. 5,000 GPUs and 20,000 shares need 3.5 GiB when 90 days are full of hours (`bench/history.py`), and
100 GPUs with 400 shares a fiftieth of that."""
_VERSION = 2
_OLDER = (1,)
"""Versions that this program reads and goes on with: their blocks have fewer columns."""
_GROUP = 256
FINER = (Level.HOURS, Level.MINUTES, Level.RAW)
_PAGE = 4096
_SCHEMA = f"""
CREATE TABLE line (id INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, labels TEXT NOT NULL, last INTEGER NOT NULL);
CREATE TABLE block (
    level INTEGER NOT NULL, part INTEGER NOT NULL, at INTEGER NOT NULL, data BLOB NOT NULL,
    PRIMARY KEY (level, part, at)
) WITHOUT ROWID;
CREATE INDEX block_time ON block (level, at);
PRAGMA user_version = {_VERSION};
"""


class HistoryStore:
    """Adds samples; the one writer of the file."""

    def __init__(self, path: Path, *, size_max: int = SIZE_MAX, now: Callable[[], float] = time.time) -> None:
        self.path = path
        self._size_max = size_max
        self._now = now
        self._lock = Lock()
        self._ids: dict[str, tuple[int, Mapping[str, str]]] = {}
        self._db = self._open()

    def _open(self) -> sqlite3.Connection:
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        try:
            return self._connect()
        except sqlite3.DatabaseError as error:
            self._set_aside(error)
            return self._connect()

    def _connect(self) -> sqlite3.Connection:
        db = sqlite3.connect(self.path, check_same_thread=False, isolation_level=None, timeout=10.0)
        try:
            db.execute("PRAGMA auto_vacuum = INCREMENTAL")
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = NORMAL")
            db.execute(f"PRAGMA max_page_count = {self._size_max // _PAGE}")
            _check(db)
            self._ids = _known_lines(db)
        except sqlite3.DatabaseError:
            db.close()
            raise
        return db

    def _set_aside(self, error: Exception) -> None:
        """Keep a file that cannot be read under another name, and begin a new one."""
        kept = self.path.with_name(f"{self.path.name}.corrupt-{int(self._now())}")
        _log.warning("The history could not be read and was set aside: file=%s error=%s", kept, error)
        self.path.rename(kept)
        for end in ("-wal", "-shm"):
            self.path.with_name(self.path.name + end).unlink(missing_ok=True)

    def close(self) -> None:
        """Write everything into the one file."""
        with self._lock:
            self._db.close()

    def add(self, at: float, samples: Mapping[str, HistorySample]) -> None:
        """Store what was measured at this time, by key, and average the times that are complete."""
        with self._lock:
            try:
                self._add(int(at), samples)
            except sqlite3.OperationalError as error:
                # A full disk, for example: the measurement is lost, the file is not.
                _log.warning("A measurement could not be stored: file=%s error=%s", self.path, error)
                self._roll_back()
            except sqlite3.DatabaseError as error:
                self._db.close()
                self._set_aside(error)
                self._db = self._connect()

    def _roll_back(self) -> None:
        if self._db.in_transaction:
            self._db.execute("ROLLBACK")
        self._ids = _known_lines(self._db)

    def _add(self, at: int, samples: Mapping[str, HistorySample]) -> None:
        self._db.execute("BEGIN IMMEDIATE")
        numbers = self._numbers(at, samples)
        rows = np.array([sample.row() for sample in samples.values()], np.float32)
        for part in np.unique(numbers // _GROUP) if len(numbers) else ():
            mine = numbers // _GROUP == part
            self._put(Level.RAW, int(part), at, encode_block(numbers[mine] % _GROUP, rows[mine]))
        self._average(Level.RAW, Level.MINUTES, at)
        self._average(Level.MINUTES, Level.HOURS, at)
        self._forget(at)
        self._db.execute("COMMIT")
        self._shed()

    def _numbers(self, at: int, samples: Mapping[str, HistorySample]) -> NDArray[np.int64]:
        for key, sample in samples.items():
            known = self._ids.get(key)
            if known is None or known[1] != sample.labels:
                found = self._db.execute(
                    "INSERT INTO line (key, labels, last) VALUES (?, ?, ?) "
                    "ON CONFLICT (key) DO UPDATE SET labels = excluded.labels RETURNING id",
                    (key, json.dumps(dict(sample.labels)), at),
                ).fetchone()
                self._ids[key] = (int(found[0]), sample.labels)
        # Once an hour is often enough to know which lines have ended long ago.
        if at % Level.HOURS.step_s < 60:
            ids = [(at, self._ids[key][0]) for key in samples]
            self._db.executemany("UPDATE line SET last = ? WHERE id = ?", ids)
        return np.array([self._ids[key][0] for key in samples], np.int64)

    def _put(self, level: Level, part: int, at: int, block: bytes) -> None:
        self._db.execute("INSERT OR REPLACE INTO block VALUES (?, ?, ?, ?)", (level.number, part, at, block))

    def _average(self, fine: Level, coarse: Level, at: int) -> None:
        """Average the finished steps of `coarse` that the file does not have yet."""
        step, end = coarse.step_s, at // coarse.step_s * coarse.step_s
        done = self._db.execute("SELECT max(at) FROM block WHERE level = ?", (coarse.number,)).fetchone()[0]
        begin = at - fine.kept_s if done is None else int(done) + step
        if begin >= end:
            return
        blocks: dict[tuple[int, int], list[bytes]] = {}
        rows = self._db.execute(
            "SELECT part, at, data FROM block WHERE level = ? AND at >= ? AND at < ?", (fine.number, begin, end)
        )
        for part, when, data in rows:
            blocks.setdefault((part, when // step * step), []).append(data)
        for (part, when), found in blocks.items():
            parts = [decode_block(each) for each in found]
            ids = np.concatenate([ids for ids, _ in parts])
            self._put(coarse, part, when, encode_block(*average(ids, np.concatenate([rows for _, rows in parts]))))

    def _forget(self, at: int) -> None:
        for level in Level:
            self._db.execute("DELETE FROM block WHERE level = ? AND at < ?", (level.number, at - level.kept_s))
        if at % Level.HOURS.step_s < 60:
            gone = self._db.execute("DELETE FROM line WHERE last < ? RETURNING key", (at - Level.HOURS.kept_s,))
            for (key,) in gone.fetchall():
                self._ids.pop(key, None)

    def _shed(self) -> None:
        """Delete the oldest tenth of the largest level while the file is larger than nine tenths of its limit."""
        for _ in range(10):
            pages, free = (
                int(self._db.execute(f"PRAGMA {name}").fetchone()[0]) for name in ("page_count", "freelist_count")
            )
            if free > 256:
                self._db.execute("PRAGMA incremental_vacuum(256)").fetchall()
            if (pages - free) * _PAGE <= self._size_max * 9 // 10:
                return
            level = self._db.execute(
                "SELECT level FROM block GROUP BY level ORDER BY sum(length(data)) DESC LIMIT 1"
            ).fetchone()
            if level is None:
                return
            first, last = self._db.execute("SELECT min(at), max(at) FROM block WHERE level = ?", level).fetchone()
            cut = first + max(1, (last - first) // 10)
            self._db.execute("DELETE FROM block WHERE level = ? AND at < ?", (level[0], cut))
            _log.warning("The history reached its size; the oldest points were deleted: until=%s", cut)


def _check(db: sqlite3.Connection) -> None:
    """Make a new file ready, and refuse one that is damaged or of another version."""
    version = int(db.execute("PRAGMA user_version").fetchone()[0])
    if version == 0:
        db.executescript(f"BEGIN;{_SCHEMA}COMMIT;")
    elif version in _OLDER:
        db.execute(f"PRAGMA user_version = {_VERSION}")
    elif version != _VERSION:
        raise sqlite3.DatabaseError(f"its version is {version}, and this program reads {_VERSION}")
    elif (found := db.execute("PRAGMA quick_check(1)").fetchone()[0]) != "ok":
        raise sqlite3.DatabaseError(found)


def _known_lines(db: sqlite3.Connection) -> dict[str, tuple[int, Mapping[str, str]]]:
    found = db.execute("SELECT id, key, labels FROM line")
    return {key: (number, json.loads(labels)) for number, key, labels in found}


class HistoryReader:
    """Reads a history, also while it is written, also from another process."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def place(self) -> str:
        return str(self.path)

    def exists(self) -> bool:
        return self.path.exists()

    def lines(
        self, level: Level, since: float, *, prefix: str = "", until: float | None = None
    ) -> Iterator[HistoryLine]:
        """Read all lines whose key has this beginning and that have points; the newest points are included."""
        with closing(sqlite3.connect(f"file:{self.path}?mode=ro", uri=True, timeout=10.0)) as db:
            known = db.execute(
                "SELECT id, key, labels FROM line WHERE substr(key, 1, ?) = ?", (len(prefix), prefix)
            ).fetchall()
            wanted: dict[int, dict[int, tuple[str, str]]] = {}
            for number, key, labels in known:
                wanted.setdefault(number // _GROUP, {})[number % _GROUP] = (key, labels)
            for part, members in wanted.items():
                yield from _of_part(_blocks(db, level, part, since, until), members)

    def pieces(self, since: float, levels: Sequence[Level] = FINER) -> Iterator[HistoryLine]:
        """Read each second once: hours, the minutes after the last hour, the samples after the last minute.

        A line may come in several pieces. Few are in memory at a time, so months of thousands of GPUs can be read.
        """
        begin = since
        for level in levels:
            last: int | None = None
            for line in self.lines(level, begin):
                last = max(last or 0, int(line.times[-1]))
                yield line
            if last is not None:
                begin = max(begin, last + level.step_s)

    def line(self, level: Level, since: float, key: str) -> HistoryLine | None:
        """Read the points of one GPU or share; None if it has none."""
        with closing(sqlite3.connect(f"file:{self.path}?mode=ro", uri=True, timeout=10.0)) as db:
            found = db.execute("SELECT id, labels FROM line WHERE key = ?", (key,)).fetchone()
            if found is None:
                return None
            number, labels = found
            blocks = _blocks(db, level, number // _GROUP, since, None)
            return next(iter(_of_part(blocks, {number % _GROUP: (key, labels)})), None)

    def size(self) -> int:
        """Bytes on the disk."""
        ends = ("", "-wal")
        return sum(path.stat().st_size for end in ends if (path := Path(f"{self.path}{end}")).exists())


def _blocks(
    db: sqlite3.Connection, level: Level, part: int, since: float, until: float | None
) -> Sequence[tuple[int, bytes]]:
    end = 1 << 62 if until is None else int(until)
    return db.execute(
        "SELECT at, data FROM block WHERE level = ? AND part = ? AND at >= ? AND at < ? ORDER BY at",
        (level.number, part, int(since), end),
    ).fetchall()


def _of_part(blocks: Iterable[tuple[int, bytes]], members: Mapping[int, tuple[str, str]]) -> Iterator[HistoryLine]:
    times, ids, rows = list[NDArray[np.int64]](), list[NDArray[np.uint8]](), list[Values]()
    for at, data in blocks:
        found, values = decode_block(data)
        ids.append(found)
        rows.append(values)
        times.append(np.full(len(found), at, np.int64))
    if not ids:
        return
    all_ids = np.concatenate(ids)
    order = np.argsort(all_ids, kind="stable")
    all_ids, all_rows, all_times = all_ids[order], np.concatenate(rows)[order], np.concatenate(times)[order]
    found, starts = np.unique(all_ids, return_index=True)
    for number, start, end in zip(found.tolist(), starts, [*starts[1:], len(all_ids)], strict=True):
        if (member := members.get(number)) is not None:
            yield HistoryLine(member[0], json.loads(member[1]), all_times[start:end], all_rows[start:end])
