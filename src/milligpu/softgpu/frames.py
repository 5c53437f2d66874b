"""Requests and replies on a card's socket: a header and a body, and with some replies a file descriptor."""

import asyncio
import socket

from milligpu.softgpu import wire


async def receive_request(connection: socket.socket) -> tuple[int, bytes]:
    """The next request's kind and body; EOFError when there is none, or one that nobody sends in earnest."""
    kind, size = wire.REQUEST.unpack(await receive(connection, wire.REQUEST.size))
    if size > wire.LARGEST_BODY:
        raise EOFError
    return kind, await receive(connection, size)


async def receive(connection: socket.socket, size: int) -> bytes:
    """So many bytes."""
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
    """Answer a request."""
    header = wire.REPLY.pack(status, len(body))
    if descriptor >= 0:
        # Eight bytes to a client that waits for them: they always fit.
        socket.send_fds(connection, [header], [descriptor])
        header = b""
    await asyncio.get_running_loop().sock_sendall(connection, header + body)
