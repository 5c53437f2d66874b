"""The agent of a Kubernetes node: puts its parts together and keeps them running until SIGTERM."""

import asyncio
import os
import signal
import time
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

import structlog
from aiohttp import web
from prometheus_client.core import Metric

from milligpu.agent.arbiter import Arbiter
from milligpu.agent.places import Places
from milligpu.agent.slots import FRAME, front
from milligpu.devices.cards import Cards
from milligpu.kube import config
from milligpu.kube.api import Api
from milligpu.kubelet.device_plugin import Allocate, DevicePlugin
from milligpu.metrics.node import families
from milligpu.model import names
from milligpu.model.errors import Unavailable
from milligpu.model.footprint import Demand, held
from milligpu.node import slots
from milligpu.node.attachments import Attachments, our_libraries, shares
from milligpu.node.audit import AUDIT_S, NodeAudit
from milligpu.node.cards import CardWatch
from milligpu.node.complaints import Complaints
from milligpu.node.driver import Driver, find_driver
from milligpu.node.leases import Leases
from milligpu.node.ledger import Ledger
from milligpu.node.local import Commands, Node, part_of
from milligpu.node.pods import NodePods
from milligpu.node.publish import Publisher
from milligpu.node.reconcile import Reconciler
from milligpu.node.settings import Settings
from milligpu.node.sickness import Sickness, on_sick_cards
from milligpu.node.stats import Stats, accelerator_stats
from milligpu.node.succession import Predecessor, Succession
from milligpu.node.web import application

# The meter's window is ten seconds.
_SAMPLE_S = 2.0
# Registering takes a successor moments; whoever waits for our end waits longer than this before it kills us.
_SETTLE_S = 8.0
# By then the kubelet has seen that its stream to the agent before has ended, and no longer takes that for our end.
_UNSEEN_S = 3.0

log = structlog.get_logger()


class NodeAgent:
    """All of it, over one connection to the API server."""

    def __init__(self, settings: Settings, api: Api, cards: Cards, driver: Driver, arbiter: Arbiter) -> None:
        self._ledger = Ledger(settings.ledger)
        self._attachments = Attachments(
            settings.containers,
            settings.cdi,
            driver,
            our_libraries(),
            lambda gpu: front(self._cards.gpus[gpu]) if gpu in self._cards.gpus else FRAME,
        )
        self._cards = CardWatch(cards, self._cards_changed, settings.reserved)
        here = Node(cards, driver, lambda: list(self._cards.gpus.values()), self._held)
        self._commands = Commands(Places(settings.commands), here, arbiter)
        self._leases = Leases(arbiter)
        self._stats = Stats(settings.node, self._cards, self._attachments, self._leases)
        self._audit = NodeAudit(api, settings.node, self._cards, self._attachments, self._commands.is_session)
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
        self._complaints = Complaints(api, settings.node, time.monotonic, settings.evict_after)
        self._reconciler = Reconciler(
            settings,
            self._ledger,
            self._attachments,
            pods=self._pods,
            cards=self._cards,
            leases=self._leases,
            complaints=self._complaints,
            changed=self._offer,
            now=time.monotonic,
        )
        self._plugins = {
            resource: DevicePlugin(settings.device_plugins, resource, self._allocate(resource))
            for resource in (names.VGPU, names.WHOLE_GPU)
        }
        self._settled = False
        self._offer()

    async def run(self) -> None:
        """Until cancelled; attaching begins when a pod that is gone can be told from one that was not seen yet."""
        self._commands.recover()
        self._keep()
        self._reconciler.recover()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._cards.run())
            tasks.create_task(self._pods.follow())
            tasks.create_task(self._publisher.run())
            tasks.create_task(self._sample())
            tasks.create_task(self._commands.serve())
            tasks.create_task(self._serve())
            await self._pods.listed.wait()
            tasks.create_task(self._reconciler.run())
            tasks.create_task(self._complaints.run())
            tasks.create_task(self._sickness.run())
            tasks.create_task(self._watch_out())

    async def register(self) -> None:
        """Answer the kubelet, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for plugin in self._plugins.values():
                tasks.create_task(plugin.run())

    async def settle(self, before: Predecessor | None) -> None:
        """Take the place of the agent before in the kubelet's eyes, too, which never sees nobody."""
        for plugin in self._plugins.values():
            await plugin.registered.wait()
        if before is not None:
            for plugin in self._plugins.values():
                await plugin.disown()
            await before.settled()
        self._settled = True
        if before is not None:
            await before.gone()
            await asyncio.sleep(_UNSEEN_S)
            for plugin in self._plugins.values():
                plugin.register_again()

    def retire(self) -> None:
        """A successor takes over."""
        for plugin in self._plugins.values():
            plugin.retire()

    async def _sample(self) -> None:
        while True:
            self._stats.sample(time.monotonic())
            self._keep()
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
        return self._settled and registered and self._publisher.published.is_set()

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
        self._commands.look_again()

    def _keep(self) -> None:
        gpus = self._cards.gpus
        self._cards.keep({uuid: part_of(gpus[uuid], held) for uuid, held in self._commands.held.items()})

    def _resized(self) -> int:
        """Slots beyond what is held, because the kubelet counts resized pods with what they asked for at first.

        Those that grew take none away: grants say what there is, and for want of slots a kubelet rejects for good.
        """
        counted = {each.name: len(each.slots) for each in self._ledger.entries}
        held_now = self._attachments.held.values()
        return sum(
            max(0, counted.get(each.name, 0) - sum(share.milli for share in shares(each)))
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


class _Office:
    """The process's way through life: waits for its turn, serves, and hands over."""

    def __init__(self, settings: Settings, stop: asyncio.Event, succession: Succession) -> None:
        self._settings = settings
        self._stop = stop
        self._succession = succession

    async def serve(self, cards: Cards, driver: Driver, api: Api) -> None:
        """Until told to stop."""
        before = await self._turn()
        if self._stop.is_set():
            return
        arbiter = Arbiter()
        try:
            agent = NodeAgent(self._settings, api, cards, driver, arbiter)
            log.info("serving", node=self._settings.node, gpus=len(cards.handles()))
            plugins = asyncio.create_task(agent.register())
            work = [asyncio.create_task(agent.run()), asyncio.create_task(agent.settle(before))]
            await self._first(work[0], plugins, asyncio.create_task(self._succession.asked.wait()))
            if self._succession.asked.is_set():
                agent.retire()
            await _end(work)
            arbiter.close()
            if self._succession.asked.is_set():
                await self._linger(plugins)
            await _end([plugins])
        finally:
            arbiter.close()

    async def _turn(self) -> Predecessor | None:
        turn = asyncio.create_task(self._succession.inherit())
        await self._first(turn)
        if not turn.done():
            await _end([turn])
            return None
        return turn.result()

    async def _first(self, *tasks: "asyncio.Task[Any]") -> None:
        """Wait for one of them, or to be told to stop; the failure of one is ours."""
        stopping = asyncio.create_task(self._stop.wait())
        done, _ = await asyncio.wait({stopping, *tasks}, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
        await _end([stopping])

    async def _linger(self, plugins: "asyncio.Task[Any]") -> None:
        """Keep what the kubelet has of us until the successor has taken our place, and we are told to stop."""
        self._succession.hand_over()
        log.info("handed over to a successor")
        abandoned = asyncio.create_task(self._succession.abandoned.wait())
        await self._first(plugins, abandoned)
        if not self._succession.settled.is_set():
            settled = asyncio.create_task(self._succession.settled.wait())
            await asyncio.wait({settled, abandoned}, timeout=_SETTLE_S, return_when=asyncio.FIRST_COMPLETED)
            await _end([settled])
        await _end([abandoned])
        if self._succession.abandoned.is_set():
            raise Unavailable("the successor ended before it had taken over", hint="start another agent")


async def _end(tasks: "Sequence[asyncio.Task[Any]]") -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def serve(settings: Settings) -> None:
    """Run until SIGTERM or SIGINT."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    with Cards() as cards:
        driver = find_driver(cards, settings.state, os.environ)
        async with Api(config.find(settings.kubeconfig)) as api:
            with closing(Succession(settings.run)) as succession:
                await _Office(settings, stop, succession).serve(cards, driver, api)


def main(settings: Settings) -> None:
    """The process."""
    asyncio.run(serve(settings))
