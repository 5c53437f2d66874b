"""The report of `milligpu verify`: `verify/v1`, as JSON.

People send it to others, so it has no field for anything that identifies a person, a machine or a single GPU.
"""

from typing import Literal

import msgspec

FORMAT = "verify/v1"


class ReportPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A piece of the report; all fields are written."""


class VerifiedGpu(ReportPart, frozen=True):
    """A GPU by its model."""

    model: str
    memory_mib: int
    compute_capability: str


class VerifiedMachine(ReportPart, frozen=True):
    """What the checks ran on."""

    software_gpu: bool
    """The GPU was a software GPU: nothing here is a statement about NVIDIA's."""
    gpus: list[VerifiedGpu]
    driver: str
    cuda: str
    system: str
    """Name and version of the distribution."""
    kernel: str
    architecture: str
    python: str


class VerifiedCheck(ReportPart, frozen=True):
    """One result."""

    group: str
    name: str
    level: str
    result: str
    message: str
    fix: str
    seconds: float
    figures: dict[str, float]
    """What was measured, by name with its unit."""


class VerifySummary(ReportPart, frozen=True):
    """How many checks ended how; a failed warning counts as warning only."""

    passed: int
    failed: int
    warnings: int
    skipped: int


class VerifyReport(ReportPart, frozen=True):
    """The whole report."""

    format: Literal["verify/v1"]
    milligpu: str
    date: str
    """The day, in UTC."""
    machine: VerifiedMachine
    summary: VerifySummary
    checks: list[VerifiedCheck]


def encode_report(report: VerifyReport) -> str:
    """Write the report as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(report), indent=2).decode()
