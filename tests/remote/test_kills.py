"""Random kills and freezes of everything that a session consists of: nothing is left, and nobody waits for ever."""

import os
import random
import signal
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from testing.network import SlowNetwork
from tests.remote.conftest import CLIENTS, GpuServer, Holder, wait_for

DEVICE_UNAVAILABLE = 46
KILLS = ("client", "worker", "host", "server")
# Each takes as long as the stated time after which a silent peer is lost: 10 s for clients, 15 s for servers.
FREEZES = ("worker", "network")
HOST = ("milligpu.remote.worker",)
WORKER = ("milligpu-worker",)


@dataclass
class Stage:
    """A server that is reached over a network, and its clients."""

    server: GpuServer
    network: SlowNetwork

    def start(self, count: int) -> list[Holder]:
        share = ("--servers", self.network.address, "-p", "0.2", "-m", "512Mi")
        held = [Holder(self.server, *share, mib=16) for _ in range(count)]
        assert [each.first["status"] for each in held] == [0] * count
        return held

    def kill(self, victim: str, held: list[Holder], dice: random.Random) -> None:
        match victim:
            case "client":
                process = dice.choice(held).process
                os.killpg(process.pid, signal.SIGKILL)
                process.wait(30)
            case "worker" | "host":
                words = WORKER if victim == "worker" else HOST
                workers = self.server.processes(*WORKER)
                os.kill(dice.choice(self.server.processes(*words)), signal.SIGKILL)
                wait_for("its worker to end", lambda: len(self.server.processes(*WORKER)) == len(workers) - 1)
            case _:
                self.server.stop(signal.SIGKILL)
                wait_for("all workers to end", lambda: not self.server.processes(*WORKER))

    def freeze(self, victim: str, dice: random.Random) -> None:
        if victim == "network":
            self.network.freeze()
        else:
            os.kill(dice.choice(self.server.processes(*WORKER)), signal.SIGSTOP)

    def end(self, held: list[Holder]) -> list[int]:
        """What each client's next call says, after which nothing of any of them is left."""
        said = [each.call() for each in held if each.process.poll() is None]
        self.network.thaw()
        self.server.end_clients()
        wait_for("all workers to end", lambda: not self.server.processes(*WORKER))
        wait_for("all hosts to end", lambda: not self.server.processes(*HOST))
        if self.server.process.poll() is not None:
            self.server.start()
        return said


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    server = GpuServer(Path(tempfile.mkdtemp(prefix="mgq-")), 2)
    network = SlowNetwork(server.host, server.port)
    yield Stage(server, network)
    network.close()
    server.close()


def hurt(stage: Stage, seed: int, rounds: int, freezes: int) -> None:
    dice = random.Random(seed)
    frozen = set(dice.sample(range(rounds), freezes))
    for number in range(rounds):
        held = stage.start(dice.randint(1, 2))
        if number in frozen:
            victim = dice.choice(FREEZES)
            stage.freeze(victim, dice)
        else:
            victim = dice.choice(KILLS)
            stage.kill(victim, held, dice)
        said = stage.end(held)
        where = f"seed {seed}, round {number}: {victim}"
        assert set(said) <= {0, DEVICE_UNAVAILABLE}, where
        if victim in {"server", "network"}:
            assert set(said) == {DEVICE_UNAVAILABLE}, where
        elif victim != "client":
            assert said.count(DEVICE_UNAVAILABLE) == 1, where
    # The whole GPU is free: a share was not lost with any of them.
    [total] = {each["free_milli"] for each in stage.server.machine.ps()["gpus"]}
    assert total == 1000


@pytest.mark.long
@pytest.mark.alone
@pytest.mark.timeout(1200)
def test_random_kills_and_freezes_leave_nothing_and_nobody_hangs(stage: Stage) -> None:
    hurt(stage, 21, 30, 2)


@pytest.mark.long
@pytest.mark.alone
@pytest.mark.timeout(4 * 3600)
def test_a_thousand_random_kills_and_freezes_leave_nothing(stage: Stage) -> None:
    hurt(stage, 22, 1000, 50)


def test_a_client_whose_start_is_interrupted_leaves_nothing(stage: Stage) -> None:
    dice = random.Random(23)
    for _ in range(3):
        client = stage.server.client("-p", "0.5", "--", sys.executable, CLIENTS / "hold.py", "16")
        wait_for("a host", lambda: stage.server.processes(*HOST))
        with pytest.raises(Exception, match="timed out"):
            client.wait(dice.random() / 2)
        os.killpg(client.pid, signal.SIGKILL)
        stage.end([])
