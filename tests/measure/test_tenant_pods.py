"""The pods of experiments on a cluster, and how their logs are read."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from milligpu.measure import tenant
from milligpu.measure.experiments import ExperimentOptions
from milligpu.measure.tenant_pods import TenantLoad, answer_times, has_begun, tenant_pod
from milligpu.model.units import Mib

GPU = Mib(12_288)


def pod(load: TenantLoad, count: int = 1) -> dict[str, Any]:
    return tenant_pod("experiment-a1-0", "python:3", load, count, GPU)


def limits(load: TenantLoad, count: int = 1) -> dict[str, Any]:
    return pod(load, count)["spec"]["containers"][0]["resources"]["limits"]


def test_pods_have_equal_parts_of_one_gpu_that_is_theirs_alone() -> None:
    load = TenantLoad.serve(20_000, 50)
    assert limits(load, 4) == {"nvidia.com/vgpu": 250, "nvidia.com/vgpu-memory": 3072}
    assert pod(load, 4)["metadata"]["annotations"] == {
        "milligpu.dev/affinity": "experiment-a1",
        "milligpu.dev/exclusion": "experiment-a1",
    }


def test_a_single_pod_states_its_memory_because_it_would_have_a_whole_gpu_without_limits_otherwise() -> None:
    assert limits(TenantLoad.serve(20_000, 0)) == {"nvidia.com/vgpu": 1000, "nvidia.com/vgpu-memory": GPU}


def test_a_bare_pod_has_a_whole_gpu_and_no_share() -> None:
    load = TenantLoad.serve(20_000, 0, bare=True)
    assert limits(load) == {"nvidia.com/gpu": 1}
    assert pod(load)["metadata"]["annotations"] == {}
    assert "affinity" not in pod(load)["spec"]


def test_a_pod_that_is_compared_with_another_runs_on_the_same_node() -> None:
    affinity = pod(TenantLoad.serve(20_000, 0, node="a"))["spec"]["affinity"]["nodeAffinity"]
    (term,) = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert term == {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["a"]}]}


def test_what_a_pod_runs_and_its_cpu_limit_are_in_its_container() -> None:
    load = TenantLoad.serve(20_000, 12.5, processes=10, cpu=0.35)
    (container,) = pod(load)["spec"]["containers"]
    assert container["resources"]["limits"]["cpu"] == "350m"
    assert container["command"][:2] == ["python3", "-c"]
    assert container["command"][3:] == ["serve", "20000", "12.5", "10"]
    (network,) = pod(TenantLoad.network(8))["spec"]["containers"]
    assert {"name": "DEV", "value": "CUDA:PTX"} in network["env"]
    assert network["command"][3:] == ["8", "serve"]


def test_memory_to_hold_takes_the_place_of_an_equal_part() -> None:
    assert limits(TenantLoad.hold(Mib(228)), 50) == {"nvidia.com/vgpu": 20, "nvidia.com/vgpu-memory": 228}


def test_a_tenant_has_begun_when_all_its_processes_have_the_gpu() -> None:
    assert not has_begun("", 1)
    assert has_begun("1.0 held 5\n", 1)
    assert not has_begun("1.0 ready shared\n1.1 answered 20.00\n", 2)
    assert has_begun("1.0 ready shared\n1.1 answered 20.00\n1.2 ready shared\n", 2)


def test_requests_count_that_ended_within_the_measured_time() -> None:
    log = "0.9 ready shared\n1.0 answered 20.00\n1.5 answered 21.50\n2.0 answered 22.00\nan error\n"
    assert answer_times(log, 1.0, 2.0) == [20.0, 21.5]


def test_all_processes_together_are_at_most_the_largest_number_of_tenants() -> None:
    options = ExperimentOptions(tenants=(1, 2, 5, 10, 50))
    assert options.counts() == [1, 2, 5, 10, 50]
    assert options.counts(10) == [1, 2, 5]
    assert ExperimentOptions(tenants=(1, 2)).counts(10) == [1]


@pytest.mark.parametrize("processes", ["1", "3"])
def test_a_tenant_without_a_gpu_ends_with_an_error(tmp_path: Path, processes: str) -> None:
    text = Path(tenant.__file__).read_text()
    command = [sys.executable, "-c", text, "serve", "20000", "0", processes]
    environment = {"PATH": "/usr/bin:/bin", "LD_LIBRARY_PATH": str(tmp_path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode != 0
    assert "libcuda.so.1" in done.stderr
