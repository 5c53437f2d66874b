"""What namespaces ask for is read or refused, and a pod is idle only if all of the time is measured."""

import numpy as np
import pytest

from milligpu.history.samples import WIDTH, HistoryLine, Level
from milligpu.model.errors import BadRequest
from milligpu.model.names import IDLE_ACTION, IDLE_AFTER
from milligpu.status.idle_policy import IdleAction, IdlePolicy, is_idle_long_enough, read_idle_policy


def read(**annotations: str) -> IdlePolicy | None:
    known = {"action": IDLE_ACTION, "after": IDLE_AFTER}
    return read_idle_policy({known[name]: value for name, value in annotations.items()}, "namespace team")


def test_the_annotations_name_an_action_and_a_time() -> None:
    assert read() is None
    assert read(action="notify") == IdlePolicy(IdleAction.NOTIFY, 3600.0)
    assert read(action="shrink", after="30m") == IdlePolicy(IdleAction.SHRINK, 1800.0)
    assert (IdlePolicy(IdleAction.NOTIFY, 600).level, IdlePolicy(IdleAction.NOTIFY, 7200).level) == (
        Level.RAW,
        Level.MINUTES,
    )


@pytest.mark.parametrize(
    ("annotations", "message"),
    [
        ({"action": "delete"}, "namespace team: milligpu.dev/idle-action: invalid value 'delete'"),
        ({"action": "shrink", "after": "30"}, "namespace team: milligpu.dev/idle-after: invalid value '30'"),
        ({"action": "shrink", "after": "2d"}, "a time from 1m to 1d"),
        ({"action": "shrink", "after": "0m"}, "a time from 1m to 1d"),
        ({"after": "2h"}, "used with milligpu.dev/idle-action"),
    ],
)
def test_a_typo_shrinks_nobody(annotations: dict[str, str], message: str) -> None:
    with pytest.raises(BadRequest) as refused:
        read(**annotations)
    assert message in refused.value.message


def line(used: list[float], share: list[float], seconds: float = 60.0) -> HistoryLine:
    rows = np.full((len(used), WIDTH), np.nan, np.float32)
    rows[:, 0], rows[:, 2], rows[:, 3] = seconds, used, share
    return HistoryLine("pod/team/a/main/G1", {}, np.arange(len(used), dtype=np.int64), rows)


def test_a_pod_is_idle_long_enough_if_the_whole_time_is_measured_unused_and_of_one_share() -> None:
    hour = IdlePolicy(IdleAction.SHRINK, 3600.0)
    assert is_idle_long_enough(line([0.0] * 60, [0.5] * 60), hour)
    assert not is_idle_long_enough(None, hour)
    assert not is_idle_long_enough(line([0.0] * 50, [0.5] * 50), hour), "ten minutes are missing"
    assert not is_idle_long_enough(line([0.0] * 50 + [0.4] * 10, [0.5] * 60), hour), "it worked"
    assert not is_idle_long_enough(line([0.0] * 60, [0.05] * 20 + [0.5] * 40), hour), "somebody gave it more"
    assert not is_idle_long_enough(line([np.nan] * 60, [0.5] * 60), hour), "nobody measured"
