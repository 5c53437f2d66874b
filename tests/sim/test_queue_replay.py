"""Queues in a replay: every rule gets the same pods, and ours keeps its promises."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from milligpu.cli.simulate import command
from milligpu.cli.simulate_queues import read_queues
from milligpu.model.errors import BadFormat, BadRequest
from milligpu.model.gpu_queue import GpuQueue, GpuQueues, QueueOrder
from milligpu.sim.generate import generate
from milligpu.sim.queue_replay import QueueSetup, draw_arrivals, replay_queues
from milligpu.sim.queue_rules import RULES

TRACE = generate(6, seed=5)
SETUP = QueueSetup(load=1.0, arrivals=150)
ONE = GpuQueues([GpuQueue("all", order=QueueOrder.FIFO)])
EXAMPLE = Path(__file__).parents[2] / "examples/queues.yaml"


def test_a_seed_draws_the_same_pods_users_and_limits_for_every_rule() -> None:
    first, again = draw_arrivals(TRACE, ONE, 3, SETUP), draw_arrivals(TRACE, ONE, 3, SETUP)
    assert first == again
    assert first != draw_arrivals(TRACE, ONE, 4, SETUP)
    assert all(each.pod.time_limit_s >= each.lifetime for each in first)


def test_the_cluster_is_full_of_pods_in_the_middle_of_their_lives_when_the_run_begins() -> None:
    begun = [each for each in draw_arrivals(TRACE, ONE, 3, SETUP) if each.pod.arrived < 0.01]
    assert sum(each.pod.milli for each in begun) >= TRACE.capacity


@pytest.mark.parametrize("rule", RULES)
def test_every_pod_is_counted_once_whether_it_started_or_not(rule: str) -> None:
    run = replay_queues(TRACE, ONE, rule, 3, SETUP)
    arrivals = draw_arrivals(TRACE, ONE, 3, SETUP)
    counted_from = arrivals[int(len(arrivals) * 0.25)].pod.arrived
    assert len(run.waits) == sum(each.pod.arrived >= counted_from for each in arrivals)
    assert 0 < run.allocated <= 100
    assert 0 < run.fairness <= 1


def test_in_one_queue_everybody_starts_by_the_time_that_was_promised() -> None:
    run = replay_queues(TRACE, ONE, "milligpu", 3, SETUP)
    assert run.promised > 0
    assert run.late == 0
    assert run.early > 0


def test_pods_wait_less_than_behind_each_other() -> None:
    ours, fifo = (replay_queues(TRACE, ONE, rule, 3, SETUP) for rule in ("milligpu", "fifo"))
    assert sum(ours.waits) < sum(fifo.waits)
    assert ours.allocated >= fifo.allocated


def test_the_example_has_eight_queues_that_take_pods() -> None:
    assert len(read_queues(EXAMPLE).leaves) == 8


def test_the_command_shows_every_rule_and_what_was_drawn() -> None:
    arguments = ["--generate", "6", "--queues", str(EXAMPLE), "--events", "20", "--load", "1"]
    shown = CliRunner().invoke(command, arguments)
    assert shown.exit_code == 0, shown.output
    assert [line.split()[0] for line in shown.output.splitlines()[:5]] == ["RULE", *RULES]
    assert "50 users (Zipf 1.1) in 8 queues" in shown.output
    assert max(len(line) for line in shown.output.splitlines()[:5]) <= 80
    data = json.loads(CliRunner().invoke(command, [*arguments, "-o", "json"]).output)
    assert [each["rule"] for each in data] == list(RULES)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("kind: GpuQueue\nspec: {}", "missing required field `apiVersion`"),
        (
            "apiVersion: milligpu.dev/v1alpha1\nkind: GpuQueue\nmetadata: {name: a}\nspec: {wait: 1}",
            "unknown field `wait`",
        ),
        (
            "apiVersion: milligpu.dev/v1alpha1\nkind: GpuQueue\nmetadata: {name: a}\nspec: {weight: 0}",
            "document 1: spec.weight: invalid value 0: must be a whole number from 1 to 1000000",
        ),
        (
            "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {}",
            "kind: invalid value 'v1 Pod': must be milligpu.dev/v1alpha1 GpuQueue",
        ),
        ("", "must be a file with at least one GpuQueue"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused_with_its_field(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "queues.yaml"
    file.write_text(text)
    with pytest.raises((BadFormat, BadRequest), match=message.replace("`", ".")):
        read_queues(file)
