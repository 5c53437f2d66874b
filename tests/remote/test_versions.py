"""Clients and servers of other releases: what one side does not know is an error of one call, and nothing more."""

import socket
import struct
import sys
import tempfile
import threading
import tomllib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from remote.notes import OPERATIONS

from tests.remote.conftest import CLIENTS, GpuServer

HEAD = struct.Struct("<IHHII")
HELLO = struct.Struct("<IIIIII")
MAGIC, WANTS_REPLY, HELLO_OP, CUDA, UNKNOWN_OP = 0x6D677264, 1, 1, 1, 60_000
NOT_SUPPORTED, SYSTEM_DRIVER_MISMATCH = 801, 803
RELEASED = Path(__file__).parent / "released"
HALF = ("-p", "0.5", "-m", "1Gi")


@pytest.fixture(scope="module")
def plain_server() -> Iterator[GpuServer]:
    server = GpuServer(Path(tempfile.mkdtemp(prefix="mgv-")), 1, "--plain")
    yield server
    server.close()


@pytest.fixture
def server(plain_server: GpuServer) -> Iterator[GpuServer]:
    yield plain_server
    plain_server.end_clients()


def numbers() -> dict[str, int]:
    sections = tomllib.loads(OPERATIONS.read_text())
    return {name: number for section in sections.values() for name, number in section.items()}


def read_exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise EOFError
        data += part
    return data


@dataclass
class RawClient:
    """A client of some release, byte by byte."""

    connection: socket.socket
    serial: int = 0

    def ask(self, op: int, body: bytes = b"") -> tuple[int, bytes]:
        """Send a message; returns the status and what comes with it."""
        self.serial += 1
        self.connection.sendall(HEAD.pack(len(body), op, WANTS_REPLY, 0, self.serial) + body)
        while True:
            length, kind, _, _, serial = HEAD.unpack(read_exactly(self.connection, HEAD.size))
            answer = read_exactly(self.connection, length)
            if kind == 1:
                assert serial == self.serial
                return struct.unpack_from("<I", answer)[0], answer[8:]


@pytest.fixture
def connect(server: GpuServer) -> Iterator[Callable[..., tuple[RawClient, int, bytes]]]:
    opened: list[socket.socket] = []

    def hello(version: int, oldest: int, release: int, more: bytes = b"") -> tuple[RawClient, int, bytes]:
        """Open a connection in a session, and say hello."""
        say = 'echo "$MILLIGPU_REMOTE_SESSION $MILLIGPU_REMOTE_KEY"; read line'
        program = server.client("--plain", *HALF, "--", "sh", "-c", say)
        assert program.stdout is not None
        session, key = program.stdout.readline().split()
        connection = socket.create_connection((server.host, server.port), 60)
        opened.append(connection)
        connection.sendall(b"mgpu-wrk" + session.encode().ljust(32, b"\0"))
        client = RawClient(connection)
        about = HELLO.pack(MAGIC, version, oldest, CUDA, release, 0)
        status, answer = client.ask(HELLO_OP, about + bytes.fromhex(key) + more)
        return client, status, answer

    yield hello
    for each in opened:
        each.close()


@pytest.mark.parametrize(
    ("version", "oldest", "release", "more"),
    [(1, 0, 12_000, b""), (2, 1, 14_000, b"\7" * 64)],
    ids=["older", "newer"],
)
def test_a_client_of_a_neighboring_release_is_served(
    connect: Callable[..., tuple[RawClient, int, bytes]], version: int, oldest: int, release: int, more: bytes
) -> None:
    client, status, welcome = connect(version, oldest, release, more)
    assert (status, struct.unpack_from("<I", welcome)[0]) == (0, 1)
    assert client.ask(UNKNOWN_OP, b"\1" * 24)[0] == NOT_SUPPORTED
    status, count = client.ask(numbers()["cuDevicePrimaryCtxGetState"], struct.pack("<QQQ", 0, 1, 1))
    assert (status, len(count)) == (0, 16)


def test_a_client_that_speaks_no_version_of_the_server_is_refused(
    connect: Callable[..., tuple[RawClient, int, bytes]],
) -> None:
    client, status, _ = connect(3, 2, 14_000)
    assert status == SYSTEM_DRIVER_MISMATCH
    assert client.connection.recv(1) == b""


class OtherWorker:
    """A relay to a real worker for one connection, that makes of it a worker of another release."""

    def __init__(self, target: tuple[str, int], unknown: int) -> None:
        self._target, self._unknown = target, unknown
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._near, self._far = socket.socket(), socket.socket()
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._threads = [threading.Thread(target=self._requests)]
        self._threads[0].start()

    def close(self) -> None:
        for each in (self._listener, self._near, self._far):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for each in self._threads:
            each.join(60)
        for each in (self._listener, self._near, self._far):
            each.close()

    def _requests(self) -> None:
        """An older worker has not heard of one of the operations."""
        with suppress(OSError, EOFError):
            self._near.close()
            self._near, _ = self._listener.accept()
            self._far.connect(self._target)
            self._far.sendall(read_exactly(self._near, 40))
            self._threads.append(threading.Thread(target=self._answers))
            self._threads[1].start()
            while True:
                length, op, flags, lane, serial = HEAD.unpack(read_exactly(self._near, HEAD.size))
                op = UNKNOWN_OP if op == self._unknown else op
                self._far.sendall(HEAD.pack(length, op, flags, lane, serial) + read_exactly(self._near, length))

    def _answers(self) -> None:
        """A newer worker says more in its welcome: of itself, and of each device."""
        with suppress(OSError, EOFError):
            length, kind, flags, lane, serial = HEAD.unpack(read_exactly(self._far, HEAD.size))
            answer = read_exactly(self._far, length)
            version, driver, devices, size = struct.unpack_from("<IIII", answer, 8)
            rest = b"".join(answer[24 + at * size : 24 + (at + 1) * size] + b"\5" * 64 for at in range(devices))
            answer = answer[:8] + struct.pack("<IIII", version, driver, devices, size + 64) + rest + b"\6" * 40
            self._near.sendall(HEAD.pack(len(answer), kind, flags, lane, serial) + answer)
            while data := self._far.recv(1 << 16):
                self._near.sendall(data)


def test_a_program_runs_at_a_server_of_a_neighboring_release(server: GpuServer) -> None:
    other = OtherWorker((server.host, server.port), numbers()["cuMemGetInfo_v2"])
    try:
        via = f"MILLIGPU_REMOTE={other.address}"
        program = server.client("--plain", *HALF, "--", "env", via, sys.executable, CLIENTS / "hold.py", "64")
        output, errors = program.communicate(timeout=120)
        assert output == '{"status": 0, "total": 0, "free": 0}\n', errors
    finally:
        other.close()


def test_no_operation_of_a_release_ever_changes_its_number() -> None:
    now = numbers()
    named = {number: name for name, number in now.items()}
    for path in RELEASED.glob("operations-*.toml"):
        for section in tomllib.loads(path.read_text()).values():
            for name, number in section.items():
                assert now.get(name, number) == number, f"{path.name}: {name}"
                assert named.get(number, name) == name, f"{path.name}: {number} was {name}"
