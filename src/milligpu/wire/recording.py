"""A recording of driver calls, of `milligpu verify --record`: `recording/v1`, as JSON.

People send it to others: it has names of functions of the driver, and numbers, and nothing else of a program.
"""

from typing import Literal

import msgspec

from milligpu.wire.verify import ReportPart, VerifiedMachine

FORMAT = "recording/v1"


class RecordedCall(ReportPart, frozen=True, tag="call", tag_field="step", omit_defaults=True):
    """A call of the driver; a status other than 0 is CUDA's error."""

    name: str
    sizes: dict[str, int] = msgspec.field(default_factory=dict[str, int])
    status: int = 0


class RecordedLoop(ReportPart, frozen=True, tag="loop", tag_field="step"):
    """Steps that were repeated without a change."""

    times: int
    steps: list["RecordedCall | RecordedLoop"]


class RecordedThread(ReportPart, frozen=True):
    """What one thread called, in its order; processes and threads are counted from 1."""

    process: int
    thread: int
    steps: list[RecordedCall | RecordedLoop]


class Recording(ReportPart, frozen=True):
    """The whole recording."""

    format: Literal["recording/v1"]
    milligpu: str
    date: str
    """The day, in UTC."""
    machine: VerifiedMachine
    threads: list[RecordedThread]


def encode_recording(recording: Recording) -> str:
    """Write the recording as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(recording), indent=1).decode()
