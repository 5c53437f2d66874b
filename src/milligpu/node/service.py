"""The agent of a Kubernetes node: puts its parts together and keeps them running until SIGTERM."""

import asyncio
import os
import signal
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace

import structlog
from aiohttp import web
from prometheus_client.core import Metric

from milligpu.agent.arbiter import Arbiter
from milligpu.devices.cards import Cards
from milligpu.kube import config
from milligpu.kube.api import Api
from milligpu.kubelet.device_plugin import Allocate, DevicePlugin
from milligpu.metrics.node import families
from milligpu.model import names
from milligpu.model.footprint import Demand, held
from milligpu.node import slots
from milligpu.node.attachments import Attachments, our_libraries, shares
from milligpu.node.audit import AUDIT_S, NodeAudit
from milligpu.node.cards import CardWatch
from milligpu.node.complaints import Complaints
from milligpu.node.driver import Driver, find_driver
from milligpu.node.leases import Leases
from milligpu.node.ledger import Ledger
from milligpu.node.pods import NodePods
from milligpu.node.publish import Publisher
from milligpu.node.reconcile import Reconciler
from milligpu.node.settings import Settings
from milligpu.node.sickness import Sickness, on_sick_cards
from milligpu.node.stats import Stats, accelerator_stats
from milligpu.node.web import application

# The meter's window is ten seconds.
_SAMPLE_S = 2.0

log = structlog.get_logger()


class NodeAgent:
    """All of it, over one connection to the API server."""

    def __init__(self, settings: Settings, api: Api, cards: Cards, driver: Driver, arbiter: Arbiter) -> None:
        self._ledger = Ledger(settings.ledger)
        self._attachments = Attachments(settings.containers, settings.cdi, driver, our_libraries())
        self._cards = CardWatch(cards, self._cards_changed)
        self._leases = Leases(arbiter)
        self._stats = Stats(settings.node, self._cards, self._attachments, self._leases)
        self._audit = NodeAudit(api, settings.node, self._cards, self._attachments)
        self._listen = settings.listen
        self._pods = NodePods(api, settings.node, self._wake)
        self._publisher = Publisher(
            api,
            settings.node,
            driver=driver.version,
            listen=settings.listen,
            gpus=lambda: self._cards.gpus,
            obey=self._cards.obey,
        )
        self._sickness = Sickness(api, settings.node, self._on_sick_cards, lambda: self._pods.known)
        self._reconciler = Reconciler(
            settings,
            self._ledger,
            self._attachments,
            pods=self._pods,
            cards=self._cards,
            leases=self._leases,
            complaints=Complaints(api, settings.node, time.monotonic, settings.evict_after),
            changed=self._offer,
            now=time.monotonic,
        )
        self._plugins = {
            resource: DevicePlugin(settings.device_plugins, resource, self._allocate(resource))
            for resource in (names.VGPU, names.WHOLE_GPU)
        }
        self._offer()

    async def run(self) -> None:
        """Until cancelled; attaching begins when a pod that is gone can be told from one that was not seen yet."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._cards.run())
            tasks.create_task(self._pods.follow())
            tasks.create_task(self._publisher.run())
            for plugin in self._plugins.values():
                tasks.create_task(plugin.run())
            tasks.create_task(self._sample())
            tasks.create_task(self._serve())
            await self._pods.listed.wait()
            tasks.create_task(self._reconciler.run())
            tasks.create_task(self._sickness.run())
            tasks.create_task(self._watch_out())

    async def _sample(self) -> None:
        while True:
            self._stats.sample(time.monotonic())
            await asyncio.sleep(_SAMPLE_S)

    async def _watch_out(self) -> None:
        while True:
            await self._audit.look(self._pods.known)
            await asyncio.sleep(AUDIT_S)

    async def _serve(self) -> None:
        """Metrics and statistics, until cancelled."""
        pages = application(
            self._cards.read,
            self._families,
            lambda: accelerator_stats(self._stats.uses(self._pods.known)),
            self._ready,
        )
        runner = web.AppRunner(pages, access_log=None)
        await runner.setup()
        host, _, port = self._listen.rpartition(":")
        try:
            await web.TCPSite(runner, host, int(port)).start()
            await asyncio.Event().wait()
        finally:
            await runner.cleanup()

    def _families(self) -> Iterable[Metric]:
        cards = [
            replace(card, outside=self._audit.counts(card.uuid)) for card in self._stats.card_samples().values()
        ]
        return families(cards, self._stats.container_samples(self._pods.known))

    def _ready(self) -> bool:
        registered = all(plugin.registered.is_set() for plugin in self._plugins.values())
        return registered and self._publisher.published.is_set()

    def _allocate(self, resource: str) -> Allocate:
        async def allocate(wanted: Sequence[str]) -> str:
            name = await self._reconciler.allocate(resource, wanted)
            self._offer()
            return name

        return allocate

    def _on_sick_cards(self) -> dict[tuple[str, str], str]:
        return on_sick_cards(self._attachments.held.values(), self._cards.gpus, self._pods.known)

    def _wake(self) -> None:
        self._reconciler.wake()

    def _cards_changed(self) -> None:
        self._publisher.changed()
        self._sickness.changed()
        self._offer()
        self._wake()

    def _offer(self) -> None:
        gpus, taken = list(self._cards.gpus.values()), self._held()
        capacities = {
            names.VGPU: slots.share_capacity(gpus, taken) + self._resized(),
            names.WHOLE_GPU: slots.whole_capacity(gpus, taken),
        }
        for resource, capacity in capacities.items():
            used = {slot for each in self._ledger.entries if each.resource == resource for slot in each.slots}
            self._plugins[resource].offer(slots.offer(capacity, used))

    def _resized(self) -> int:
        """Slots beyond what is held, because the kubelet counts resized pods with what they asked for at first."""
        counted = {each.name: len(each.slots) for each in self._ledger.entries}
        held_now = self._attachments.held.values()
        return sum(
            counted.get(each.name, 0) - sum(share.milli for share in shares(each))
            for each in held_now
            if each.tenancy.grant.generation > 1
        )

    def _held(self) -> dict[str, Demand]:
        """What is in use of each card."""
        total: dict[str, Demand] = {}
        pods = {each.tenancy.uid: each.tenancy for each in self._attachments.held.values()}
        for tenancy in pods.values():
            for gpu, demand in held(tenancy.grant.containers, tenancy.kinds, self._cards.gpus).items():
                total[gpu] = total[gpu].plus(demand) if gpu in total else demand
        return total


async def serve(settings: Settings) -> None:
    """Run until SIGTERM or SIGINT."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    with Cards() as cards:
        driver = find_driver(cards, settings.state, os.environ)
        arbiter = Arbiter()
        try:
            async with Api(config.find(settings.kubeconfig)) as api:
                running = asyncio.create_task(NodeAgent(settings, api, cards, driver, arbiter).run())
                stopping = asyncio.create_task(stop.wait())
                log.info("serving", node=settings.node, gpus=len(cards.handles()))
                await asyncio.wait({running, stopping}, return_when=asyncio.FIRST_COMPLETED)
                if running.done():
                    running.result()
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)
        finally:
            arbiter.close()


def main(settings: Settings) -> None:
    """The process."""
    asyncio.run(serve(settings))
