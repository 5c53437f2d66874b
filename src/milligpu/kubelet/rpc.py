"""Typed gRPC calls over the kubelet's unix sockets; generated stubs have no types."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar, cast

import grpc
import grpc.aio
from google.protobuf.message import Message

_In = TypeVar("_In", bound=Message)
_Out = TypeVar("_Out", bound=Message)

# The kubelet's default; one answer about a full node with thousands of devices is nearly 1 MiB.
MESSAGE_MAX = 16 * 1024 * 1024


def channel(socket: Path) -> grpc.aio.Channel:
    return grpc.aio.insecure_channel(f"unix:{socket}", options=[("grpc.max_receive_message_length", MESSAGE_MAX)])


async def call(to: grpc.aio.Channel, method: str, message: Message, answer: type[_Out], timeout_s: float) -> _Out:
    """Call a method such as `/v1.PodResourcesLister/List` once."""
    unary = cast(
        "Callable[..., Awaitable[_Out]]",
        to.unary_unary(
            method, request_serializer=type(message).SerializeToString, response_deserializer=answer.FromString
        ),
    )
    return await unary(message, timeout=timeout_s)


def answering(takes: type[_In], handle: Callable[[_In], Awaitable[Message]]) -> Any:
    """Make a method that answers a message with one message."""

    async def serve(request: _In, _context: object) -> Message:
        return await handle(request)

    return grpc.unary_unary_rpc_method_handler(
        cast("Any", serve), request_deserializer=takes.FromString, response_serializer=_serialize
    )


def streaming(takes: type[_In], handle: Callable[[_In], AsyncIterator[Message]]) -> Any:
    """Make a method that answers a message with a stream of messages."""

    async def serve(request: _In, _context: object) -> AsyncIterator[Message]:
        async for message in handle(request):
            yield message

    return grpc.unary_stream_rpc_method_handler(
        cast("Any", serve), request_deserializer=takes.FromString, response_serializer=_serialize
    )


async def serve(socket: Path, service: str, methods: Mapping[str, Any]) -> grpc.aio.Server:
    """Start a server behind a unix socket."""
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, dict(methods)),))
    server.add_insecure_port(f"unix:{socket}")
    await server.start()
    return server


def _serialize(message: Message) -> bytes:
    return message.SerializeToString()
