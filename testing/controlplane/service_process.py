"""One simulated process of the scheduler service: it runs the service's own code, and can be killed and paused."""

import asyncio
from collections.abc import Callable
from itertools import count
from typing import cast

from milligpu.kube.api import ApiClient
from milligpu.kube.watch import SharedWatch, Watch
from milligpu.model import names
from milligpu.scheduler.metrics import SchedulerMetrics
from milligpu.scheduler.service import SchedulerService
from milligpu.scheduler.settings import SchedulerSettings
from milligpu.scheduler.term import LeaderTerm
from milligpu.wire.kubernetes import KubeGpuClass, KubeGpuQueue, KubeNode
from testing.controlplane.client import Network, SimulatedClient
from testing.controlplane.clock import ProcessLoop, VirtualClock
from testing.controlplane.server import SimulatedServer

_RESTART_S = 1.0


class ServiceProcess:
    """One instance of the service; when it ends it is restarted, as by a Deployment."""

    def __init__(self, name: str, clock: VirtualClock, server: SimulatedServer, network: Network) -> None:
        self.name = name
        self._clock = clock
        self._server = server
        self._network = network
        self._lives = count(1)
        # Nothing here reads them, and making them takes long.
        self._metrics = SchedulerMetrics()
        self.paused_until = 0.0
        self.errors: list[str] = []
        self._start()

    def _start(self) -> None:
        self.identity = f"{self.name}-{next(self._lives)}"
        self.loop = ProcessLoop(self._clock)
        self.loop.on_death = self.kill
        self.client = SimulatedClient(self._server, self._network, self.loop, self.identity)
        self.client.on_death = self.kill
        self.service = SchedulerService(self._metrics)
        self.routes = self.service.routes()
        self._main = self.loop.spawn(self._run())

    async def _run(self) -> None:
        api = cast(ApiClient, self.client)
        nodes = SharedWatch(Watch(api, "/api/v1/nodes", KubeNode))
        classes = SharedWatch(Watch(api, names.CLASSES_PATH, KubeGpuClass, retry_s=10.0, optional=True))
        queues = SharedWatch(Watch(api, names.QUEUES_PATH, KubeGpuQueue, retry_s=10.0, optional=True))
        settings = SchedulerSettings(self.identity)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(nodes.run())
                tasks.create_task(classes.run())
                tasks.create_task(queues.run())
                tasks.create_task(
                    self.service.lead(
                        api, settings, nodes, classes, queues, now=self.loop.time, clock=self.loop.time
                    )
                )
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            self.errors.append(f"{self.identity} died: {error!r} {getattr(error, 'exceptions', '')}")

    @property
    def term(self) -> LeaderTerm | None:
        term = self.service.term
        return term if term is not None and term.ready and term.valid() else None

    def kill(self) -> None:
        """SIGKILL; requests that were sent may still be carried out."""
        if not self.client.dead:
            self.client.dead = True
            self.errors += self.loop.errors
            self.loop.kill()
            self._clock.after(_RESTART_S, self._start)

    def stop(self) -> None:
        """Send SIGTERM; the service needs some time to end."""
        client, main = self.client, self._main
        if not client.dead:
            self.loop.call_soon(main.cancel)
            main.add_done_callback(lambda _: self._clock.after(0.0, self._stopped(client)))

    def _stopped(self, client: SimulatedClient) -> Callable[[], None]:
        def end() -> None:
            if self.client is client:
                self.kill()

        return end

    def pause(self, seconds: float) -> None:
        loop = self.loop
        loop.pause()
        self.paused_until = self._clock.now + seconds

        def resume() -> None:
            if self.loop is loop and not self.client.dead:
                loop.resume()

        self._clock.after(seconds, resume)

    def end(self) -> None:
        """Close the loop, when the simulation is over."""
        if not self.client.dead:
            self.client.dead = True
            self.errors += self.loop.errors
            self.loop.kill()
