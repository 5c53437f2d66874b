"""This node's cards and how they are: looked at every second, and at once when the driver reports an error."""

import asyncio
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from milligpu.devices.cards import Cards
from milligpu.devices.events import XidEvents
from milligpu.devices.health import Record, judge, note_observation, note_xid
from milligpu.devices.reading import Observation, Reading, XidEvent
from milligpu.model.gpu import Gpu, State

LOOK_S = 1.0
# How long a thread waits for the driver's next word before it looks whether it should end.
_EVENT_S = 1.0


class CardWatch:
    """The cards as the inventory shows them: what they are, and whether they may be used."""

    def __init__(
        self, cards: Cards, changed: Callable[[], None], now: Callable[[], float] = time.monotonic
    ) -> None:
        self._cards = cards
        self._changed = changed
        self._now = now
        self._records: dict[str, Record] = {}
        self._cordoned: dict[str, str] = {}
        self.xids: dict[str, int] = {}
        """How many errors each card reported since we started."""
        self.seen: tuple[Observation, ...] = ()
        self._bare = {gpu.uuid: replace(gpu, state=State.OK, reason="") for gpu in cards.gpus()}
        self.gpus: dict[str, Gpu] = dict(self._bare)

    @property
    def readings(self) -> dict[str, Reading]:
        """The last reading of each card that answers."""
        return {each.uuid: each for each in self.seen if isinstance(each, Reading)}

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
                self._on_look(await asyncio.to_thread(self._cards.read))
                await asyncio.sleep(LOOK_S)
        finally:
            stop.set()

    def cordon(self, cordoned: Mapping[str, str]) -> None:
        """Which cards an admin took out, with the reasons."""
        if dict(cordoned) != self._cordoned:
            self._cordoned = dict(cordoned)
            self._judge()

    def forgive(self, uuid: str) -> None:
        """An admin says that the card is sound again."""
        self._records.pop(uuid, None)
        self._judge()

    def _on_look(self, seen: tuple[Observation, ...]) -> None:
        self.seen = seen
        for each in seen:
            if each.uuid:
                record = self._records.get(each.uuid, Record())
                self._records[each.uuid] = note_observation(record, each, self._now())
        self._judge()

    def _on_xid(self, event: XidEvent) -> None:
        self.xids[event.uuid] = self.xids.get(event.uuid, 0) + 1
        self._records[event.uuid] = note_xid(self._records.get(event.uuid, Record()), event.xid, self._now())
        self._judge()

    def _judge(self) -> None:
        gpus = {uuid: self._judged(gpu) for uuid, gpu in self._bare.items()}
        if gpus != self.gpus:
            self.gpus = gpus
            self._changed()

    def _judged(self, gpu: Gpu) -> Gpu:
        health = judge(self._records.get(gpu.uuid, Record()))
        if health.state is State.OK and gpu.uuid in self._cordoned:
            return replace(gpu, state=State.CORDONED, reason=self._cordoned[gpu.uuid])
        return replace(gpu, state=health.state, reason=health.reason)
