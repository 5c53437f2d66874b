"""The agent process: it waits for the agent lock, serves until SIGTERM, and hands over to a successor."""

import asyncio
import os
import signal
from collections.abc import Sequence
from contextlib import closing
from typing import Any

import structlog

from milligpu.agent.driver import NodeDriver, find_driver, find_host_paths, open_node_nvml
from milligpu.agent.handover import AgentHandover, Predecessor
from milligpu.agent.service import NodeAgent
from milligpu.agent.settings import AgentSettings
from milligpu.kube import config
from milligpu.kube.api import ApiClient
from milligpu.logs import configure_logs
from milligpu.model.errors import Unavailable
from milligpu.nvml.gpus import NvmlGpus
from milligpu.tenancy.arbiter import Arbiter

# A successor registers within moments. Whatever stops this process waits longer than this before it kills it.
_SETTLE_S = 8.0

log = structlog.get_logger()


class AgentLifecycle:
    """Wait for the agent lock, serve, then hand over to a successor."""

    def __init__(self, settings: AgentSettings, stop: asyncio.Event, handover: AgentHandover) -> None:
        self._settings = settings
        self._stop = stop
        self._handover = handover

    async def serve(self, nvml: NvmlGpus, driver: NodeDriver, api: ApiClient) -> None:
        """Run the agent until it should stop, or has handed over to a successor."""
        before = await self._turn()
        if self._stop.is_set():
            return
        arbiter = Arbiter()
        try:
            agent = NodeAgent(self._settings, api, nvml, driver, arbiter)
            log.info("Started serving", node=self._settings.node, gpus=len(nvml.handles()))
            plugins = asyncio.create_task(agent.register())
            work = [asyncio.create_task(agent.run()), asyncio.create_task(agent.finish_handover(before))]
            await self._first(work[0], plugins, asyncio.create_task(self._handover.asked.wait()))
            if self._handover.asked.is_set():
                agent.retire()
            await _end(work)
            arbiter.close()
            if self._handover.asked.is_set():
                await self._linger(plugins)
            await _end([plugins])
        finally:
            arbiter.close()

    async def _turn(self) -> Predecessor | None:
        turn = asyncio.create_task(self._handover.take_over())
        await self._first(turn)
        if not turn.done():
            await _end([turn])
            return None
        return turn.result()

    async def _first(self, *tasks: "asyncio.Task[Any]") -> None:
        """Wait until one task ends or the process should stop; raise the error of a task that failed."""
        stopping = asyncio.create_task(self._stop.wait())
        done, _ = await asyncio.wait({stopping, *tasks}, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
        await _end([stopping])

    async def _linger(self, plugins: "asyncio.Task[Any]") -> None:
        """Stay registered with the kubelet until the successor has registered and this process should stop."""
        self._handover.hand_over()
        log.info("Handed over to a successor")
        abandoned = asyncio.create_task(self._handover.abandoned.wait())
        await self._first(plugins, abandoned)
        if not self._handover.settled.is_set():
            settled = asyncio.create_task(self._handover.settled.wait())
            await asyncio.wait({settled, abandoned}, timeout=_SETTLE_S, return_when=asyncio.FIRST_COMPLETED)
            await _end([settled])
        await _end([abandoned])
        if self._handover.abandoned.is_set():
            raise Unavailable("the successor ended before it had taken over", hint="start another agent")


async def _end(tasks: "Sequence[asyncio.Task[Any]]") -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def serve(settings: AgentSettings) -> None:
    """Run until SIGTERM or SIGINT."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    host = find_host_paths(settings.host_root, settings.driver_root, os.environ)
    with open_node_nvml(host) as nvml:
        settings.check_indices(nvml.count())
        driver = find_driver(nvml, settings.state, os.environ, host)
        async with ApiClient(config.find_cluster(settings.kubeconfig)) as api:
            with closing(AgentHandover(settings.run)) as handover:
                await AgentLifecycle(settings, stop, handover).serve(nvml, driver, api)


def main(settings: AgentSettings) -> None:
    configure_logs(structured=True)
    asyncio.run(serve(settings))
