"""A device plugin: offers slots of one resource to the kubelet and answers when it hands them out.

Slots are anonymous: they only count. Whose they became is asked of the pod-resources API afterwards.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import grpc
import grpc.aio
from asyncinotify import Inotify, Mask

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

# While no plugin is registered, the kubelet rejects pods for good: one that restarts or starts is met at once.
_POLL_S = 0.1
# While the kernel tells of every change in the folder, this is for a folder that was replaced.
_LOOK_S = 2.0
_CHANGES = Mask.CREATE | Mask.DELETE | Mask.MOVED_TO | Mask.MOVED_FROM
_REGISTER_TIMEOUT_S = 5.0
# The kubelet asks for the slots of whom it has just registered within milliseconds.
_ASKED_S = 2.0
# A successor registers within moments; the kubelet waits for an answer as long as it takes.
_SUCCESSOR_S = 30.0
# The kubelet takes a list of thousands of slots in within milliseconds, and waits for an answer without end.
_HEARD_S = 0.5

Allocate = Callable[[Sequence[str]], Awaitable[str]]
"""Given the slots of one container, the CDI device name that it will need to start."""


class _Busy:
    """Who is at it, and a way to wait until nobody is."""

    def __init__(self) -> None:
        self._count = 0
        self._nobody = asyncio.Event()
        self._nobody.set()

    def __enter__(self) -> None:
        self._count += 1
        self._nobody.clear()

    def __exit__(self, *_: object) -> None:
        self._count -= 1
        if not self._count:
            self._nobody.set()

    async def ended(self) -> None:
        await self._nobody.wait()


class DevicePlugin:
    """One resource on one node; `run` keeps it registered, whatever the kubelet does."""

    def __init__(self, folder: Path, resource: str, allocate: Allocate) -> None:
        self._folder = folder
        self._resource = resource
        self._allocate = allocate
        self._name = f"{SOCKET_PREFIX}{resource.replace('/', '-')}-"
        # A new agent's socket stands beside that of the one before.
        self._socket = folder / f"{self._name}{secrets.token_hex(3)}.sock"
        if len(str(self._socket)) > SOCKET_PATH_MAX:
            raise BadRequest("socket", str(self._socket), f"at most {SOCKET_PATH_MAX} characters, as Linux has it")
        self._slots: frozenset[str] = frozenset()
        self._listeners: list[asyncio.Event] = []
        self._again = False
        self._look = asyncio.Event()
        """Set when there may be something to do about the kubelet."""
        self._retired = False
        self._sent: frozenset[str] = frozenset()
        """The slots that the kubelet last heard of."""
        self._answering = _Busy()
        self.registered = asyncio.Event()
        """Set while the kubelet knows us, and asks us and nobody else."""
        self._asked = asyncio.Event()
        """Set when it has asked for our slots since we last registered."""

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
        for listener in self._listeners:
            listener.set()

    async def run(self) -> None:
        """Serve and stay registered until cancelled; a restarted kubelet is registered with anew."""
        for left in self._folder.glob(f"{self._name}*.sock"):
            left.unlink(missing_ok=True)
        while True:
            kubelet = await self._kubelet_socket()
            self._socket.unlink(missing_ok=True)
            server = await rpc.serve(self._socket, f"{VERSION}.DevicePlugin", self.methods())
            watching = asyncio.create_task(self._watch_folder())
            try:
                await self._stay_registered(kubelet, watching)
            finally:
                watching.cancel()
                self.registered.clear()
                await self._answering.ended()  # a pod whose Allocate is cut off is rejected for good
                await server.stop(grace=None)
                self._socket.unlink(missing_ok=True)

    async def _stay_registered(self, kubelet: tuple[int, int], watching: "asyncio.Task[None]") -> None:
        """As long as it is this kubelet, whenever it lets go of us."""
        while self._retired or (self._identity(self._folder / KUBELET_SOCKET) == kubelet and self._socket.exists()):
            self._look.clear()
            if not self.registered.is_set() or self._again:
                self._again = False
                if await self._introduce():
                    self.registered.set()
                else:
                    self.registered.clear()
            told = self.registered.is_set() and not watching.done()
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_S if told else _POLL_S):
                    await self._look.wait()

    async def _watch_folder(self) -> None:
        """Look whenever a socket comes or goes; ends where the kernel has no more watches to give."""
        with suppress(OSError), Inotify() as folder:
            cast(Any, folder).add_watch(self._folder, _CHANGES)
            self._look.set()  # something may have changed before
            async for _ in folder:
                self._look.set()

    async def _introduce(self) -> bool:
        """Register, and be asked for our slots.

        A kubelet that sees late that an earlier stream has ended disconnects whom it registered since; where that
        comes before it has asked, there is no stream of ours whose end would tell us.
        """
        self._asked.clear()
        if await self._register(self._socket):
            with suppress(TimeoutError):
                async with asyncio.timeout(_ASKED_S):
                    await self._asked.wait()
        return self._asked.is_set()

    def register_again(self) -> None:
        """The kubelet may have let go of us."""
        if not self._retired:
            self._again = True
            self._look.set()

    async def disown(self) -> None:
        """Make the kubelet forget whose stream is whose, so that the end of a predecessor's is not taken for ours.

        A kubelet remembers one client per resource, and when any stream of it ends, disconnects whichever
        it remembers. A registration that fails leaves it with none, and what it has of us in use.
        """
        nobody = self._socket.with_suffix(".none")
        server = await rpc.serve(nobody, "milligpu.Nobody", {})
        try:
            await self._register(nobody)
        finally:
            await server.stop(grace=None)
            nobody.unlink(missing_ok=True)

    def retire(self) -> None:
        """A successor has registered, or is about to: keep the stream, and pass on what is asked of us still."""
        self._retired = True

    async def _pass_on(self, request: pb.AllocateRequest) -> pb.AllocateResponse:
        async with asyncio.timeout(_SUCCESSOR_S):
            while not (
                others := [each for each in self._folder.glob(f"{self._name}*.sock") if each != self._socket]
            ):
                await asyncio.sleep(_POLL_S)
        async with rpc.channel(others[0]) as successor:
            method = f"/{VERSION}.DevicePlugin/Allocate"
            return await rpc.call(successor, method, request, pb.AllocateResponse, _SUCCESSOR_S)

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

    async def _register(self, socket: Path) -> bool:
        """Tell the kubelet about us; one that is still starting, or just going, is met again."""
        request = pb.RegisterRequest(version=VERSION, endpoint=socket.name, resource_name=self._resource)
        async with rpc.channel(self._folder / KUBELET_SOCKET) as kubelet:
            try:
                method = f"/{VERSION}.Registration/Register"
                await rpc.call(kubelet, method, request, pb.Empty, _REGISTER_TIMEOUT_S)
            except grpc.aio.AioRpcError:
                return False
        return True

    def methods(self) -> dict[str, object]:
        """What the kubelet may call."""
        return {
            "GetDevicePluginOptions": rpc.answering(pb.Empty, self._on_options),
            "ListAndWatch": rpc.streaming(pb.Empty, self._on_list),
            "Allocate": rpc.answering(pb.AllocateRequest, self._on_allocate),
        }

    async def _on_options(self, _request: pb.Empty) -> pb.DevicePluginOptions:
        return pb.DevicePluginOptions()

    async def _on_list(self, _request: pb.Empty) -> AsyncIterator[pb.ListAndWatchResponse]:
        changed = asyncio.Event()
        self._listeners.append(changed)
        self._asked.set()
        try:
            while True:
                changed.clear()
                self._sent = self._slots
                yield pb.ListAndWatchResponse(devices=[pb.Device(ID=slot, health="Healthy") for slot in self._sent])
                await changed.wait()
        finally:
            latest = self._listeners[-1] is changed
            self._listeners.remove(changed)
            if latest:
                self.register_again()

    async def _on_allocate(self, request: pb.AllocateRequest) -> pb.AllocateResponse:
        """Answer, and never about slots that the kubelet believes to be gone.

        It may have chosen them just before it heard that; of such an answer it dies (a nil pointer, in 1.36). Whose
        slots they became is in use, and in use is offered again: it has to hear of that first.
        """
        with self._answering:
            return await (self._pass_on(request) if self._retired else self._answer(request))

    async def _answer(self, request: pb.AllocateRequest) -> pb.AllocateResponse:
        gone = {slot for each in request.container_requests for slot in each.devices_ids} - self._sent
        names = [await self._allocate(tuple(each.devices_ids)) for each in request.container_requests]
        if gone:
            await asyncio.sleep(_HEARD_S)
        return pb.AllocateResponse(
            container_responses=[
                pb.ContainerAllocateResponse(cdi_devices=[pb.CDIDevice(name=name)]) for name in names
            ]
        )
