"""Forward connections, so that pods reach the API server at its service address without kube-proxy.

The API server itself listens on 127.0.0.1, which a pod cannot reach. This server listens on the service's address,
which exists only on this machine, and copies bytes; TLS is between pod and API server. It is started by its path
and therefore imports only the standard library.
"""

import asyncio
import sys
from contextlib import suppress

CHUNK = 65536


async def copy_stream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy bytes until one side ends, then close the other."""
    with suppress(ConnectionError):
        while data := await reader.read(CHUNK):
            writer.write(data)
            await writer.drain()
    with suppress(ConnectionError, RuntimeError):
        writer.close()


async def forward(target: str, *listen: str) -> None:
    """Serve every `listen` (host:port) forever; each connection gets its own connection to `target`."""
    target_host, _, target_port = target.rpartition(":")

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there_reader, there_writer = await asyncio.open_connection(target_host, int(target_port))
        except OSError:
            writer.close()
            return
        await asyncio.gather(copy_stream(reader, there_writer), copy_stream(there_reader, writer))

    servers: list[asyncio.Server] = []
    for address in listen:
        host, _, port = address.rpartition(":")
        servers.append(await asyncio.start_server(serve, host, int(port)))
    await asyncio.gather(*(server.serve_forever() for server in servers))


if __name__ == "__main__":
    asyncio.run(forward(*sys.argv[1:]))
