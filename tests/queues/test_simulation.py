"""Queues in the simulated control plane: faults, kills and late answers break no order and leave nobody waiting."""

import pytest

from testing.controlplane.run import RUN_STEPS, Setting, run, steps_of

KINDS = (
    ["queued", "finish"],
    ["queued", "create", "finish", "delete", "relist"],
    ["queued", "finish", "fault:nominate", "fault:ungate", "down:ungate"],
    ["queued", "create", "finish", "kill", "kill-at", "stop", "pause"],
    ["queued", "burst", "finish", "force-delete", "watch", "gpu", "node"],
)


@pytest.mark.parametrize("number", range(len(KINDS) * 2))
def test_all_invariants_hold_with_a_queue(number: int) -> None:
    seed = f"queue.{number}"
    assert run(Setting.draw(seed, queue=True), steps_of(seed, RUN_STEPS, KINDS[number % len(KINDS)])) is None
