"""Commands come and go, and are killed at random, as is the agent: no share is ever granted twice or lost."""

import os
import random
import signal
import time
import traceback
from collections import Counter
from pathlib import Path

import pytest

from milligpu.sessions.client import SessionClient
from milligpu.sessions.environment import session_environment
from milligpu.sessions.protocol import RequestShare, ShareGranted
from milligpu.tenancy.processes import start_time
from tests.sessions.conftest import Machine, wait_for

COMMANDS = 80
WAITING_MAX = 12
AGENT_DEATHS = 8
PREFIX = "held-"


@pytest.fixture(scope="module", autouse=True)
def two_cards(module_machine: Machine) -> None:
    assert module_machine.run("softgpu", "up", "--devices", "2", "--memory", "4Gi").returncode == 0


def command(env: dict[str, str], milli: int, seconds: float) -> int:
    """A process that takes a share as `milligpu run` does; its name says how much it holds. Its number."""
    pid = os.fork()
    if pid:
        return pid
    try:
        for answer in SessionClient(env).take(RequestShare(["sleep"], milli=milli), None):
            if isinstance(answer, ShareGranted):
                os.execvpe("sleep", [f"{PREFIX}{milli}", str(seconds)], {**env, **session_environment(answer, env)})
    except BaseException:
        traceback.print_exc()
    os._exit(99)


def held() -> Counter[str]:
    """Milli-GPU in the hands of processes that all lived at one moment, by card."""
    found: dict[int, tuple[int | None, str, int]] = {}
    for entry in Path("/proc").iterdir():
        try:
            name = (entry / "cmdline").read_bytes().split(b"\0")[0].decode()
            if entry.name.isdigit() and name.startswith(PREFIX):
                pid = int(entry.name)
                env = (entry / "environ").read_bytes().split(b"\0")
                card = next(part for part in env if part.startswith(b"CUDA_VISIBLE_DEVICES=")).decode()
                found[pid] = (start_time(pid), card, int(name.removeprefix(PREFIX)))
        except (OSError, StopIteration):
            continue
    sums: Counter[str] = Counter()
    for pid, (started, card, milli) in found.items():
        # Those that live after the last was seen lived together.
        if started is not None and start_time(pid) == started:
            sums[card] += milli
    return sums


def test_no_share_is_granted_twice_and_none_is_lost(machine: Machine) -> None:
    dice = random.Random(7)
    machine.sessions()
    living: set[int] = set()
    killed: set[int] = set()
    outcomes: Counter[int] = Counter()
    most: Counter[str] = Counter()
    deaths = sorted(dice.sample(range(COMMANDS), AGENT_DEATHS))
    deadline = time.monotonic() + 200
    started = 0
    while started < COMMANDS or living:
        assert time.monotonic() < deadline, f"{len(living)} commands still wait or run"
        if started < COMMANDS and len(living) < WAITING_MAX:
            if deaths and started == deaths[0]:
                deaths.pop(0)
                agents = machine.agents()
                for pid in agents if dice.random() < 0.4 else agents[-1:]:
                    os.kill(pid, signal.SIGKILL)
            living.add(command(machine.env, dice.randrange(50, 701, 50), dice.uniform(0.02, 0.4)))
            started += 1
        elif living - killed and dice.random() < 0.02:
            victim = dice.choice(sorted(living - killed))
            os.kill(victim, signal.SIGKILL)
            killed.add(victim)
        time.sleep(0.01)
        sums = held()
        assert all(milli <= 1000 for milli in sums.values()), sums
        most = most | sums
        for pid in tuple(living):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                living.discard(pid)
                outcomes[os.waitstatus_to_exitcode(status)] += 1
    # Whoever was not killed got its share and ended well, whatever befell the agent.
    assert outcomes == {0: COMMANDS - len(killed), -signal.SIGKILL: len(killed)}
    assert len(most) == 2
    assert min(most.values()) > 500, "the machine was never busy: this proves nothing"
    wait_for("all shares to be free", lambda: not machine.sessions())
    assert machine.run("run", "--gpus", "2", "--no-wait", "--", "true").returncode == 0
    wait_for("an empty folder", lambda: not list((machine.agent / "sessions").iterdir()))
