"""A pool of several servers: the best one is chosen, all queues are waited in, tokens are revoked everywhere."""

import csv
import json
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.remote.conftest import GpuServer, Holder, wait_for

DEVICE_UNAVAILABLE = 46


class Pool:
    """Two servers with one authority."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="mgo-"))
        self.first = GpuServer(self.folder / "a", 1, "--exchange-interval", "1")
        self.second = GpuServer(
            self.folder / "b", 1, "--exchange-interval", "1", "--peer", self.first.address, pool=self.first.pool
        )
        self.servers = (self.first, self.second)

    @property
    def addresses(self) -> str:
        return ",".join(each.address for each in self.servers)

    def hold(self, *share: str) -> Holder:
        """A program with a share of one of the servers."""
        return Holder(self.first, "--servers", self.addresses, *share)

    def holding(self) -> list[int]:
        return [len(each.machine.sessions()) for each in self.servers]

    def end(self) -> None:
        for each in self.servers:
            if each.process.poll() is not None:
                each.start()
            each.end_clients()
        wait_for("all shares to be free", lambda: self.holding() == [0, 0])

    def close(self) -> None:
        for each in self.servers:
            each.close()


@pytest.fixture(scope="module")
def module_pool() -> Iterator[Pool]:
    pool = Pool()
    yield pool
    pool.close()


@pytest.fixture
def pool(module_pool: Pool) -> Iterator[Pool]:
    yield module_pool
    module_pool.end()


def admin(pool: Pool, *args: str, check: bool = True) -> str:
    return pool.first.run("pool", *args, "--pool", str(pool.first.pool), check=check).stdout


def test_shares_are_packed_over_all_servers_and_the_last_one_waits_for_any(pool: Pool) -> None:
    small = pool.hold("-p", "0.4")
    server = pool.holding().index(1)
    # Placement fills the GPU that is in use, and leaves the other for what needs all of it.
    second = pool.hold("-p", "0.4")
    assert pool.holding()[server] == 2
    whole = pool.hold("-p", "1")
    assert pool.holding()[1 - server] == 1
    no_wait = pool.first.run(
        "run", "--remote", "--servers", pool.addresses, "--no-wait", "-p", "0.5", "--", "true", check=False
    )
    assert no_wait.returncode == 75
    waiting = pool.first.client("--servers", pool.addresses, "-p", "0.5", "--", "echo", "granted")
    assert waiting.stderr is not None
    said = {waiting.stderr.readline().split(": ")[2] for _ in pool.servers}
    assert said == {each.address for each in pool.servers}
    for each in (small, second):
        each.process.kill()
    assert waiting.communicate(timeout=60)[0] == "granted\n"
    wait_for("the queues to be left", lambda: sum(pool.holding()) == 1)
    assert whole.call() == 0


def test_a_server_that_is_down_is_no_reason_to_fail(pool: Pool) -> None:
    pool.second.stop(signal.SIGKILL)
    held = pool.hold("-p", "0.5")
    assert held.call() == 0
    listed = pool.first.run("pool", "list", "--servers", pool.addresses, "-o", "json")
    assert {row["server"] for row in json.loads(listed.stdout)} == {pool.first.address}
    assert pool.second.address in listed.stderr


def test_a_revoked_token_ends_its_sessions_at_every_server(pool: Pool) -> None:
    token = pool.first.make_token("mallory")
    other = pool.first.make_token("trent")
    held = Holder(pool.first, "--token", str(token), "-p", "0.3")
    far = Holder(pool.second, "--token", str(token), "--servers", pool.second.address, "-p", "0.3")
    kept = Holder(pool.first, "--token", str(other), "-p", "0.3")
    pool.second.stop(signal.SIGTERM)
    wait_for("the second server's session to end", lambda: far.call() == DEVICE_UNAVAILABLE)
    said = admin(pool, "token", "revoke", "mallory", "--server", pool.second.address)
    assert f"{pool.first.address}: list" in said
    assert "1 sessions ended" in said
    wait_for("the session to end", lambda: held.call() == DEVICE_UNAVAILABLE)
    assert kept.call() == 0
    refused = pool.first.run("run", "--remote", "--token", str(token), "-p", "0.1", "--", "true", check=False)
    assert "a token that was not revoked" in refused.stderr
    # The second server was down. It has the first as a peer, and learns of it without anybody's help.
    (pool.first.pool / "revocations").rename(pool.first.pool / "hidden")
    pool.second.start()

    def is_refused() -> bool:
        server = ("--servers", pool.second.address, "--token", str(token))
        args = ("run", "--remote", *server, "-p", "0.1", "--", "true")
        return "a token that was not revoked" in pool.second.run(*args, check=False).stderr

    wait_for("the second server to learn of it", is_refused)
    (pool.first.pool / "hidden").rename(pool.first.pool / "revocations")
    states = {row["name"]: row["state"] for row in json.loads(admin(pool, "token", "list", "-o", "json"))}
    assert (states["mallory"], states["trent"]) == ("revoked", "valid")
    unknown = pool.first.run("pool", "token", "revoke", "nobody", "--pool", str(pool.first.pool), check=False)
    assert (unknown.returncode, unknown.stderr.splitlines()[0]) == (
        2,
        "error: NAME: invalid value 'nobody': must be the name or ID of a token that has not expired",
    )


def test_a_drained_server_keeps_its_sessions_and_opens_no_more(pool: Pool) -> None:
    held = pool.hold("-p", "0.4")
    busy, free = (pool.servers[at] for at in ((0, 1) if pool.holding()[0] else (1, 0)))
    waiting = pool.first.client("--servers", busy.address, "-p", "0.9", "--", "true")
    assert waiting.stderr is not None
    waiting.stderr.readline()
    assert admin(pool, "drain", busy.address) == f"{busy.address}: draining, 1 sessions run\n"
    assert waiting.wait(60) == 75
    assert held.call() == 0
    pool.hold("-p", "0.4")
    assert [len(each.machine.sessions()) for each in (busy, free)] == [1, 1]
    listed = json.loads(pool.first.run("pool", "list", "--servers", pool.addresses, "-o", "json").stdout)
    assert {row["server"]: row["state"] for row in listed} == {busy.address: "draining", free.address: "ok"}
    busy.stop()
    busy.start()
    refused = pool.first.run("run", "--remote", "--servers", busy.address, "-p", "0.1", "--", "true", check=False)
    assert (refused.returncode, "it is being drained" in refused.stderr) == (75, True)
    assert admin(pool, "drain", busy.address, "--undo") == f"{busy.address}: open, 0 sessions run\n"
    assert pool.first.run("run", "--remote", "--servers", busy.address, "-p", "0.1", "--", "true").returncode == 0


def test_sessions_are_listed_to_their_owner_and_all_of_them_to_the_admin(pool: Pool) -> None:
    bob = pool.first.make_token("bob")
    pool.hold("-p", "0.3")
    Holder(pool.first, "--token", str(bob), "--servers", pool.second.address, "-p", "0.2")
    own = json.loads(pool.first.run("pool", "sessions", "--servers", pool.addresses, "-o", "json").stdout)
    assert [(row["name"], row["share"], row["client"]) for row in own] == [("alice", "0.3", "127.0.0.1")]
    assert "hold.py" in own[0]["command"]
    everybody = list(csv.DictReader(admin(pool, "sessions", "--servers", pool.addresses, "--csv").splitlines()))
    assert {row["name"] for row in everybody} == {"alice", "bob"}
    assert all(float(row["gpu_seconds"]) >= 0 for row in everybody)
    shown = pool.first.run("top", "--pool", "--servers", pool.addresses, "--once").stdout
    assert all(each.address in shown for each in pool.servers)
    assert "alice@127.0.0.1" in shown
    assert "bob@127.0.0.1" not in shown
