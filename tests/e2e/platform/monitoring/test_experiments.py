"""The experiments as pods of a real cluster: they share one GPU, and nothing of them stays."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from devcluster import images
from devcluster.api import read_json
from devcluster.platform import Platform

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

MILLIGPU = str(Path(sys.executable).parent / "milligpu")


def experiment(platform: Platform, namespace: str, folder: Path, name: str, *options: str) -> list[dict[str, Any]]:
    command = [MILLIGPU, "experiment", name, "--cluster", "--kubeconfig", str(platform.cluster.kubeconfig)]
    command += ["-n", namespace, "--image", images.CUDA.reference, "--out", str(folder), "-o", "json", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stderr
    assert read_json(platform.cluster.client, f"/api/v1/namespaces/{namespace}/pods")["items"] == []
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
