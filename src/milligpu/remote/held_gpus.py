"""GPUs that are held between commands: `bitfusion request_gpus` until `bitfusion release_gpus`.

A process in the background keeps the session open. It listens on a socket in a directory that only the user can
enter. Next to the socket is a file with the session's key, for the commands that use the GPUs meanwhile.
"""

import os
import select
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from milligpu.model.errors import NoCapacity, Unavailable
from milligpu.remote.client import OpenedSession
from milligpu.remote.keeper import leave_behind
from milligpu.remote.protocol import BEAT_SECONDS, SILENCE_SECONDS, ClientBeat

_RELEASE = b"r"
# The process in the background answers at once, unless the machine is very busy.
_ANSWER_SECONDS = 60.0


class HeldGpus(msgspec.Struct, frozen=True):
    """What commands need to use the GPUs."""

    variables: dict[str, str]
    described: str


class GpuHold:
    """The one hold that a user can have at a time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._socket = folder / "hold.sock"
        self._file = folder / "hold.json"

    @classmethod
    def own(cls, env: Mapping[str, str]) -> "GpuHold":
        runtime = env.get("XDG_RUNTIME_DIR") or f"/tmp/milligpu-{os.getuid()}"
        return cls(Path(runtime, "milligpu", "bitfusion"))

    def check_free(self) -> None:
        """Refuse a second hold; what a process that was killed left behind is removed."""
        if self._connect() is not None:
            raise NoCapacity("GPUs are held already", hint="release them first: bitfusion release_gpus")
        for path in (self._socket, self._file):
            path.unlink(missing_ok=True)

    def begin(self, session: OpenedSession, described: str) -> None:
        """Hold a session's GPUs in the background."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        about = self._folder.stat()
        if about.st_uid != os.getuid() or about.st_mode & 0o077:
            raise Unavailable(f"{self._folder}: others may enter it, and the key of the session would be there")
        listener = socket.socket(socket.AF_UNIX)
        try:
            listener.bind(str(self._socket))
        except OSError:
            raise NoCapacity("another command has just got GPUs to hold") from None
        listener.listen()
        file = os.open(self._file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(file, "wb") as output:
            output.write(msgspec.json.encode(HeldGpus(session.variables, described)))
        leave_behind({session.connection.fileno(), listener.fileno()}, lambda: self._keep(session, listener))
        listener.close()

    def read(self) -> HeldGpus:
        """Return what is held now."""
        held = self._connect()
        if held is None:
            raise Unavailable("no GPUs are held", hint="ask for some first: bitfusion request_gpus -n 1")
        held.close()
        return msgspec.json.decode(self._file.read_bytes(), type=HeldGpus)

    def end(self) -> bool:
        """Release the GPUs, and return when they are free; False if none were held."""
        held = self._connect()
        if held is None:
            return False
        with held, suppress(OSError):
            held.settimeout(_ANSWER_SECONDS)
            held.sendall(_RELEASE)
            held.recv(1)  # it ends when the session is closed
        return True

    def _connect(self) -> socket.socket | None:
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(str(self._socket))
        except OSError:
            connection.close()
            return None
        return connection

    def _keep(self, session: OpenedSession, listener: socket.socket) -> None:
        """Beat until somebody releases the GPUs, or the server is gone."""
        connection = session.connection
        asking: socket.socket | None = None
        heard = beaten = time.monotonic()
        try:
            while asking is None and time.monotonic() - heard < SILENCE_SECONDS:
                ready, _, _ = select.select([listener, connection], [], [], BEAT_SECONDS)
                if listener in ready:
                    asking = _asks_for_release(listener)
                if connection in ready:
                    with suppress(TimeoutError):
                        connection.receive(0)
                    heard = time.monotonic()
                if time.monotonic() - beaten >= BEAT_SECONDS:
                    connection.send(ClientBeat())
                    beaten = time.monotonic()
        finally:
            connection.close()
            for path in (self._socket, self._file):
                path.unlink(missing_ok=True)
            if asking is not None:
                asking.close()


def _asks_for_release(listener: socket.socket) -> socket.socket | None:
    """Who asks for the release; others only look whether GPUs are held."""
    connection, _ = listener.accept()
    connection.settimeout(1.0)
    with suppress(OSError):
        if connection.recv(1) == _RELEASE:
            return connection
    connection.close()
    return None
