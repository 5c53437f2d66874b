"""A GPU server's answer to a question about its health."""

import asyncio
import sys
from collections.abc import Callable

import msgspec

from milligpu import __version__
from milligpu.model.errors import BadRequest, Unavailable
from milligpu.remote import protocol
from milligpu.remote.protocol import HealthLine, HealthPayload, HealthRead, ReadHealth, encode_line

PAYLOAD_MAX = 4 << 20
"""What is sent to measure the bandwidth, at most."""
# Opening NVML and CUDA of eight GPUs takes some seconds.
_SECONDS = 90.0
_COMMAND = (sys.executable, "-m", "milligpu.checks.health_server")


async def report_health(request: ReadHealth, writer: asyncio.StreamWriter, now: Callable[[], float]) -> None:
    """Send what the checks found, then the bytes by which the client measures the bandwidth."""
    if not 0 <= request.payload <= PAYLOAD_MAX:
        raise BadRequest("payload", request.payload, f"from 0 to {PAYLOAD_MAX} bytes")
    lines = await _run_checks()
    writer.write(encode_line(HealthRead(__version__, protocol.VERSION, now(), lines)))
    await writer.drain()
    if request.payload:
        writer.write(encode_line(HealthPayload("x" * request.payload)))
        await writer.drain()


async def _run_checks() -> list[HealthLine]:
    process = await asyncio.create_subprocess_exec(
        *_COMMAND, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE
    )
    try:
        async with asyncio.timeout(_SECONDS):
            output, _ = await process.communicate()
        return msgspec.json.decode(output, type=list[HealthLine])
    except TimeoutError:
        raise Unavailable(f"the checks did not end within {_SECONDS:g} s: the driver may hang") from None
    except msgspec.DecodeError:
        raise Unavailable("the checks failed; the server's log says why") from None
    finally:
        if process.returncode is None:
            process.kill()
