"""A client's connection to one GPU server: a request goes over it, and answers come back."""

import select
import socket
import ssl
import time
from contextlib import suppress

from milligpu.model.errors import Unavailable
from milligpu.remote.protocol import (
    CONTROL_MAGIC,
    LINE_MAX,
    SILENCE_SECONDS,
    RemoteRequest,
    ServerMessage,
    decode_server,
    encode_line,
)
from milligpu.remote.token_file import PoolAccess
from milligpu.sessions.protocol import RequestRefused, to_error

CONNECT_SECONDS = 10.0
_PART = 1 << 16


class ServerConnection:
    """One connection to one server, over which one request goes."""

    def __init__(self, server: str, access: PoolAccess, *, plain: bool) -> None:
        """`plain`: without TLS, which the server must be told as well."""
        self.server = server
        host, _, port = server.rpartition(":")
        try:
            raw = socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_SECONDS)
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            raw.sendall(CONTROL_MAGIC)
            self._socket = raw if plain else _context(access.authority).wrap_socket(raw)
        except ssl.SSLError as error:
            raise Unavailable(
                f"GPU server {server}: no trusted connection: {error.reason or error}",
                hint="is the token file of this server's pool, and does the server use TLS?",
            ) from None
        except OSError as error:
            raise Unavailable(f"GPU server {server}: {error.strerror or error}") from None
        self._received = bytearray()

    def send(self, request: RemoteRequest) -> None:
        self._socket.settimeout(SILENCE_SECONDS)
        self._socket.sendall(encode_line(request))

    def receive(self, seconds: float) -> ServerMessage:
        """Return the next answer, or raise TimeoutError; a refusal is raised as what it refuses."""
        deadline = time.monotonic() + seconds
        searched = 0
        while self._received.find(b"\n", searched) < 0:
            searched = len(self._received)
            if not self._has_bytes(deadline - time.monotonic()):
                raise TimeoutError
            try:
                self._socket.settimeout(0)
                part = self._socket.recv(_PART)
            except (BlockingIOError, ssl.SSLWantReadError):
                continue  # what came was for TLS itself
            except OSError as error:
                raise Unavailable(f"GPU server {self.server}: {error.strerror or error}") from None
            if not part or len(self._received) > LINE_MAX:
                raise Unavailable(f"GPU server {self.server}: closed the connection")
            self._received += part
        line, _, rest = bytes(self._received).partition(b"\n")
        self._received = bytearray(rest)
        answer = decode_server(line)
        if isinstance(answer, RequestRefused):
            raise to_error(answer)
        return answer

    def _has_bytes(self, seconds: float) -> bool:
        if isinstance(self._socket, ssl.SSLSocket) and self._socket.pending():
            return True
        return bool(select.select([self._socket], [], [], max(0.0, seconds))[0])

    def certificate(self) -> dict[str, object] | None:
        """The server's certificate; None without TLS."""
        found = self._socket.getpeercert() if isinstance(self._socket, ssl.SSLSocket) else None
        return None if not found else dict(found)

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        """Close it, also while another thread waits for an answer."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


def _context(authority: str) -> ssl.SSLContext:
    """Trust the servers of this pool, by whatever address they are reached, and nobody else."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    try:
        context.load_verify_locations(cadata=authority)
    except ssl.SSLError:
        raise Unavailable("the token file has no valid authority", hint="ask the admin for a new one") from None
    return context
