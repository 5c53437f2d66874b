"""What our side of the kubelet's APIs refuses; how it works with a real kubelet is in tests/e2e."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from milligpu.kubelet import rpc
from milligpu.kubelet._generated import deviceplugin_pb2 as pb
from milligpu.kubelet.device_plugin import SLOTS_MAX, DevicePlugin
from milligpu.kubelet.pod_resources import PodResources
from milligpu.model.errors import BadRequest, Unavailable


async def never(_slots: Sequence[str]) -> str:
    raise AssertionError("nothing may be allocated here")


@pytest.mark.parametrize("slots", [[""], ["x" * 64], [str(number) for number in range(SLOTS_MAX + 1)]])
def test_slots_that_the_kubelet_would_choke_on_are_refused(tmp_path: Path, slots: list[str]) -> None:
    plugin = DevicePlugin(tmp_path, "nvidia.com/vgpu", never)
    with pytest.raises(BadRequest, match="slot"):
        plugin.offer(slots)


def test_a_folder_too_deep_for_a_socket_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="at most 107"):
        DevicePlugin(tmp_path / ("x" * 100), "nvidia.com/vgpu", never)


def test_a_plugin_waits_for_a_kubelet_and_ends_when_told(tmp_path: Path) -> None:
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


def test_a_kubelet_that_is_away_is_named(tmp_path: Path) -> None:
    async def ask() -> None:
        kubelet = PodResources(tmp_path / "kubelet.sock")
        try:
            await kubelet.held()
        finally:
            await kubelet.close()

    with pytest.raises(Unavailable, match=r"kubelet at .*kubelet.sock: UNAVAILABLE"):
        asyncio.run(ask())


def test_the_kubelet_hears_of_slots_that_were_taken_back_before_the_answer_about_them(tmp_path: Path) -> None:
    async def scene() -> list[str]:
        said: list[str] = []

        async def allocate(slots: Sequence[str]) -> str:
            plugin.offer({"1", *slots})
            return "milligpu.dev/share=x"

        plugin = DevicePlugin(tmp_path, "nvidia.com/vgpu", allocate)
        server = await rpc.serve(tmp_path / "plugin.sock", "v1beta1.DevicePlugin", plugin.methods())
        plugin.offer({"1", "2"})
        async with rpc.channel(tmp_path / "plugin.sock") as kubelet:
            listing = kubelet.unary_stream(
                "/v1beta1.DevicePlugin/ListAndWatch",
                request_serializer=pb.Empty.SerializeToString,
                response_deserializer=pb.ListAndWatchResponse.FromString,
            )(pb.Empty())

            async def listen() -> None:
                async for message in listing:
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


def test_a_kubelet_that_lets_go_of_a_plugin_before_it_asked_for_its_slots_is_registered_with_again(
    tmp_path: Path,
) -> None:
    async def scene() -> int:
        registrations = 0

        async def register(request: pb.RegisterRequest) -> pb.Empty:
            nonlocal registrations
            registrations += 1
            if registrations == 2:
                asking.append(asyncio.create_task(ask(tmp_path / request.endpoint)))
            return pb.Empty()

        async def ask(socket: Path) -> None:
            async with rpc.channel(socket) as plugin:
                listing = plugin.unary_stream(
                    "/v1beta1.DevicePlugin/ListAndWatch",
                    request_serializer=pb.Empty.SerializeToString,
                    response_deserializer=pb.ListAndWatchResponse.FromString,
                )(pb.Empty())
                async for _ in listing:
                    pass

        asking: list[asyncio.Task[None]] = []
        methods = {"Register": rpc.answering(pb.RegisterRequest, register)}
        kubelet = await rpc.serve(tmp_path / "kubelet.sock", "v1beta1.Registration", methods)
        plugin = DevicePlugin(tmp_path, "nvidia.com/vgpu", never)
        running = asyncio.create_task(plugin.run())
        await asyncio.wait_for(plugin.registered.wait(), 30)
        for task in (*asking, running):
            task.cancel()
        await asyncio.gather(*asking, running, return_exceptions=True)
        await kubelet.stop(grace=None)
        return registrations

    assert asyncio.run(scene()) == 2
