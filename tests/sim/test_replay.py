"""Replays: the procedure, what is counted, and that our score earns its place."""

import json
import re
import xml.etree.ElementTree as ET
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from milligpu.cli.simulate import command
from milligpu.model.errors import BadFormat, BadRequest
from milligpu.model.policy import PlacementStrategy
from milligpu.placement.score import STRATEGIES, BaselineStrategy
from milligpu.sim.departures import ChurnResult, churn
from milligpu.sim.generate import WorkloadMix, generate
from milligpu.sim.replay import ReplaySetup, SeedRun, arrivals, replay
from milligpu.sim.trace import Trace, TracePod

TRACE = generate(40, seed=5)
TICKS = count()


def now() -> float:
    return float(next(TICKS))


def run(policy: PlacementStrategy | BaselineStrategy, seed: int = 1, trace: Trace = TRACE, **how: Any) -> SeedRun:
    return replay(trace, policy, seed, ReplaySetup(**how), now=now)


def test_arrivals_are_all_pods_once_and_then_more_up_to_the_demand() -> None:
    pods = arrivals(TRACE, 7, 1.3)
    assert sorted(pod.name for pod in pods[: len(TRACE.pods)]) == sorted(pod.name for pod in TRACE.pods)
    asked = sum(pod.gpu_total for pod in pods)
    assert 1.3 * TRACE.capacity - 8000 <= asked <= 1.3 * TRACE.capacity
    assert pods == arrivals(TRACE, 7, 1.3)
    assert pods != arrivals(TRACE, 8, 1.3)


def test_less_demand_than_the_trace_has_drops_pods() -> None:
    assert sum(pod.gpu_total for pod in arrivals(TRACE, 7, 0.5)) <= 0.5 * TRACE.capacity


def test_everything_fits_while_little_was_asked_for() -> None:
    early = run(PlacementStrategy.PACKING, trace=generate(40, mix=WorkloadMix(model_specific=0)), arrival=0.5)
    assert not early.failed
    assert early.allocated[-1] == pytest.approx(early.arrived[-1])


def test_allocation_is_what_was_asked_for_less_what_failed() -> None:
    done = run(PlacementStrategy.BEST_FIT)
    assert done.allocated[-1] < done.arrived[-1]
    assert done.allocated == sorted(done.allocated)
    assert sum(done.failed[group] for group in ("fractional", "one-gpu", "multi-gpu")) > 0
    assert done.at(100) is not None
    assert done.at(150) is None


def test_a_replay_repeats_exactly_for_its_seed() -> None:
    assert run(PlacementStrategy.PACKING, 3).allocated == run(PlacementStrategy.PACKING, 3).allocated
    assert run(PlacementStrategy.PACKING, 3).allocated != run(PlacementStrategy.PACKING, 4).allocated


def test_packing_leaves_less_unusable_than_fgd_and_the_others() -> None:
    trace = generate(60, seed=1)

    def mean(policy: PlacementStrategy | BaselineStrategy, *, online: bool = False) -> float:
        runs = [run(policy, seed, trace, shuffle_nodes=True, online=online, arrival=1.05) for seed in (1, 2)]
        return sum(at for each in runs if (at := each.at(100)) is not None) / len(runs)

    ours = mean(PlacementStrategy.PACKING)
    assert ours > mean(BaselineStrategy.FGD)
    assert ours > mean(PlacementStrategy.BEST_FIT)
    assert mean(PlacementStrategy.BEST_FIT) > mean(BaselineStrategy.RANDOM)
    assert mean(PlacementStrategy.PACKING, online=True) > ours - 0.5


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_strategy_replays(strategy: PlacementStrategy | BaselineStrategy) -> None:
    done = run(strategy, trace=generate(8, seed=2))
    assert 50 < done.allocated[-1] <= 100


def test_departures_keep_the_load_and_moving_pods_places_more() -> None:
    def allocated(defrag: bool) -> SeedRun:
        return churn(TRACE, PlacementStrategy.SPREAD, 1, ReplaySetup(), ChurnResult(0.95, 500, defrag), now=now)

    plain, moved = allocated(False), allocated(True)
    assert 60 < plain.allocated[-1] < 100
    assert moved.moves > 0
    assert sum(moved.failed.values()) < sum(plain.failed.values())


def test_departures_need_lifetimes() -> None:
    trace = Trace(TRACE.nodes, (TracePod("p", 1, 1, 1, 1000),))
    with pytest.raises(BadFormat, match="deletion_time: no lifetimes"):
        churn(trace, PlacementStrategy.PACKING, 1, ReplaySetup(), ChurnResult(), now=now)


# -- the command -----------------------------------------------------------------------------------------------


def cli(*args: str) -> str:
    result = CliRunner().invoke(command, args, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_json_has_one_object_per_policy() -> None:
    policies = ("--strategy", "fgd", "--strategy", "packing")
    out = json.loads(cli("--generate", "10", *policies, "--seeds", "42-43", "-o", "json"))
    assert [each["policy"] for each in out] == ["fgd", "packing"]
    for each in out:
        assert each["seeds"] == [42, 43]
        assert set(each["alloc"]) == set(each["alloc_std"]) == {"90", "95", "100", "110", "120", "130"}
        assert set(each["failed"]) >= {"cpu-only", "fractional", "one-gpu", "multi-gpu"}
        assert each["us_per_decision"] > 0


def test_the_default_is_packing_as_a_table_and_csv_has_the_same_columns() -> None:
    table = cli("--generate", "6").splitlines()
    rows = cli("--generate", "6", "-o", "csv").splitlines()
    assert table[0].split() == rows[0].split(",")
    assert rows[1].startswith("packing,")


def test_files_are_replayed_and_saved(tmp_path: Path) -> None:
    first = json.loads(cli("--generate", "6", "--save", str(tmp_path), "-o", "json"))
    again = json.loads(
        cli("--nodes", str(tmp_path / "nodes.csv"), "--pods", str(tmp_path / "pods.csv"), "-o", "json")
    )
    assert first[0]["alloc"] == again[0]["alloc"]


def test_arrivals_and_what_is_known_of_the_workload_are_options() -> None:
    def alloc(*options: str) -> dict[str, float]:
        (result,) = json.loads(cli("--generate", "12", "--seeds", "42-44", *options, "-o", "json"))
        return result["alloc"]

    usual = alloc()
    assert set(alloc("--arrival", "0.95")) < set(usual)
    assert alloc("--online") != usual


def test_shuffled_nodes_change_the_strategy_random_and_no_other() -> None:
    names = [str(each) for each in STRATEGIES]

    def alloc(*options: str) -> dict[str, object]:
        chosen = [word for name in names for word in ("--strategy", name)]
        results = json.loads(cli("--generate", "12", "--seeds", "42-44", *chosen, *options, "-o", "json"))
        return {each["policy"]: (each["alloc"], each["failed"]) for each in results}

    in_order, shuffled = alloc(), alloc("--shuffle-nodes")
    assert [name for name in names if in_order[name] != shuffled[name]] == ["random"]


def test_departures_report_the_load_and_the_moves() -> None:
    out = cli("--generate", "6", "--departures", "--load", "0.95", "--events", "60", "--defrag", "-o", "json")
    (result,) = json.loads(out)
    assert set(result["alloc"]) == {"95"}
    assert "moves" in result


def test_the_plot_is_svg_with_a_line_for_every_policy(tmp_path: Path) -> None:
    path = tmp_path / "plot.svg"
    cli("--generate", "6", "--strategy", "packing", "--strategy", "random", "--plot", str(path))
    root = ET.fromstring(path.read_text())
    lines = root.findall("{http://www.w3.org/2000/svg}polyline")
    assert len(lines) == 2
    width, height = (float(root.attrib[name]) for name in ("width", "height"))
    for line in lines:
        points = [tuple(map(float, pair.split(","))) for pair in line.attrib["points"].split()]
        assert len(points) > 20
        assert all(0 <= x <= width and 0 <= y <= height for x, y in points)
    assert re.search(r">packing \d+\.\d<", path.read_text())


def test_the_plot_is_a_png_too(tmp_path: Path) -> None:
    path = tmp_path / "new" / "plot.png"
    cli("--generate", "6", "--plot", str(path))
    assert path.read_bytes().startswith(b"\x89PNG\r\n")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--generate", "5", "--seeds", "9-3"), "--seeds: invalid value '9-3': must be numbers or ranges"),
        (("--generate", "5", "--seeds", "x"), "--seeds: invalid value 'x': must be numbers or ranges"),
        (
            ("--generate", "5", "--plot", "a.gif"),
            "--plot: invalid value 'a.gif': must be a file that ends in .svg",
        ),
        (
            ("--generate", "5", "--plot", "/proc/x/a.svg"),
            "--plot: invalid value '/proc/x/a.svg': must be in a directory that can be created",
        ),
    ],
)
def test_wrong_options_are_refused_before_anything_runs(args: tuple[str, ...], message: str) -> None:
    result = CliRunner().invoke(command, args)
    assert isinstance(result.exception, BadRequest)
    assert message in result.exception.message


@pytest.mark.parametrize(
    "args", ["", "--nodes x", "--generate 3 --pods x", "--generate 3 --defrag", "--strategy x", "--generate 0"]
)
def test_wrong_usage_exits_with_2(args: str) -> None:
    assert CliRunner().invoke(command, args.split()).exit_code == 2
