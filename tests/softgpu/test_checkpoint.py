"""Checkpoint and restore: a training that moves to another GPU midway ends like one that stays."""

from collections.abc import Callable
from typing import Any

import pytest

RUNNING, LOCKED, CHECKPOINTED = 0, 1, 2
INVALID_VALUE, ILLEGAL_STATE = 1, 401


@pytest.fixture(scope="module")
def moved(client: Callable[..., dict[str, Any]]) -> dict[str, Any]:
    return client("moved.py", "--model", "A10x2,T4x1", "--memory", "2Gi")


def test_a_checkpointed_process_holds_no_gpu_memory(moved: dict[str, Any]) -> None:
    assert moved["freed"]


def test_a_restored_process_holds_the_same_memory_on_the_other_gpu(moved: dict[str, Any]) -> None:
    assert moved["moved"]


def test_a_training_moved_to_another_gpu_ends_with_the_same_loss(moved: dict[str, Any]) -> None:
    still, moving = moved["losses"]
    assert len(still) == 8
    assert moving == still


def test_checkpoint_states_follow_in_order(moved: dict[str, Any]) -> None:
    assert moved["states"] == [RUNNING, LOCKED, CHECKPOINTED, LOCKED, RUNNING]


def test_checkpoint_requests_in_the_wrong_state_are_refused(moved: dict[str, Any]) -> None:
    assert moved["orders out of turn"] == [ILLEGAL_STATE] * 3
    assert moved["a process that is not there"] == INVALID_VALUE
    assert moved["another model"] == INVALID_VALUE
