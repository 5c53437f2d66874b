"""Unmodified programs compute the same on the software GPU as numpy does on the CPU."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.softgpu.conftest import Softgpu

Client = Callable[..., dict[str, Any]]


def test_cuda_c_kernels_compute_the_same_as_numpy(client: Client) -> None:
    results = client("kernels.py")
    assert len(results) > 10
    assert {name: result for name, result in results.items() if result != "ok"} == {}


def test_streams_events_graphs_and_callbacks_keep_their_order(client: Client) -> None:
    results = client("streams.py", "--devices", "2", "--memory", "1Gi")
    assert len(results) > 10
    assert {name for name, good in results.items() if not good} == set()


def test_the_driver_api_behaves_as_documented(client: Client) -> None:
    results = client("api.py", "--devices", "2", "--memory", "1Gi")
    assert len(results) > 100
    assert {name for name, good in results.items() if not good} == set()


def test_libraries_memory_pools_extended_launches_and_2d_copies_work(client: Client) -> None:
    results = client("libraries.py", "--memory", "1Gi")
    assert len(results) > 7
    assert {name for name, good in results.items() if not good} == set()


def test_numba_kernels_compute_the_same_as_numpy(client: Client) -> None:
    results = client("numba_kernels.py", "--devices", "2", "--memory", "2Gi")
    assert len(results) == 10
    assert {name for name, good in results.items() if not good} == set()


def test_cuda_core_programs_memory_and_graphs_work(client: Client) -> None:
    results = client("core_kernels.py", "--devices", "2", "--memory", "2Gi")
    assert len(results) == 11
    assert {name: result for name, result in results.items() if result != "ok"} == {}


def test_captured_streams_become_graphs(client: Client) -> None:
    results = client("captures.py", "--memory", "1Gi")
    assert len(results) > 10
    assert {name for name, good in results.items() if not good} == set()


def test_tinygrad_operations_compute_the_same_as_numpy(client: Client) -> None:
    results = client("sweep.py")
    assert len(results) > 90
    assert {name: result for name, result in results.items() if result != "ok"} == {}


def test_tensor_core_products_of_all_shapes_are_exact(client: Client) -> None:
    results = client("products.py")
    assert len(results) == 16
    assert {name: result for name, result in results.items() if result != "ok"} == {}


def test_a_warp_moves_matrices_between_memory_and_registers(client: Client) -> None:
    results = client("matrices.py")
    assert len(results) == 21
    assert {name: result for name, result in results.items() if result != "ok"} == {}


def test_arithmetic_and_conversions_round_exactly_in_every_mode(client: Client) -> None:
    results = client("rounding.py")
    assert len(results) > 100
    assert {name: result for name, result in results.items() if result != "ok"} == {}


def test_rare_instructions_behave_as_documented(client: Client) -> None:
    results = client("instructions.py")
    assert len(results) > 30
    assert {name: result for name, result in results.items() if result != "ok"} == {}


def test_a_fat_binary_loads_the_newest_ptx_that_the_gpu_can_run(client: Client) -> None:
    results = client("fatbins.py")
    refused = {
        "half a file": "INVALID_IMAGE",
        "only for newer GPUs": "NO_BINARY_FOR_GPU",
        "only machine code": "NO_BINARY_FOR_GPU",
        "broken zstd": "INVALID_IMAGE",
        "broken lz4": "INVALID_IMAGE",
    }
    taken = {
        **dict.fromkeys(("zstd", "lz4", "plain", "together", "wrapped", "file"), "80"),
        "next to machine code": "75",
    }
    assert results == {**taken, **{name: f"CUDA_ERROR_{error}" for name, error in refused.items()}}


def test_tinygrad_trains_a_convolutional_network_in_a_graph(client: Client) -> None:
    losses = client("convnet.py")["losses"]
    assert losses[-1] < losses[0] / 2


def test_tinygrad_training_reduces_the_loss(softgpu: Softgpu) -> None:
    done = softgpu("exec", "--memory", "4Gi", "--", sys.executable, Path("examples/train.py"))
    assert done.returncode == 0, done.stderr[-2000:]
    assert "on CUDA" in done.stdout
    assert float(done.stdout.split()[-1]) > 0.95


def test_arrays_are_memory_that_copies_reach(client: Client) -> None:
    results = client("arrays.py")
    assert results == dict.fromkeys(("rows", "boxes", "refused", "ends with its context"), True)
