"""The experiments run real programs on a software GPU in modeled time."""

import json
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from milligpu.measure.experiments import NAMES, ExperimentOptions, Experiments
from milligpu.measure.picture import draw_rows
from milligpu.measure.testbed import Testbed, open_testbed

MILLIGPU = Path(sys.executable).parent / "milligpu"
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def testbed() -> Iterator[Testbed]:
    with open_testbed("K80") as found:
        yield found


def experiments(testbed: Testbed, *tenants: int) -> Experiments:
    return Experiments(testbed, ExperimentOptions(seconds=0.5, tenants=tenants), lambda _: None)


def test_fifty_models_of_228_mib_fit_on_a_k80(testbed: Testbed) -> None:
    rows = experiments(testbed, 1).density().rows
    assert [(row["mib per model"], row["models"]) for row in rows] == [(228, 50), (512, 22), (1024, 11), (2048, 5)]


def test_tenants_that_compute_all_the_time_share_the_whole_gpu(testbed: Testbed) -> None:
    alone, two = experiments(testbed, 1, 2).nbody().rows
    assert (alone["tenants"], two["tenants"]) == (1, 2)
    assert float(str(alone["gpu %"])) > 50
    assert 0 < float(str(two["fairness"])) <= 1


def test_batches_of_the_real_network_take_less_gpu_time_per_request_and_more_memory(tmp_path: Path) -> None:
    command = [MILLIGPU, "experiment", "batching", "--model", "T4", "--seconds", "0.5", "--out", tmp_path]
    done = subprocess.run([*map(str, command), "-o", "json"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "the network, with batches of 8 …" in done.stderr
    shown: dict[str, Any] = json.loads(done.stdout)
    assert shown == json.loads((tmp_path / "batching.json").read_text())
    one, many = shown["rows"]
    assert many["gpu us per pass"] < 8 * one["gpu us per pass"]
    assert many["requests/s"] > one["requests/s"]
    assert many["kib"] > one["kib"]
    drawn = ET.parse(tmp_path / "batching.svg").getroot()
    assert len(drawn.findall(f"{SVG}circle")) == 2


def test_a_model_without_cpu_time_of_its_own_keeps_the_gpu_busy(tmp_path: Path) -> None:
    command = [MILLIGPU, "experiment", "sequential", "--tenants", "1", "--cpu-ms", "0", "--seconds", "0.5"]
    done = subprocess.run([*command, "--out", tmp_path, "-o", "json"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["rows"]
    assert [row["cpu limit"] for row in found] == ["none", 0.35, 0.1]
    # With the default of 50 ms it would be busy in 28 % of the time.
    assert found[0]["gpu %"] > 40


@pytest.mark.alone
@pytest.mark.long
@pytest.mark.timeout(600)
def test_more_models_raise_throughput_until_the_gpu_is_full_and_then_latency(testbed: Testbed) -> None:
    found = experiments(testbed, 1, 2, 10, 30)
    rows = [row for row in found.sequential().rows if row["cpu limit"] == "none"]
    assert float(str(rows[1]["requests/s"])) > 1.5 * float(str(rows[0]["requests/s"]))
    assert float(str(rows[2]["p50 ms"])) > 1.5 * float(str(rows[0]["p50 ms"]))
    limited = [row for row in found.sequential().rows if row["cpu limit"] == 0.35]
    assert str(limited[-1]["note"]).startswith("not run: needs 10.5 cores")
    parallel = found.parallel().rows
    assert float(str(parallel[0]["p50 ms"])) > float(str(rows[0]["p50 ms"]))
    assert abs(float(str(found.overhead().rows[0]["overhead %"]))) < 4
    assert "x cheaper than a GPU each (50 fit into its memory)" in found.cost().findings[0]


def test_an_experiment_that_does_not_exist_or_has_no_tenants_is_refused() -> None:
    for words, message in (
        (("speed",), f"one of {', '.join(NAMES)}"),
        (("nbody", "--tenants", "0"), "--tenants: invalid value '0'"),
        (("density", "--size", "1"), "--size: invalid value '1': must be at least 1Mi"),
        (("density", "--model", "K90"), "model: invalid value 'K90'"),
    ):
        done = subprocess.run([MILLIGPU, "experiment", *words], capture_output=True, text=True, check=False)
        assert (done.returncode, message in done.stderr) == (2, True), done.stderr


def test_a_row_that_was_not_measured_is_not_drawn() -> None:
    rows = [{"n": 1, "y": 2.0, "by": "a"}, {"n": 2, "y": 3.0, "by": "b"}, {"n": 3, "note": "not run", "by": "b"}]
    drawn = ET.fromstring(draw_rows("a < b", rows, "n", ["y"], "by"))
    assert len(drawn.findall(f"{SVG}circle")) == 2
    assert next(text.text for text in drawn.iter(f"{SVG}text")) == "a < b"
