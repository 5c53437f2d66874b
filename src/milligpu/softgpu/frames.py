"""Requests and replies on a GPU's socket: a header and a body, and with some replies a file descriptor."""

import asyncio
import socket

from milligpu.softgpu import driver_wire


async def receive_request(connection: socket.socket) -> tuple[int, bytes]:
    """Read the next request's kind and body; EOFError at the end of the stream or if the body is too large."""
    kind, size = driver_wire.REQUEST.unpack(await receive(connection, driver_wire.REQUEST.size))
    if size > driver_wire.LARGEST_BODY:
        raise EOFError
    return kind, await receive(connection, size)


async def receive(connection: socket.socket, size: int) -> bytes:
    """Read exactly `size` bytes; EOFError if the stream ends before."""
    loop = asyncio.get_running_loop()
    parts: list[bytes] = []
    while size:
        part = await loop.sock_recv(connection, min(size, 1 << 20))
        if not part:
            raise EOFError
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


async def reply(connection: socket.socket, status: int, body: bytes, descriptor: int = -1) -> None:
    header = driver_wire.REPLY.pack(status, len(body))
    if descriptor >= 0:
        # Eight bytes always fit into the socket of a client that waits for a reply.
        socket.send_fds(connection, [header], [descriptor])
        header = b""
    await asyncio.get_running_loop().sock_sendall(connection, header + body)
