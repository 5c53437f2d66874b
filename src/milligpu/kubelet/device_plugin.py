"""A device plugin: offers device slots of one resource to the kubelet and answers its Allocate calls.

Slots are anonymous and only count. Which container got them is found out from the kubelet afterwards.
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
from milligpu.wait import wait_for_event

VERSION = "v1beta1"
KUBELET_SOCKET = "kubelet.sock"
SOCKET_PREFIX = "milligpu-"
"""The prefix of our plugins' socket names."""
# The kubelet's limits: an ID has at most 63 characters, and a list of more IDs than this nears its 4 MiB.
SLOT_MAX = 63
SLOTS_MAX = 50_000

SOCKET_PATH_MAX = 107

# While no plugin is registered the kubelet rejects pods for good, so a kubelet that starts is found quickly.
_POLL_S = 0.1
# Inotify reports every change in the directory; this is for a directory that was replaced.
_LOOK_S = 2.0
_CHANGES = Mask.CREATE | Mask.DELETE | Mask.MOVED_TO | Mask.MOVED_FROM
_REGISTER_TIMEOUT_S = 5.0
# The kubelet asks a newly registered plugin for its slots within milliseconds.
_ASKED_S = 2.0
# A successor registers within moments; the kubelet waits for an answer as long as it takes.
_SUCCESSOR_S = 30.0
# The kubelet processes a list of thousands of slots within milliseconds, and waits for an answer without limit.
_HEARD_S = 0.5

Allocate = Callable[[Sequence[str]], Awaitable[str]]
"""Takes the slots of one container; returns the CDI name of the device that the container needs to start."""


class _Busy:
    """Counts calls in progress, and waits until there are none."""

    def __init__(self) -> None:
        self._count = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def __enter__(self) -> None:
        self._count += 1
        self._idle.clear()

    def __exit__(self, *_: object) -> None:
        self._count -= 1
        if not self._count:
            self._idle.set()

    async def ended(self) -> None:
        await self._idle.wait()


class DevicePlugin:
    """One resource on one node; `run` keeps it registered across restarts of the kubelet."""

    def __init__(
        self, folder: Path, resource: str, allocate: Allocate, *, on_sent: Callable[[], None] = lambda: None
    ) -> None:
        """`on_sent` is called when the kubelet was sent other slots."""
        self._folder = folder
        self._on_sent = on_sent
        self._resource = resource
        self._allocate = allocate
        self._name = f"{SOCKET_PREFIX}{resource.replace('/', '-')}-"
        # A new agent's socket exists next to that of its predecessor.
        self._socket = self._unused_name()
        if len(str(self._socket)) > SOCKET_PATH_MAX:
            raise BadRequest("socket", str(self._socket), f"at most {SOCKET_PATH_MAX} characters (Linux)")
        self._registered_names: list[Path] = []
        """The names of the last two registrations."""
        self._slots: frozenset[str] = frozenset()
        self._listeners: list[asyncio.Event] = []
        self._again = False
        self._look = asyncio.Event()
        """Set when the kubelet's socket or the registration may have changed."""
        self._retired = False
        self._sent: frozenset[str] = frozenset()
        """The slots that were last sent to the kubelet."""
        self._answering = _Busy()
        self.registered = asyncio.Event()
        """Set while the kubelet has registered this plugin for the resource."""
        self._asked = asyncio.Event()
        """Set when the kubelet has asked for the slots since the last registration."""

    @property
    def sent_count(self) -> int:
        """The number of slots that the kubelet has; 0 if it does not listen."""
        return len(self._sent) if self._listeners and self.registered.is_set() else 0

    def offer(self, slots: Iterable[str]) -> None:
        """Replace the slots; changes are sent to the kubelet at once."""
        found = frozenset(slots)
        if found == self._slots:
            return
        if len(found) > SLOTS_MAX:
            raise BadRequest("slots", len(found), f"at most {SLOTS_MAX}, the longest list that the kubelet accepts")
        for slot in found:
            if not 1 <= len(slot) <= SLOT_MAX:
                raise BadRequest("slot", slot, f"1 to {SLOT_MAX} characters")
        self._slots = found
        for listener in self._listeners:
            listener.set()

    async def run(self) -> None:
        """Serve and stay registered until cancelled; registers again with a restarted kubelet."""
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
                await self._answering.ended()  # the kubelet rejects a pod for good if its Allocate breaks off
                await server.stop(grace=None)
                for name in self._own_sockets():
                    name.unlink(missing_ok=True)

    async def _stay_registered(self, kubelet: tuple[int, int], watching: "asyncio.Task[None]") -> None:
        """Register again whenever this kubelet drops the plugin, until the kubelet is another one."""
        while self._retired or (self._identity(self._folder / KUBELET_SOCKET) == kubelet and self._socket.exists()):
            self._look.clear()
            if not self.registered.is_set() or self._again:
                self._again = False
                if await self._introduce():
                    self.registered.set()
                else:
                    self.registered.clear()
            watched = self.registered.is_set() and not watching.done()
            await wait_for_event(self._look, _LOOK_S if watched else _POLL_S)

    async def _watch_folder(self) -> None:
        """Check whenever a socket is added or removed; ends if the kernel has no inotify watch left."""
        with suppress(OSError), Inotify() as folder:
            cast(Any, folder).add_watch(self._folder, _CHANGES)
            self._look.set()  # something may have changed before
            async for _ in folder:
                self._look.set()

    async def _introduce(self) -> bool:
        """Register, and wait until the kubelet asks for the slots.

        A kubelet that notices late that an earlier stream has ended disconnects the plugin that registered since.
        If that happens before it has asked for the slots, no stream of this plugin ends, and nothing else shows it.
        """
        self._asked.clear()
        try:
            socket = self._name_registration()
        except OSError:  # the kubelet that starts has just removed the socket
            return False
        return await self._register(socket) and await wait_for_event(self._asked, _ASKED_S)

    def _unused_name(self) -> Path:
        return self._folder / f"{self._name}{secrets.token_hex(3)}.sock"

    def _name_registration(self) -> Path:
        """Give the socket another name for one more registration.

        From 1.37 on, the kubelet keeps its plugins by socket. It refuses a socket that is registered a second time,
        and then forgets the first registration without taking its slots away when the plugin ends.
        """
        name = self._unused_name()
        name.hardlink_to(self._socket)
        self._registered_names.append(name)
        # The kubelet may not have opened the name before this one yet.
        for old in self._registered_names[:-2]:
            old.unlink(missing_ok=True)
        del self._registered_names[:-2]
        return name

    def _own_sockets(self) -> list[Path]:
        return [self._socket, *self._registered_names]

    def register_again(self) -> None:
        """Register again, because the kubelet may have dropped this plugin."""
        if not self._retired:
            self._again = True
            self._look.set()

    async def disown(self) -> None:
        """Keep the kubelet from taking the end of a predecessor's stream for the end of this plugin.

        A kubelet remembers one client per resource, and disconnects that one when any stream of the resource ends.
        A registration that fails leaves it with no client to disconnect, while it keeps the slots.
        """
        absent = self._socket.with_suffix(".none")
        server = await rpc.serve(absent, "milligpu.Nobody", {})
        try:
            await self._register(absent)
        finally:
            await server.stop(grace=None)
            absent.unlink(missing_ok=True)

    def retire(self) -> None:
        """Keep the stream and pass Allocate calls on, because a successor registers."""
        self._retired = True

    async def _pass_on(self, request: pb.AllocateRequest) -> pb.AllocateResponse:
        async with asyncio.timeout(_SUCCESSOR_S):
            while not (others := {*self._folder.glob(f"{self._name}*.sock")} - {*self._own_sockets()}):
                await asyncio.sleep(_POLL_S)
        async with rpc.channel(others.pop()) as successor:
            method = f"/{VERSION}.DevicePlugin/Allocate"
            return await rpc.call(successor, method, request, pb.AllocateResponse, _SUCCESSOR_S)

    async def _kubelet_socket(self) -> tuple[int, int]:
        while (found := self._identity(self._folder / KUBELET_SOCKET)) is None:
            await asyncio.sleep(_POLL_S)
        return found

    @staticmethod
    def _identity(socket: Path) -> tuple[int, int] | None:
        """Return what distinguishes a socket from one that replaces it."""
        try:
            found = socket.stat()
        except FileNotFoundError:
            return None
        return found.st_ino, found.st_ctime_ns

    async def _register(self, socket: Path) -> bool:
        """Register with the kubelet; False if it is starting or stopping."""
        request = pb.RegisterRequest(version=VERSION, endpoint=socket.name, resource_name=self._resource)
        async with rpc.channel(self._folder / KUBELET_SOCKET) as kubelet:
            try:
                method = f"/{VERSION}.Registration/Register"
                await rpc.call(kubelet, method, request, pb.Empty, _REGISTER_TIMEOUT_S)
            except grpc.aio.AioRpcError:
                return False
        return True

    def methods(self) -> dict[str, object]:
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
                self._on_sent()
                await changed.wait()
        finally:
            latest = self._listeners[-1] is changed
            self._listeners.remove(changed)
            if latest:
                self.register_again()

    async def _on_allocate(self, request: pb.AllocateRequest) -> pb.AllocateResponse:
        """Answer, but not before the kubelet knows all slots that it asked for.

        It may have chosen slots just before it received a list without them, and would crash on the answer (a nil
        pointer, in 1.36). Slots in use are offered again, so the kubelet has to receive that list first.
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
