"""What to think of each pod, session and GPU, in one word, with the numbers behind it and the command that helps.

Pure: the measurements come from a history, or from a few seconds of sampling.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from milligpu.history.samples import HistoryLine, Values
from milligpu.model.units import BYTES_PER_MIB, WHOLE
from milligpu.status.picture import Picture, gpu_key, holder_name, share_key
from milligpu.wire.status import GpuStatus, ShareUsage, Violation

# Below this fraction of a card a holder does nothing: an open context alone uses none.
IDLE_BELOW = 0.01
# A holder is oversized if the p95 of its use stays below this fraction of its share.
_OVERSIZED_BELOW = 0.5
# Room above the p95 that a proposed share leaves, and the step to which it is rounded up.
_ROOM, _STEP = 1.2, 0.05
FLOOR_MILLI = round(_STEP * WHOLE)
"""The share to which an idle pod may be shrunk."""
# A holder is starved if its own limit stopped it for this fraction of the time.
_STARVED_FROM = 0.25
# Idle GPUs of today's servers draw 10 to 60 W; more than this for no work is worth a look.
_IDLE_WATTS = 100.0
# A program that asks for memory beyond its share this often within the time does so in a loop.
_REFUSALS_FROM = 10
# A GPU is throttled if its clocks were reduced for this fraction of the time.
_THROTTLED_FROM = 0.1
# A line of text names this many pods.
_NAMES = 3
_SECONDS_MIN = 5.0
"""Fewer measured seconds allow no verdict."""

_BYTES_PER_GIB = 1024 * BYTES_PER_MIB


class Verdict(StrEnum):
    """What a holder or a GPU is."""

    HEALTHY = "healthy"
    IDLE = "idle"
    STARVED = "starved"
    OVERSIZED = "oversized"
    THROTTLED = "throttled"
    INEFFICIENT = "inefficient"
    BAD_TASK = "bad-task"
    UNHEALTHY = "unhealthy"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Advice:
    """One verdict."""

    kind: str
    """`pod`, `session` or `gpu`."""
    name: str
    verdict: Verdict
    evidence: str
    """A sentence with numbers."""
    command: str = ""
    """What helps; empty if nothing needs to be done."""
    link: str = ""
    """The page of the dashboard."""
    namespace: str = ""


def advise(picture: Picture, lines: Mapping[str, HistoryLine]) -> list[Advice]:
    """Judge every share and every GPU by recent history; `lines` are by key."""
    known = {gpu.uuid: gpu for gpu in picture.gpus}
    shares = [_share(picture, use, known.get(use.gpu), lines.get(share_key(use))) for use in picture.shares]
    gpus = [_gpu(picture, gpu, lines.get(gpu_key(gpu.uuid))) for gpu in picture.gpus]
    return [*gpus, *shares]


_WORST_FIRST = (
    Verdict.UNHEALTHY,
    Verdict.BAD_TASK,
    Verdict.THROTTLED,
    Verdict.STARVED,
    Verdict.IDLE,
    Verdict.OVERSIZED,
    Verdict.INEFFICIENT,
    Verdict.UNKNOWN,
    Verdict.HEALTHY,
)
_FINE = {Verdict.UNKNOWN, Verdict.HEALTHY}


def severity(advice: Advice) -> int:
    """The place of a verdict among all, the worst first."""
    return _WORST_FIRST.index(advice.verdict)


def needs_attention(found: Sequence[Advice]) -> list[Advice]:
    """Those for which somebody should do something, worst first."""
    return sorted((each for each in found if each.verdict not in _FINE), key=severity)


def is_idle(line: HistoryLine) -> bool:
    """Whether a holder did nothing in 95 % of the time; False if nobody measured."""
    used = _known(line.values("used"))
    return bool(len(used)) and _p95(used) < IDLE_BELOW


def share_link(use: ShareUsage) -> str:
    """The page of the holder of a share."""
    return f"/sessions/{use.session}" if use.session else f"/pods/{use.namespace}/{use.pod}"


def _share(picture: Picture, use: ShareUsage, gpu: GpuStatus | None, line: HistoryLine | None) -> Advice:
    kind = "session" if use.session else "pod"

    def say(verdict: Verdict, evidence: str, command: str = "") -> Advice:
        return Advice(kind, holder_name(use), verdict, evidence, command, share_link(use), use.namespace)

    if gpu is not None and gpu.state not in {"ok", "cordoned"}:
        return say(Verdict.UNHEALTHY, f"its GPU is {gpu.state}: {gpu.message}")
    if (bad := _violation(picture.violations, use)) is not None:
        return say(Verdict.BAD_TASK, bad.message, _stop(use))
    used = _known(line.values("used")) if line is not None else np.empty(0, np.float32)
    seconds = _span(line)
    if line is None or seconds < _SECONDS_MIN or not len(used):
        return say(Verdict.UNKNOWN, f"only {seconds:.0f} s of measurements so far")
    share, limit = use.milli / WHOLE, use.limit / WHOLE
    p95 = _p95(used)
    over = _time(seconds)
    throttled = _mean(line.values("throttled"))
    refused = _count(line, "refused")
    if refused >= _REFUSALS_FROM:
        text = f"its memory limit refused {refused} allocations in {over}: the program asks again and again"
        return say(Verdict.BAD_TASK, text, _more_memory(use))
    if p95 < IDLE_BELOW:
        return say(Verdict.IDLE, f"holds {share:.2f} GPU and used at most {p95:.3f} for {over}", _stop(use))
    if throttled >= _STARVED_FROM and not use.whole:
        more = min(1.0, _step_up(limit * (1 + throttled)))
        text = f"wanted more than its limit of {limit:.2f} in {throttled:.0%} of the last {over}"
        return say(Verdict.STARVED, text, _resize(use, share=max(share, more)) if more > limit else "")
    if p95 < _OVERSIZED_BELOW * share and share > _STEP:
        fit = _step_up(p95 * _ROOM)
        text = f"holds {share:.2f} GPU; 95 % of the last {over} it used at most {p95:.2f}"
        return say(Verdict.OVERSIZED, text, "" if use.whole else _resize(use, share=fit))
    return say(Verdict.HEALTHY, f"uses {_mean(line.values('used')):.2f} of {share:.2f} GPU over {over}")


def _gpu(picture: Picture, gpu: GpuStatus, line: HistoryLine | None) -> Advice:
    name = f"{gpu.node} GPU {gpu.index}".strip() if gpu.node else f"GPU {gpu.index}"

    def say(verdict: Verdict, evidence: str, command: str = "") -> Advice:
        return Advice("gpu", name, verdict, evidence, command, f"/gpus/{gpu.uuid}")

    if gpu.state not in {"ok", "cordoned"}:
        return say(Verdict.UNHEALTHY, f"{gpu.state}: {gpu.message}", "milligpu doctor")
    outside = [each for each in picture.violations if each.gpu == gpu.uuid and each.tenant is None]
    if outside:
        return say(Verdict.BAD_TASK, outside[0].message, f"kill {outside[0].pid}" if outside[0].pid else "")
    seconds = _span(line)
    if line is None or seconds < _SECONDS_MIN:
        return say(Verdict.UNKNOWN, f"only {seconds:.0f} s of measurements so far")
    over = _time(seconds)
    if errors := _count(line, "errors"):
        return say(Verdict.BAD_TASK, *_errors(picture, gpu, errors, over))
    watts, used = _mean(line.values("power")), _mean(line.values("used"))
    slowed = _mean(line.values("throttled"))
    if slowed >= _THROTTLED_FROM and gpu.throttled:
        reason = max(gpu.throttled, key=gpu.throttled.__getitem__)
        text = f"lost {slowed:.0%} of the last {over} to reduced clocks; most of it so far: {reason}"
        return say(Verdict.THROTTLED, text, "nvidia-smi -q -d PERFORMANCE,POWER,TEMPERATURE")
    if watts >= _IDLE_WATTS and used < IDLE_BELOW:
        return say(Verdict.INEFFICIENT, f"draws {watts:.0f} W and did no work for {over}")
    cards = gpu.milli / WHOLE
    return say(Verdict.HEALTHY, f"{used / cards:.0%} of its time used over {over}")


def _errors(picture: Picture, gpu: GpuStatus, errors: int, over: str) -> tuple[str, str]:
    """What the driver reported, whose programs were on the GPU, and the command that shows more."""
    names = sorted({holder_name(use) for use in picture.shares if use.gpu == gpu.uuid and (use.pod or use.session)})
    who = f" while it was used by {', '.join(names[:_NAMES])}" if names else ""
    more = f" and {len(names) - _NAMES} more" if len(names) > _NAMES else ""
    plural = "s" if errors > 1 else ""
    return f"the driver reported {errors} error{plural} (XID) in {over}{who}{more}", "milligpu doctor"


def _count(line: HistoryLine, name: str) -> int:
    """How often something happened, from its rate."""
    rates = line.values(name)
    known = ~np.isnan(rates)
    return round(float((rates[known] * line.seconds[known]).sum()))


def _violation(found: Sequence[Violation], use: ShareUsage) -> Violation | None:
    names = (
        {use.session}
        if use.session
        else {f"{use.namespace}/{use.pod}", f"{use.namespace}/{use.pod}/{use.container}"}
    )
    return next((each for each in found if each.gpu == use.gpu and each.tenant in names), None)


def _resize(use: ShareUsage, *, share: float) -> str:
    if use.session:
        return f"milligpu resize {use.session} -p {share:g}"
    container = f" -c {use.container}" if use.container else ""
    return f"kubectl milligpu resize pod/{use.pod} -n {use.namespace}{container} -p {share:g}"


def _more_memory(use: ShareUsage) -> str:
    """Half as much memory again, in whole GiB."""
    if use.whole:
        return ""
    gib = math.ceil(1.5 * use.memory_limit / _BYTES_PER_GIB)
    if use.session:
        return f"milligpu resize {use.session} -m {gib}Gi"
    container = f" -c {use.container}" if use.container else ""
    return f"kubectl milligpu resize pod/{use.pod} -n {use.namespace}{container} -m {gib}Gi"


def _stop(use: ShareUsage) -> str:
    """Give the compute back to others without ending anybody's work."""
    return "" if use.whole or use.milli / WHOLE <= _STEP else _resize(use, share=_STEP)


def _p95(values: Values) -> float:
    """The value that 95 % of these do not exceed; for thousands of shares, faster than interpolating."""
    return float(np.sort(values)[math.ceil(0.95 * len(values)) - 1])


def _known(values: Values) -> Values:
    return values[~np.isnan(values)]


def _mean(values: Values) -> float:
    found = _known(values)
    return float(found.mean()) if len(found) else 0.0


def _span(line: HistoryLine | None) -> float:
    return 0.0 if line is None else float(line.seconds.sum())


def _step_up(value: float) -> float:
    return round(max(_STEP, math.ceil(round(value / _STEP, 6)) * _STEP), 2)


def _time(seconds: float) -> str:
    return (
        f"{seconds:.0f} s"
        if seconds < 120
        else f"{seconds / 60:.0f} min"
        if seconds < 7200
        else f"{seconds / 3600:.0f} h"
    )
