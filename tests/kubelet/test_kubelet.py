"""What our side of the kubelet's APIs refuses; how it works with a real kubelet is in tests/e2e."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import grpc.aio
import pytest

from milligpu.kubelet import device_plugin, rpc
from milligpu.kubelet._generated import deviceplugin_pb2 as pb
from milligpu.kubelet.device_plugin import SLOTS_MAX, DevicePlugin
from milligpu.kubelet.pod_resources import PodResources
from milligpu.model.errors import BadRequest, Unavailable


async def never(_slots: Sequence[str]) -> str:
    raise AssertionError("nothing may be allocated here")


def listing(plugin: grpc.aio.Channel) -> AsyncIterable[pb.ListAndWatchResponse]:
    """The slots that it offers, as the kubelet asks for them."""
    return plugin.unary_stream(
        "/v1beta1.DevicePlugin/ListAndWatch",
        request_serializer=pb.Empty.SerializeToString,
        response_deserializer=pb.ListAndWatchResponse.FromString,
    )(pb.Empty())


@pytest.mark.parametrize("slots", [[""], ["x" * 64], [str(number) for number in range(SLOTS_MAX + 1)]])
def test_slots_that_the_kubelet_cannot_take_are_refused(tmp_path: Path, slots: list[str]) -> None:
    plugin = DevicePlugin(tmp_path, "nvidia.com/vgpu", never)
    with pytest.raises(BadRequest, match="slot"):
        plugin.offer(slots)


def test_a_socket_path_that_is_too_long_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="at most 107"):
        DevicePlugin(tmp_path / ("x" * 100), "nvidia.com/vgpu", never)


def test_a_plugin_waits_for_a_kubelet_and_ends_when_cancelled(tmp_path: Path) -> None:
    async def scene() -> None:
        plugin = DevicePlugin(tmp_path, "nvidia.com/vgpu", never)
        running = asyncio.create_task(plugin.run())
        done, _ = await asyncio.wait([running], timeout=0.3)
        assert not done
        assert not plugin.registered.is_set()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(scene())


def test_the_error_names_the_socket_of_a_kubelet_that_is_away(tmp_path: Path) -> None:
    async def ask() -> None:
        kubelet = PodResources(tmp_path / "kubelet.sock")
        try:
            await kubelet.held()
        finally:
            await kubelet.close()

    with pytest.raises(Unavailable, match=r"kubelet at .*kubelet.sock: UNAVAILABLE"):
        asyncio.run(ask())


def test_withdrawn_slots_are_offered_again_before_allocate_answers_for_them(tmp_path: Path) -> None:
    async def scene() -> list[str]:
        said: list[str] = []

        async def allocate(slots: Sequence[str]) -> str:
            plugin.offer({"1", *slots})
            return "milligpu.dev/share=x"

        plugin = DevicePlugin(tmp_path, "nvidia.com/vgpu", allocate)
        server = await rpc.serve(tmp_path / "plugin.sock", "v1beta1.DevicePlugin", plugin.methods())
        plugin.offer({"1", "2"})
        async with rpc.channel(tmp_path / "plugin.sock") as kubelet:

            async def listen() -> None:
                async for message in listing(kubelet):
                    said.append(",".join(sorted(device.ID for device in message.devices)))
                    if len(said) == 1:
                        plugin.offer({"1"})

            listening = asyncio.create_task(listen())
            while len(said) < 2:
                await asyncio.sleep(0.01)
            request = pb.AllocateRequest(container_requests=[pb.ContainerAllocateRequest(devices_ids=["2"])])
            await rpc.call(kubelet, "/v1beta1.DevicePlugin/Allocate", request, pb.AllocateResponse, 10.0)
            said.append("answer")
            listening.cancel()
        await server.stop(grace=None)
        return said

    assert asyncio.run(scene()) == ["1,2", "1", "1,2", "answer"]


class Kubelet:
    """Registers plugins, and asks each for its slots; only after it has let go of them so many times."""

    def __init__(self, folder: Path, lets_go: int = 0) -> None:
        self._folder = folder
        self._lets_go = lets_go
        self._asking: list[asyncio.Task[None]] = []
        self._server: grpc.aio.Server | None = None
        self.endpoints: list[str] = []
        """The sockets that were registered, in order."""

    @property
    def registrations(self) -> int:
        return len(self.endpoints)

    async def __aenter__(self) -> "Kubelet":
        methods = {"Register": rpc.answering(pb.RegisterRequest, self._register)}
        self._server = await rpc.serve(self._folder / "kubelet.sock", "v1beta1.Registration", methods)
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._asking:
            task.cancel()
        await asyncio.gather(*self._asking, return_exceptions=True)
        assert self._server is not None
        await self._server.stop(grace=None)
        (self._folder / "kubelet.sock").unlink(missing_ok=True)

    async def _register(self, request: pb.RegisterRequest) -> pb.Empty:
        self.endpoints.append(request.endpoint)
        if self.registrations > self._lets_go:
            self._asking.append(asyncio.create_task(self._ask(self._folder / request.endpoint)))
        return pb.Empty()

    async def _ask(self, socket: Path) -> None:
        async with rpc.channel(socket) as plugin:
            async for _ in listing(plugin):
                pass


@asynccontextmanager
async def registered(folder: Path) -> AsyncGenerator[DevicePlugin]:
    plugin = DevicePlugin(folder, "nvidia.com/vgpu", never)
    running = asyncio.create_task(plugin.run())
    await asyncio.wait_for(plugin.registered.wait(), 30)
    yield plugin
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


def test_a_plugin_registers_again_if_the_kubelet_drops_it_before_asking_for_slots(
    tmp_path: Path,
) -> None:
    async def scene() -> int:
        async with Kubelet(tmp_path, lets_go=1) as kubelet, registered(tmp_path):
            return kubelet.registrations

    assert asyncio.run(scene()) == 2


def test_every_registration_has_a_socket_name_of_its_own_and_leaves_none(tmp_path: Path) -> None:
    # A kubelet of 1.37 never notices the end of a plugin that registered the same socket twice.
    async def scene() -> list[str]:
        async with Kubelet(tmp_path) as kubelet, registered(tmp_path) as plugin:
            for count in range(2, 6):
                plugin.register_again()
                async with asyncio.timeout(30):
                    while kubelet.registrations < count:
                        await asyncio.sleep(0.01)
            return kubelet.endpoints

    endpoints = asyncio.run(scene())
    assert len(set(endpoints)) == 5
    assert list(tmp_path.glob("*.sock")) == []


@pytest.mark.parametrize("watches", [True, False])
def test_a_restarted_kubelet_is_found_with_and_without_inotify(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, watches: bool
) -> None:
    def none_left() -> None:
        raise OSError("no more watches")

    if watches:
        monkeypatch.setattr(device_plugin, "_LOOK_S", 1000.0)
    else:
        monkeypatch.setattr(device_plugin, "Inotify", none_left)

    async def scene() -> int:
        async with AsyncExitStack() as stack:
            async with Kubelet(tmp_path):
                plugin = await stack.enter_async_context(registered(tmp_path))
            async with Kubelet(tmp_path) as kubelet, asyncio.timeout(30):
                while not (kubelet.registrations and plugin.registered.is_set()):
                    await asyncio.sleep(0.01)
                return kubelet.registrations

    assert asyncio.run(scene()) == 1
