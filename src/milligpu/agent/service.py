"""The agent of a Kubernetes node: its parts, and the tasks that run them."""

import asyncio
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec
from prometheus_client.core import Metric

from milligpu.agent import device_slots as slots
from milligpu.agent.accounts import holders_by_gpu
from milligpu.agent.allocations import AllocationStore
from milligpu.agent.attach_plan import newer_attachment
from milligpu.agent.attachments import AttachmentStore, our_libraries
from milligpu.agent.audit import ContainerAudit
from milligpu.agent.driver import NodeDriver
from milligpu.agent.endpoints import agent_routes
from milligpu.agent.gpus import GpuWatch
from milligpu.agent.grant_check import NodeGpus, demand_by_gpu
from milligpu.agent.handover import Predecessor
from milligpu.agent.health_events import UnhealthyGpuReporter, on_unhealthy_gpus
from milligpu.agent.pod_processes import pods_running
from milligpu.agent.pods import NodePods
from milligpu.agent.publish import NodePublisher
from milligpu.agent.reconcile import Reconciler
from milligpu.agent.refusals import RefusalReporter
from milligpu.agent.sessions import NodeSessions
from milligpu.agent.settings import AgentSettings
from milligpu.agent.slot_report import SlotReporter
from milligpu.agent.stranded import StrandedPods
from milligpu.agent.usage import UsageReader
from milligpu.http_server import serving
from milligpu.kube.api import ApiClient
from milligpu.kube.events import EventRecorder
from milligpu.kubelet.device_plugin import Allocate, DevicePlugin
from milligpu.metrics.node import families
from milligpu.model import names
from milligpu.model.footprint import GpuDemand
from milligpu.nvml.gpus import NvmlGpus
from milligpu.sessions.paths import ServicePaths
from milligpu.tenancy.arbiter import Arbiter
from milligpu.tenancy.energy import EnergyAccounts
from milligpu.tenancy.tenants import Tenants
from milligpu.wire.status import MachineStatus, encode_status

if TYPE_CHECKING:
    from milligpu.sessions.service import SessionService

# Utilization is measured over ten seconds.
_SAMPLE_S = 2.0
# By then the kubelet has noticed that its stream to the previous agent ended. A registration before that would be
# dropped together with the stream.
_UNSEEN_S = 3.0


class NodeAgent:
    """All parts of the agent, over one client of the API server."""

    def __init__(
        self, settings: AgentSettings, api: ApiClient, nvml: NvmlGpus, driver: NodeDriver, arbiter: Arbiter
    ) -> None:
        self._node = settings.node
        self._allocations = AllocationStore(settings.ledger)
        self._tenants = Tenants(arbiter)
        self._gpus = GpuWatch(
            nvml,
            self._gpus_changed,
            settings.reserved,
            settings.share_policy,
            unmeasured=driver.unmeasured,
        )
        self._attachments = AttachmentStore(
            settings.containers,
            settings.cdi,
            driver,
            our_libraries(),
            tenants=self._tenants,
            gpus=lambda: self._gpus.gpus,
        )
        self._energy = EnergyAccounts()
        self._reading: asyncio.Task[None] | None = None
        self._nvml = nvml
        self._driver = driver
        self._session_paths = ServicePaths(settings.commands)
        self._sessions = NodeSessions(self._session_paths, self._make_session_service)
        self._usage = UsageReader(
            settings.node,
            self._gpus,
            self._attachments,
            tenants=self._tenants,
            sessions=self._sessions.status,
            demands=self._demand_of_pods,
            energy=self._energy,
        )
        self._events = EventRecorder(api, names.AGENT_CONTROLLER, settings.node, time.monotonic)
        self._audit = ContainerAudit(
            self._events,
            self._gpus,
            self._attachments,
            tenants=self._tenants,
            elsewhere=self._sessions.is_session,
            kill=settings.kill_outside,
        )
        self._audit_every = settings.audit_every
        self._listen = settings.listen
        self._pods = NodePods(api, settings.node, self._wake)
        self._publisher = NodePublisher(
            api,
            settings.node,
            driver=driver.version,
            listen=settings.listen,
            gpus=lambda: self._gpus.gpus,
            evictions=lambda: self._refusals.evictions,
            apply_settings=self._gpus.apply_settings,
            apply_layout=self._gpus.apply_layout,
        )
        self._unhealthy = UnhealthyGpuReporter(self._events, self._on_unhealthy_gpus, lambda: self._pods.known)
        self._refusals = RefusalReporter(
            self._events, time.monotonic, settings.evict_after, self._publisher.changed
        )
        self._reconciler = Reconciler(
            settings,
            self._allocations,
            self._attachments,
            pods=self._pods,
            gpus=self._gpus,
            refusals=self._refusals,
            changed=self._offer_device_slots,
            now=time.monotonic,
        )
        self._stranded = StrandedPods(
            api,
            self._events,
            runtime=settings.runtime,
            pods=lambda: self._pods.watched,
            holders=self._reconciler.holders,
            running=pods_running,
            kubelet_answers=self._reconciler.kubelet_answers,
            now=time.monotonic,
        )
        self._slot_reporter = SlotReporter(
            api, settings.node, seen=lambda: self._publisher.seen, plugins=lambda: self._plugins
        )
        self._plugins = {
            resource: DevicePlugin(
                settings.device_plugins, resource, self._allocate(resource), on_sent=self._slot_reporter.changed
            )
            for resource in (names.VGPU, names.WHOLE_GPU)
        }
        self._settled = False
        self._offer_device_slots()

    async def run(self) -> None:
        """Run until cancelled.

        Attaching starts when all pods are listed: before that, a pod that is not known may still exist.
        """
        self._sessions.recover()
        self._reserve_for_sessions()
        self._reconciler.recover()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._gpus.run())
            tasks.create_task(self._gpus.measure(self._driver.measure))
            tasks.create_task(self._pods.follow())
            tasks.create_task(self._publisher.run())
            tasks.create_task(self._slot_reporter.run())
            tasks.create_task(self._events.run())
            tasks.create_task(self._sample())
            tasks.create_task(self._sessions.serve())
            tasks.create_task(self._serve())
            await self._pods.listed.wait()
            tasks.create_task(self._reconciler.run())
            tasks.create_task(self._refusals.run())
            tasks.create_task(self._unhealthy.run())
            tasks.create_task(self._run_audit())
            tasks.create_task(self._stranded.run())

    async def register(self) -> None:
        """Register with the kubelet and answer it, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for plugin in self._plugins.values():
                tasks.create_task(plugin.run())

    async def finish_handover(self, before: Predecessor | None) -> None:
        """Replace the previous agent's registrations, so that the kubelet always has one."""
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
        """Stop offering device slots, because a successor takes over."""
        for plugin in self._plugins.values():
            plugin.retire()

    def _make_session_service(self) -> "SessionService":
        from milligpu.agent.session_service import NodeGpuSource, make_service  # noqa: PLC0415 - brings numpy

        source = NodeGpuSource(
            self._nvml, self._driver, lambda: list(self._gpus.gpus.values()), self._demand_of_pods
        )
        return make_service(self._session_paths, source, self._tenants)

    async def _sample(self) -> None:
        while True:
            self._tenants.sample(time.monotonic())
            self._add_energy()
            self._reserve_for_sessions()
            await asyncio.sleep(_SAMPLE_S)

    def _add_energy(self) -> None:
        held = [(each.name, each.shares) for each in self._attachments.held.values()]
        held += self._sessions.shares().items()
        holders = holders_by_gpu(self._gpus.gpus, held, self._tenants.charged)
        self._energy.add(time.monotonic(), holders, self._gpus.energies)

    async def _read(self) -> None:
        """Read all GPUs; requests that come meanwhile get the same reading, so that slow ones do not pile up."""
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._read_once())
        await asyncio.shield(self._reading)

    async def _read_once(self) -> None:
        await self._gpus.read()
        self._add_energy()

    async def _run_audit(self) -> None:
        while True:
            await self._audit.look(self._pods.known)
            await asyncio.sleep(self._audit_every)

    async def _serve(self) -> None:
        pages = agent_routes(
            self._read,
            self._families,
            lambda: encode_status(self._status()),
            self._ready,
            lambda: self._gpus.alive,
        )
        host, _, port = self._listen.rpartition(":")
        async with serving(pages, host, int(port)):
            await asyncio.Event().wait()

    def _status(self) -> MachineStatus:
        status = self._usage.status(self._pods.known)
        found = [*status.violations, *self._audit.current(self._pods.known)]
        return msgspec.structs.replace(status, violations=found)

    def _families(self) -> Iterable[Metric]:
        gpus, shares = self._usage.samples(self._pods.known)
        return families([replace(gpu, violations=self._audit.counts(gpu.uuid)) for gpu in gpus], shares)

    def _ready(self) -> bool:
        registered = all(plugin.registered.is_set() for plugin in self._plugins.values())
        return self._settled and registered and self._publisher.published.is_set()

    def _allocate(self, resource: str) -> Allocate:
        async def allocate(wanted: Sequence[str]) -> str:
            name = await self._reconciler.allocate(resource, wanted)
            self._offer_device_slots()
            return name

        return allocate

    def _on_unhealthy_gpus(self) -> dict[tuple[str, str], str]:
        return on_unhealthy_gpus(self._attachments.held.values(), self._gpus.gpus, self._pods.known)

    def _wake(self) -> None:
        self._reconciler.wake()

    def _gpus_changed(self) -> None:
        self._attachments.write_pages()
        self._publisher.changed()
        self._unhealthy.changed()
        self._offer_device_slots()
        self._wake()

    def _offer_device_slots(self) -> None:
        gpus, taken = list(self._gpus.gpus.values()), self._demand_of_pods()
        capacities = {
            names.VGPU: slots.share_capacity(gpus, taken) + self._resized(),
            names.WHOLE_GPU: slots.whole_capacity(gpus, taken),
        }
        for resource, capacity in capacities.items():
            used = {slot for each in self._allocations.entries if each.resource == resource for slot in each.slots}
            self._plugins[resource].offer(slots.choose_device_slots(capacity, used))
        self._sessions.rediscover()

    def _reserve_for_sessions(self) -> None:
        gpus = self._gpus.gpus
        sessions, pods = (
            {uuid: each.part_of(gpus[uuid]) for uuid, each in demands.items() if uuid in gpus}
            for demands in (self._sessions.demands(), self._demand_of_pods())
        )
        self._gpus.reserve_for_sessions(sessions, pods)

    def _resized(self) -> int:
        """Return the slots that pods released by shrinking: the kubelet still counts their first request.

        Slots of pods that grew are not subtracted. Grants decide what fits, and a kubelet that lacks slots rejects
        a pod for good.
        """
        counted = {each.name: len(each.slots) for each in self._allocations.entries}
        held_now = self._attachments.held.values()
        return sum(
            max(0, counted.get(each.name, 0) - sum(held.share.milli for held in each.shares))
            for each in held_now
            if each.grant.generation > 1
        )

    def _demand_of_pods(self) -> dict[str, GpuDemand]:
        """Return what pods hold of each GPU, with attachments that a newer agent wrote."""
        here = NodeGpus(self._node, self._gpus.gpus)
        newer = [newer_attachment(name, gpus, here) for name, gpus in self._attachments.newer.items()]
        return demand_by_gpu([*self._attachments.held.values(), *newer], here)
