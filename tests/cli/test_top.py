"""What `top` shows fits the terminal, is sorted and colored as asked, and ends when told to."""

import os
import pty
import select
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console, RenderableType
from rich.text import Text

from milligpu.cli.columns import Column, fit_table
from milligpu.cli.top_view import SortKey, TopView
from milligpu.model.policy import SharePolicy
from milligpu.status.cluster import ClusterStatus, WaitingPod
from milligpu.wire.status import (
    STATUS,
    AcceleratorStats,
    GpuStatus,
    MachineStatus,
    ProcessUsage,
    SessionStatus,
    ShareUsage,
)

UUIDS = [f"GPU-c6eb0813-b4e2-5fc9-899b-45a1154f5b7{at}" for at in range(3)]
GIB = 1 << 30


def gpu(index: int, node: str = "", **more: Any) -> GpuStatus:
    known = {"memory_used": 8 * GIB, "temperature": 61, "power": 212.4, "policy": SharePolicy.BEST_EFFORT}
    fields: dict[str, Any] = {**known, **more}
    return GpuStatus(index, UUIDS[index], "NVIDIA A100-SXM4-40GB", 1000, 40960, 600, 32768, node, **fields)


def share(index: int, use: float, milli: int = 400, memory: int = GIB, **who: Any) -> ShareUsage:
    stats = AcceleratorStats("nvidia", "A100", UUIDS[index], 8 * GIB, memory)
    return ShareUsage(stats, milli, milli, 8192, utilization=use, waiting=use > 0.35, **who)


def cluster() -> ClusterStatus:
    node = "gpu-node-in-the-second-rack-on-the-left-17.example.com"
    broken = "XID 79: GPU has fallen off the bus"
    gpus = [gpu(0, node), gpu(1, node, state="unhealthy", message=broken), gpu(2, node)]
    shares = [
        share(
            0,
            0.1,
            300,
            3 * GIB,
            namespace="research",
            pod="a-deployment-with-a-long-name-5d4f8",
            container="main",
            node=node,
        ),
        share(1, 0.39, 400, GIB, namespace="research", pod="trainer", container="main", node=node),
        share(2, 0.2, 900, 2 * GIB, session="a1b2c3", node=node),
    ]
    why = f"0/1 nodes: 1 InsufficientGPUCore (best: {node}/{UUIDS[0]} 600 of 700); try 0.6 GPU"
    processes = [ProcessUsage(UUIDS[1], 4711, "python3", GIB, 0.35, "research", "trainer", node=node)]
    return ClusterStatus(gpus, shares, [WaitingPod("research", "late", why)], processes, problems=["a problem"])


def machine() -> MachineStatus:
    sessions = [SessionStatus("a1b2c3", 4711, 0, ["python", "train.py", "--with", "x" * 100], 0.0)]
    processes = [ProcessUsage(UUIDS[0], 4712, "python", GIB, 0.2, session="a1b2c3")]
    shares = [share(0, 0.2, session="a1b2c3")]
    return MachineStatus(STATUS.version, "box", [gpu(0), gpu(1)], False, shares, sessions, processes=processes)


def shown(view: RenderableType, width: int, *, color: bool = False) -> str:
    console = Console(
        width=width, force_terminal=color, no_color=not color, color_system="truecolor" if color else None
    )
    with console.capture() as found:
        console.print(view)
    return found.get()


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_nothing_wraps_or_is_wider_than_the_terminal(width: int) -> None:
    for view in (
        TopView(width, processes=True).cluster(cluster()),
        TopView(width, processes=True).machine(machine()),
    ):
        text = shown(view, width)
        assert max(map(len, text.splitlines())) <= width
        rows = [line for line in text.splitlines() if "░" in line]
        assert rows
        assert all(line.count("%") == 1 for line in rows)


def test_eighty_columns_have_use_memory_temperature_power_and_health() -> None:
    text = shown(TopView(80).cluster(cluster()), 80)
    heading, first, second, *_ = text.splitlines()
    for word in ("NODE", "GPU", "BUSY", "MEMORY", "FREE", "TEMP", "POWER", "STATE"):
        assert word in heading
    for word in ("░", "10%", "8.0Gi/40Gi", "0.6 32Gi", "61°C", "212 W", "ok"):
        assert word in first
    assert "unhealthy" in second
    assert "GPU 1 is unhealthy: XID 79: GPU has fallen off the bus" in text.replace("\n", " ")
    assert UUIDS[0] in text, "a UUID in a sentence is not cut in two"
    assert "a problem" in text
    alone = shown(TopView(80).machine(machine()), 80)
    assert "best-effort" in alone
    assert "python train.py" in alone


def test_problems_are_listed_below_the_tables_and_only_if_there_are_any() -> None:
    found = cluster()
    problems = shown(TopView(200).cluster(found), 200).partition("PROBLEMS\n")[2]
    assert problems.splitlines() == [
        f"{found.gpus[1].node} GPU 1 is unhealthy: {found.gpus[1].message}",
        "a problem",
    ]
    healthy = replace(found, gpus=[gpu(0)], problems=())
    assert "PROBLEMS" not in shown(TopView(200).cluster(healthy), 200)


@pytest.mark.parametrize(
    ("sort", "order"),
    [
        (SortKey.NAME, ["a-dep", "trainer", "session"]),
        (SortKey.USE, ["trainer", "session", "a-dep"]),
        (SortKey.MEMORY, ["a-dep", "session", "trainer"]),
        (SortKey.SHARE, ["session", "trainer", "a-dep"]),
    ],
)
def test_shares_are_sorted_as_asked(sort: SortKey, order: list[str]) -> None:
    text = shown(TopView(200, sort).cluster(cluster()), 200).partition("POD")[2]
    assert sorted(order, key=text.index) == order


def test_processes_are_shown_below_their_share_when_asked_for() -> None:
    assert "4711" not in shown(TopView(80).cluster(cluster()), 80)
    lines = shown(TopView(80, processes=True).cluster(cluster()), 80).splitlines()
    at = next(number for number, line in enumerate(lines) if "trainer" in line)
    assert all(word in lines[at + 1] for word in ("└ 4711 python3", "35%", "1.0Gi"))


def test_the_color_says_how_near_a_share_is_to_its_limit() -> None:
    text = shown(TopView(80).cluster(cluster()), 80, color=True)
    rows = {word: line for line in text.splitlines() for word in ("trainer", "5d4f8", "session") if word in line}
    red, green = "\x1b[31m", "\x1b[32m"
    assert red in rows["trainer"]
    assert "waits" in rows["trainer"]
    assert green in rows["5d4f8"]
    assert red not in rows["5d4f8"]


def test_the_least_important_column_goes_first_and_names_are_cut_before_numbers() -> None:
    columns = [Column("NAME", least=4), Column("EXTRA", importance=1), Column("NUMBER", right=True)]
    rows = [[Text("abcdefghij"), Text("extra"), Text("123456")]]
    wide, narrow, tight = ([line.plain for line in fit_table(columns, rows, width)] for width in (30, 17, 12))
    assert wide == ["NAME        EXTRA  NUMBER", "abcdefghij  extra  123456"]
    assert narrow == ["NAME EXTRA NUMBER", "abc… extra 123456"]
    assert tight == ["NAME  NUMBER", "abc…  123456"]


def test_a_key_acts_at_once_and_q_ends_it(tmp_path: Path) -> None:
    env = {**os.environ, "HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path), "TERM": "xterm", "COLUMNS": "80"}
    program = str(Path(sys.executable).with_name("milligpu"))
    pid, terminal = pty.fork()
    if not pid:
        os.execve(program, [program, "top", "--machine", "-i", "60"], env)
    try:
        said = _until(terminal, b"(name)")
        os.write(terminal, b"u")
        said += _until(terminal, b"(use)")
        os.write(terminal, b"q")
        _until(terminal, None)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, said
    except BaseException:
        os.kill(pid, signal.SIGKILL)
        raise


def _until(terminal: int, words: bytes | None) -> bytes:
    """What the program says until these words come; until its end if there are none."""
    said, deadline = b"", time.monotonic() + 60
    while words is None or words not in said:
        assert select.select([terminal], [], [], deadline - time.monotonic())[0], said
        try:
            said += os.read(terminal, 4096)
        except OSError:
            assert words is None, said
            break
    return said
