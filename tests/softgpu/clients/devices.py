"""Read the GPUs as our agent does: `devices.py` once, `devices.py watch` until killed."""

import dataclasses
import json
import sys
import time

from milligpu.nvml.gpus import NvmlGpus
from milligpu.nvml.health import HealthHistory, assess, note_reading, note_xid
from milligpu.nvml.xid_events import XidEvents
from milligpu.wire.inventory import encode_inventory


def once(nvml: NvmlGpus) -> dict[str, object]:
    readings = [dataclasses.asdict(reading) for reading in nvml.read()]
    for reading in readings:
        reading["throttled"] = sorted(reading.get("throttled", ()))
    return {"inventory": json.loads(encode_inventory(nvml.gpus())), "readings": readings}


def watch(nvml: NvmlGpus) -> None:
    """Print the health messages of all GPUs whenever one changes."""
    events = XidEvents(nvml)
    histories = {gpu.uuid: HealthHistory() for gpu in nvml.gpus()}
    before: list[str] | None = None
    while True:
        event = events.wait(0.05)
        if event:
            histories[event.uuid] = note_xid(histories[event.uuid], event.xid, time.monotonic())
        for vitals in nvml.vitals():
            histories[vitals.uuid] = note_reading(histories[vitals.uuid], vitals, time.monotonic())
        now = [assess(history).message for history in histories.values()]
        if now != before:
            print(json.dumps(now), flush=True)
            before = now


with NvmlGpus() as all_gpus:
    if sys.argv[1:] == ["watch"]:
        print("running", flush=True)
        watch(all_gpus)
    else:
        print(json.dumps(once(all_gpus)))
