"""Which sessions have not used their GPU for longer than the pool allows. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SessionUse:
    """What a session used until now."""

    gpu_time_ns: int | None
    """None where it is not measured: on a whole GPU, which has no limits library."""
    workers: int
    """Programs that are connected."""


class IdleWatch:
    """Remembers when each session used its GPU last."""

    def __init__(self, limit_s: float) -> None:
        self._limit = limit_s
        self._last: dict[str, tuple[SessionUse, float]] = {}

    def idle(self, uses: Mapping[str, SessionUse], now: float) -> list[str]:
        """Return the sessions that are idle for the limit or longer.

        Where GPU time is not measured, a session is in use while one of its programs is connected.
        """
        last: dict[str, tuple[SessionUse, float]] = {}
        for name, use in uses.items():
            before = self._last.get(name)
            busy = bool(use.workers) if use.gpu_time_ns is None else before is None or before[0] != use
            last[name] = (use, now if busy or before is None else before[1])
        self._last = last
        return [name for name, (_use, since) in last.items() if now - since >= self._limit]
