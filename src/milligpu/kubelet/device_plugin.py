"""A device plugin: offers slots of one resource to the kubelet and answers when it hands them out.

Slots are anonymous: they only count. Whose they became is asked of the pod-resources API afterwards.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from pathlib import Path

import grpc
import grpc.aio

from milligpu.kubelet import rpc
from milligpu.kubelet._generated import deviceplugin_pb2 as pb
from milligpu.model.errors import BadRequest

VERSION = "v1beta1"
KUBELET_SOCKET = "kubelet.sock"
SOCKET_PREFIX = "milligpu-"
"""Of our plugins' sockets."""
# The kubelet's limits: an ID has at most 63 characters, and a list of more IDs than this nears its 4 MiB.
SLOT_MAX = 63
SLOTS_MAX = 50_000

SOCKET_PATH_MAX = 107

# While no plugin is registered, the kubelet rejects pods for good: notice its restart quickly. Two stats cost 5 us.
_POLL_S = 0.1
_REGISTER_TIMEOUT_S = 5.0

Allocate = Callable[[Sequence[str]], Awaitable[str]]
"""Given the slots of one container, the CDI device name that it will need to start."""


class DevicePlugin:
    """One resource on one node; `run` keeps it registered, whatever the kubelet does."""

    def __init__(self, folder: Path, resource: str, allocate: Allocate) -> None:
        self._folder = folder
        self._resource = resource
        self._allocate = allocate
        self._socket = folder / f"{SOCKET_PREFIX}{resource.replace('/', '-')}.sock"
        if len(str(self._socket)) > SOCKET_PATH_MAX:
            raise BadRequest("socket", str(self._socket), f"at most {SOCKET_PATH_MAX} characters, as Linux has it")
        self._slots: frozenset[str] = frozenset()
        self._changed = asyncio.Event()
        self.registered = asyncio.Event()
        """Set while the kubelet knows us."""

    def offer(self, slots: Iterable[str]) -> None:
        """Replace the slots; the kubelet is told at once, where they are others than before."""
        found = frozenset(slots)
        if found == self._slots:
            return
        if len(found) > SLOTS_MAX:
            raise BadRequest("slots", len(found), f"at most {SLOTS_MAX}: the kubelet takes no longer list")
        for slot in found:
            if not 1 <= len(slot) <= SLOT_MAX:
                raise BadRequest("slot", slot, f"1 to {SLOT_MAX} characters")
        self._slots = found
        self._changed.set()

    async def run(self) -> None:
        """Serve and stay registered until cancelled; a restarted kubelet is registered with anew."""
        while True:
            kubelet = await self._kubelet_socket()
            self._socket.unlink(missing_ok=True)
            server = await rpc.serve(self._socket, f"{VERSION}.DevicePlugin", self._methods())
            try:
                if await self._register():
                    self.registered.set()
                    while self._identity(self._folder / KUBELET_SOCKET) == kubelet and self._socket.exists():
                        await asyncio.sleep(_POLL_S)
                else:
                    await asyncio.sleep(_POLL_S)
            finally:
                self.registered.clear()
                await server.stop(grace=None)
                self._socket.unlink(missing_ok=True)

    async def _kubelet_socket(self) -> tuple[int, int]:
        while (found := self._identity(self._folder / KUBELET_SOCKET)) is None:
            await asyncio.sleep(_POLL_S)
        return found

    @staticmethod
    def _identity(socket: Path) -> tuple[int, int] | None:
        """What tells a socket from the one that replaces it."""
        try:
            found = socket.stat()
        except FileNotFoundError:
            return None
        return found.st_ino, found.st_ctime_ns

    async def _register(self) -> bool:
        """Tell the kubelet about us; one that is still starting, or just going, is met again."""
        request = pb.RegisterRequest(version=VERSION, endpoint=self._socket.name, resource_name=self._resource)
        async with rpc.channel(self._folder / KUBELET_SOCKET) as kubelet:
            try:
                method = f"/{VERSION}.Registration/Register"
                await rpc.call(kubelet, method, request, pb.Empty, _REGISTER_TIMEOUT_S)
            except grpc.aio.AioRpcError:
                return False
        return True

    def _methods(self) -> dict[str, object]:
        return {
            "GetDevicePluginOptions": rpc.answering(pb.Empty, self._on_options),
            "ListAndWatch": rpc.streaming(pb.Empty, self._on_list),
            "Allocate": rpc.answering(pb.AllocateRequest, self._on_allocate),
        }

    async def _on_options(self, _request: pb.Empty) -> pb.DevicePluginOptions:
        return pb.DevicePluginOptions()

    async def _on_list(self, _request: pb.Empty) -> AsyncIterator[pb.ListAndWatchResponse]:
        while True:
            self._changed.clear()
            yield pb.ListAndWatchResponse(devices=[pb.Device(ID=slot, health="Healthy") for slot in self._slots])
            await self._changed.wait()

    async def _on_allocate(self, request: pb.AllocateRequest) -> pb.AllocateResponse:
        names = [await self._allocate(tuple(each.devices_ids)) for each in request.container_requests]
        return pb.AllocateResponse(
            container_responses=[
                pb.ContainerAllocateResponse(cdi_devices=[pb.CDIDevice(name=name)]) for name in names
            ]
        )
