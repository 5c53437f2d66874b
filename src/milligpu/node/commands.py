"""The sessions of a cluster node's users: the node's cards as commands see them, and the service over them.

Imported when the first command asks: it needs placement, and an agent whose node has no commands does not.
"""

import platform
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from milligpu.agent.arbiter import Arbiter
from milligpu.agent.audit import Seen
from milligpu.agent.keeper import Keeper
from milligpu.agent.machine import Machine, seen_of
from milligpu.agent.places import Places
from milligpu.agent.process import leftovers
from milligpu.agent.rounds import Rounds
from milligpu.agent.service import Service
from milligpu.agent.sessions import Sessions
from milligpu.agent.tenant import CUDA, NVML, Drivers
from milligpu.devices.cards import Cards
from milligpu.model.footprint import Demand
from milligpu.model.gpu import Gpu
from milligpu.node.driver import Driver
from milligpu.node.local import Node, part_of
from milligpu.node.processes import pod_of_process


class NodeHardware:
    """The node's cards as commands see them: what belongs to pods is reserved."""

    def __init__(self, node: Node) -> None:
        self._cards: Cards = node.cards
        self._driver: Driver = node.driver
        self._gpus: Callable[[], Iterable[Gpu]] = node.gpus
        self._pods: Callable[[], Mapping[str, Demand]] = node.pods

    def find(self) -> Machine:
        """What there is now."""
        held = self._pods()
        gpus = tuple(
            replace(gpu, reserved=max(gpu.usable, part_of(gpu, held.get(gpu.uuid)))) for gpu in self._gpus()
        )
        drivers = Drivers(self._driver.libraries[CUDA], self._driver.libraries[NVML])
        folder = next((socket.parent for socket in self._driver.sockets.values()), None)
        return Machine(gpus, drivers, folder)

    def context_bytes(self, gpu: Gpu) -> int:
        """What each context takes of such a card."""
        return self._driver.contexts[gpu.uuid]

    def seen(self) -> list[Seen]:
        """Who is on which card, pods left out: they are looked at elsewhere."""
        return [each for each in seen_of(self._cards) if pod_of_process(each.pid) is None]

    def close(self) -> None:
        """The cards are the node's."""


def make_service(places: Places, node: Node, arbiter: Arbiter) -> Service:
    """What serves commands on a node."""
    hardware, sessions = NodeHardware(node), Sessions(places.sessions)
    return Service(
        lambda watch: Keeper(
            sessions, hardware, arbiter, name=platform.node(), now=time.time, watch=watch, settled=True
        ),
        lambda keeper: Rounds(keeper, time.monotonic),
        lambda session: leftovers(hardware, sessions, session),
    )


def held_by(service: Service) -> dict[str, Demand]:
    """What sessions hold of each card."""
    keeper = service.keeper
    total: dict[str, Demand] = {}
    for each in keeper.held:
        for uuid, demand in keeper.books.demands(each):
            total[uuid] = total[uuid].plus(demand) if uuid in total else demand
    return total
