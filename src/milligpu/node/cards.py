"""This node's cards and how they are: looked at every second, and at once when the driver reports an error."""

import asyncio
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

import structlog

from milligpu.devices.cards import Cards
from milligpu.devices.events import XidEvents
from milligpu.devices.health import Record, judge, note_observation, note_xid
from milligpu.devices.reading import Lost, Reading, Vitals, XidEvent
from milligpu.model.gpu import Gpu, State
from milligpu.model.units import Milli
from milligpu.wire.orders import Orders

log = structlog.get_logger()

LOOK_S = 1.0
# How long a thread waits for the driver's next word before it looks whether it should end.
_EVENT_S = 1.0


class CardWatch:
    """The cards as the inventory shows them: what they are, and whether they may be used."""

    def __init__(
        self,
        cards: Cards,
        changed: Callable[[], None],
        reserved: Callable[[int, Gpu], Milli] = lambda _index, _gpu: Milli(0),
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`reserved` is what an admin sets aside of a card for commands on the node."""
        self._cards = cards
        self._changed = changed
        self._now = now
        self._records: dict[str, Record] = {}
        self._orders = Orders()
        self.xids: dict[str, int] = {}
        """How many errors each card reported since we started."""
        self.readings: dict[str, Reading] = {}
        """What `read` last read of each card that answers."""
        self._reported: list[XidEvent] = []
        self._wake = asyncio.Event()
        self._bare = {
            gpu.uuid: replace(gpu, state=State.OK, reason="", reserved=reserved(index, gpu))
            for index, gpu in enumerate(cards.gpus())
        }
        self._kept: dict[str, Milli] = {}
        self.gpus: dict[str, Gpu] = dict(self._bare)

    async def read(self) -> None:
        """Read all that cards tell, for somebody who asked: it is too much for every second."""
        seen = await asyncio.to_thread(self._cards.read)
        self.readings = {each.uuid: each for each in seen if isinstance(each, Reading)}

    async def run(self) -> None:
        """Until cancelled."""
        loop = asyncio.get_running_loop()
        stop = threading.Event()

        def listen() -> None:
            events = XidEvents(self._cards)
            while not stop.is_set():
                event = events.wait(_EVENT_S)
                if event is not None:
                    loop.call_soon_threadsafe(self._on_xid, event)
            events.close()

        thread = threading.Thread(target=listen, name="xid-events", daemon=True)
        thread.start()
        try:
            while True:
                self._wake.clear()
                reported, self._reported = self._reported, []
                self._on_look(reported, await asyncio.to_thread(self._cards.vitals))
                with suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_S):
                        await self._wake.wait()
        finally:
            stop.set()

    def obey(self, orders: Orders) -> None:
        """What an admin wants of single cards; a card that is cleared anew has nothing held against it."""
        for uuid, when in orders.cleared.items():
            if self._orders.cleared.get(uuid) != when:
                self._records.pop(uuid, None)
        self._orders = orders
        self._judge()

    def keep(self, parts: Mapping[str, Milli]) -> None:
        """What commands hold is set aside for them, also where an admin has since set aside less."""
        self._kept = dict(parts)
        self._judge()

    def _on_xid(self, event: XidEvent) -> None:
        self.xids[event.uuid] = self.xids.get(event.uuid, 0) + 1
        self._reported.append(event)
        self._wake.set()

    def _on_look(self, reported: Sequence[XidEvent], seen: Sequence[Vitals | Lost]) -> None:
        """Judge what the driver reported together with a look that came after it: does it ask for a reset?"""
        for event in reported:
            self._note(event.uuid, lambda record, xid=event.xid: note_xid(record, xid, self._now()))
        for each in seen:
            if each.uuid:
                self._note(each.uuid, lambda record, each=each: note_observation(record, each, self._now()))
        self._judge()

    def _note(self, uuid: str, change: Callable[[Record], Record]) -> None:
        self._records[uuid] = change(self._records.get(uuid, Record()))

    def _judge(self) -> None:
        gpus = {uuid: self._judged(gpu) for uuid, gpu in self._bare.items()}
        if gpus != self.gpus:
            for uuid in (uuid for uuid, gpu in gpus.items() if gpu != self.gpus.get(uuid)):
                log.warning("a GPU changed", gpu=uuid, state=gpus[uuid].state.value, reason=gpus[uuid].reason)
            self.gpus = gpus
            self._changed()

    def _judged(self, gpu: Gpu) -> Gpu:
        gpu = replace(gpu, reserved=max(gpu.reserved, self._kept.get(gpu.uuid, Milli(0))))
        health = judge(self._records.get(gpu.uuid, Record()))
        if health.state is State.OK and gpu.uuid in self._orders.cordoned:
            return replace(gpu, state=State.CORDONED, reason=self._orders.cordoned[gpu.uuid])
        return replace(gpu, state=health.state, reason=health.reason)
