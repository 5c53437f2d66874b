"""Whether a card is sound: a rule over what was read of it and what the driver reported. Pure.

A card is sick when it is lost, too hot, has uncorrectable memory errors, when its driver asks for a reset, or after
an XID that is not the application's. All but the last can be seen to end. An XID is an event without an end: it is
over when the driver, having asked for a reset, no longer does, or the card, having been lost, is back; where
neither is seen, after a quiet time; or when a person says so, which is a new `Record`.
"""

from dataclasses import dataclass, replace

from milligpu.devices.reading import Lost, Reading, Vitals
from milligpu.model.gpu import State
from milligpu.model.xid import APPLICATION_XIDS, describe_xid

# A card that reports nothing for so long has got over it; errors of broken cards come back within minutes.
QUIET_SECONDS = 600.0
# A card at its threshold would come and go; it returns when it is clearly cooler.
COOLER_DEGREES = 5


@dataclass(frozen=True, slots=True)
class Health:
    """May new shares go there?"""

    state: State
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Record:
    """What is remembered of a card between two looks; a new one says that nothing is held against it."""

    lost: bool = False
    reset_needed: bool = False
    uncorrected: int = 0
    hot: int | None = None
    xid: int | None = None
    xid_at: float = 0.0
    reset_seen: bool = False
    """After the XID the driver asked for a reset, or the card was gone; with that the XID is over, too."""


def note_xid(record: Record, xid: int, now: float) -> Record:
    """The driver reported an error; applications' own are not held against the card."""
    if xid in APPLICATION_XIDS:
        return record
    return replace(record, xid=xid, xid_at=now, reset_seen=False)


def note_observation(record: Record, seen: Vitals | Reading | Lost, now: float) -> Record:
    """Somebody looked at the card."""
    if isinstance(seen, Lost):
        return replace(record, lost=True, reset_seen=True)
    asks = seen.reset_needed is True
    record = replace(
        record,
        lost=False,
        reset_needed=asks,
        # A driver that says what must be done is believed when that is nothing.
        uncorrected=0 if seen.reset_needed is False else seen.ecc_uncorrected or 0,
        hot=_hot(record, seen.temperature, seen.slowdown_temperature),
        reset_seen=record.reset_seen or asks,
    )
    over = not asks if record.reset_seen else now - record.xid_at >= QUIET_SECONDS
    return replace(record, xid=None, reset_seen=False) if record.xid is not None and over else record


def _hot(record: Record, temperature: int | None, threshold: int | None) -> int | None:
    if temperature is None or threshold is None:
        return None
    limit = threshold if record.hot is None else threshold - COOLER_DEGREES
    return temperature if temperature >= limit else None


def judge(record: Record) -> Health:
    """The verdict, with the gravest reason."""
    if record.lost:
        return Health(State.SICK, "lost: the GPU no longer answers")
    if record.xid is not None:
        return Health(State.SICK, describe_xid(record.xid))
    if record.uncorrected:
        return Health(State.SICK, f"{record.uncorrected} uncorrectable memory errors")
    if record.reset_needed:
        return Health(State.SICK, "the driver asks for a reset")
    if record.hot is not None:
        return Health(State.SICK, f"too hot: {record.hot} degrees")
    return Health(State.OK)
