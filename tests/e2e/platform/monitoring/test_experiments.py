"""The experiments as pods of a real cluster: they share one GPU, and nothing of them stays."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from devcluster import images
from devcluster.platform import Platform
from devcluster.wait import until
from tests.e2e.platform.pods import DEADLINE_S, pods

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

MILLIGPU = str(Path(sys.executable).parent / "milligpu")


def command_of(platform: Platform, namespace: str, folder: Path, name: str, *options: str) -> list[str]:
    command = [MILLIGPU, "experiment", name, "--cluster", "--kubeconfig", str(platform.cluster.kubeconfig)]
    command += ["-n", namespace, "--image", images.CUDA.reference, "--out", str(folder), "-o", "json"]
    return [*command, *options]


def experiment(platform: Platform, namespace: str, folder: Path, name: str, *options: str) -> list[dict[str, Any]]:
    command = command_of(platform, namespace, folder, name, *options)
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stderr
    assert pods(platform.cluster, namespace) == []
    assert (folder / f"{name}.svg").exists()
    return json.loads(done.stdout)["rows"]


def test_pods_of_an_experiment_fill_a_gpu_and_share_its_time(
    platform: Platform, namespace: str, tmp_path: Path
) -> None:
    (row,) = experiment(platform, namespace, tmp_path, "density", "--size", "12Gi")
    assert (row["gpu mib"], row["pods"], row["models"]) == (40960, 4, 3)
    (row,) = experiment(platform, namespace, tmp_path, "nbody", "--tenants", "2", "--seconds", "2")
    assert 0 < row["gpu %"] <= 110
    assert 0.5 < row["fairness"] <= 1
    (row,) = experiment(platform, namespace, tmp_path, "cost", "--tenants", "1", "--seconds", "3", "--cpu-ms", "0")
    assert row["saving"] == "1 x"
    assert row["p50 ms"] >= 20
    (row,) = experiment(
        platform, namespace, tmp_path, "parallel", "--tenants", "1", "--seconds", "3", "--cpu-ms", "0"
    )
    assert (row["models"], row["in flight"]) == (1, 10)
    # Ten requests that each need 20 ms of the same GPU.
    assert row["p50 ms"] >= 40
    one, many = experiment(platform, namespace, tmp_path, "batching", "--seconds", "4")
    assert (one["batch"], many["batch"]) == (1, 8)
    assert one["requests/s"] > 0 < many["requests/s"]
    assert 0 < one["mib"] <= many["mib"]
    (row,) = experiment(platform, namespace, tmp_path, "overhead", "--seconds", "1")
    assert row["bare/s"] > 0 < row["shared/s"]


def test_an_experiment_that_is_told_to_stop_deletes_its_pods(
    platform: Platform, namespace: str, tmp_path: Path
) -> None:
    command = command_of(platform, namespace, tmp_path, "nbody", "--tenants", "2", "--seconds", "600")
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        until("two pods", lambda: len(pods(platform.cluster, namespace)) == 2, DEADLINE_S)
        process.terminate()
        assert process.wait(DEADLINE_S) == 128 + signal.SIGTERM
    finally:
        process.kill()
        process.wait()
    assert pods(platform.cluster, namespace) == []
