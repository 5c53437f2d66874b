"""Looks at the cards as our agent does: `devices.py` once, `devices.py watch` until it is killed."""

import dataclasses
import json
import sys
import time

from milligpu.devices.cards import Cards
from milligpu.devices.events import XidEvents
from milligpu.devices.health import Record, judge, note_observation, note_xid
from milligpu.wire.inventory import encode_inventory


def once(cards: Cards) -> dict[str, object]:
    readings = [dataclasses.asdict(seen) for seen in cards.read()]
    for reading in readings:
        reading["throttled"] = sorted(reading.get("throttled", ()))
    return {"inventory": json.loads(encode_inventory(cards.gpus())), "readings": readings}


def watch(cards: Cards) -> None:
    """Print how the cards are, whenever that changes."""
    events = XidEvents(cards)
    records = {gpu.uuid: Record() for gpu in cards.gpus()}
    before: list[str] | None = None
    while True:
        event = events.wait(0.05)
        if event:
            records[event.uuid] = note_xid(records[event.uuid], event.xid, time.monotonic())
        for seen in cards.read():
            records[seen.uuid] = note_observation(records[seen.uuid], seen, time.monotonic())
        now = [judge(record).reason for record in records.values()]
        if now != before:
            print(json.dumps(now), flush=True)
            before = now


with Cards() as all_cards:
    if sys.argv[1:] == ["watch"]:
        print("running", flush=True)
        watch(all_cards)
    else:
        print(json.dumps(once(all_cards)))
