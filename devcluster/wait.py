"""Wait for conditions, never for a fixed time: every wait has a deadline and reports what it last saw."""

import time
from collections.abc import Callable
from typing import TypeVar

from devcluster.errors import DevclusterError

T = TypeVar("T")
# Each question to the API server takes CPU time from those who are waited for: the longer the wait, the
# rarer the questions. The wait is a twentieth longer at most.
PART_OF_WAIT = 1 / 20
PAUSE_MAX_S = 0.25


class TimedOut(DevclusterError):
    """The condition did not become true in time; the message contains the last state."""


def until(
    what: str,
    probe: Callable[[], T | None],
    deadline_s: float,
    *,
    every_s: float = 0.05,
    retry: tuple[type[Exception], ...] = (),
    last_state: Callable[[], str] = lambda: "",
) -> T:
    """Poll `probe` until it returns a value that is neither None nor False, and return that value.

    It is asked after `every_s`, and more rarely when the wait becomes long.

    Errors named in `retry` count as "not yet"; any other error ends the wait immediately, because
    waiting longer would only hide it. `last_state` is called once, at the deadline.
    """
    started = time.monotonic()
    give_up = started + deadline_s
    seen = "nothing"
    while True:
        try:
            value = probe()
            if value is not None and value is not False:
                return value
            seen = repr(value)
        except retry as error:
            seen = f"{type(error).__name__}: {error}"
        if time.monotonic() >= give_up:
            details = last_state().rstrip()
            raise TimedOut(
                f"waited {deadline_s:g} s for {what}; last seen: {seen}" + (f"\n{details}" if details else "")
            )
        time.sleep(max(every_s, min(PAUSE_MAX_S, PART_OF_WAIT * (time.monotonic() - started))))
