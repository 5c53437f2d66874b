"""What a namespace or a queue asks to be done about pods that hold a share and do not use it. Pure."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from milligpu.history.samples import HistoryLine, Level
from milligpu.model import names
from milligpu.model.errors import BadRequest
from milligpu.status.advice import is_idle

_UNITS = {"m": 60, "h": 3600, "d": 86400}
_AFTER_DEFAULT = 3600.0
# Samples are seconds apart; a day is as long as minutes are kept.
_AFTER_MIN, _AFTER_MAX = 60.0, 86400.0
# The history may lack a few samples of the time.
_COVERED = 0.95


class IdleAction(StrEnum):
    """What is done about an idle pod; never more than was asked for."""

    NOTIFY = "notify"
    """An event on the pod."""
    SHRINK = "shrink"
    """The event, and the smallest share; the pod keeps running."""


@dataclass(frozen=True, slots=True)
class IdlePolicy:
    """An action, and the seconds without use after which it is due."""

    action: IdleAction
    after_s: float

    @property
    def level(self) -> Level:
        """The part of the history that is fine and long enough."""
        return Level.RAW if self.after_s < Level.RAW.kept_s else Level.MINUTES


def read_idle_policy(annotations: Mapping[str, str], where: str) -> IdlePolicy | None:
    """Read the annotations of a namespace or queue; None without them. A typo must not shrink anybody."""
    action, after = annotations.get(names.IDLE_ACTION), annotations.get(names.IDLE_AFTER)
    if action is None:
        if after is not None:
            raise BadRequest(f"{where}: {names.IDLE_AFTER}", after, f"used with {names.IDLE_ACTION}")
        return None
    if action not in set(IdleAction):
        raise BadRequest(f"{where}: {names.IDLE_ACTION}", action, " or ".join(IdleAction))
    return IdlePolicy(IdleAction(action), _AFTER_DEFAULT if after is None else _seconds(after, where))


def _seconds(text: str, where: str) -> float:
    found = re.fullmatch(r"([1-9][0-9]{0,5})([mhd])", text)
    seconds = float(found[1]) * _UNITS[found[2]] if found else 0.0
    if not _AFTER_MIN <= seconds <= _AFTER_MAX:
        raise BadRequest(f"{where}: {names.IDLE_AFTER}", text, "a time from 1m to 1d, such as 30m or 2h")
    return seconds


def is_idle_long_enough(line: HistoryLine | None, policy: IdlePolicy) -> bool:
    """Whether this line of the policy's time is complete, idle, and of one share: a resize starts it again."""
    if line is None or float(line.seconds.sum()) < _COVERED * policy.after_s:
        return False
    share = line.values("share")
    return is_idle(line) and bool(np.all(share == share[-1]))
