"""Driver calls of real programs, replayed through the limits library. Each sequence names its public source."""

import json
import sys
from pathlib import Path

import pytest

from tests.enforce.conftest import Tenants
from tests.enforce.rig import CONTEXT, MEMORY_LIMIT, MIB

CLIENT = Path(__file__).parent / "clients/programs.py"
OUT_OF_MEMORY = 2
SEGMENT = 20 * MIB


def replay(tenant: Tenants, name: str, memory_limit: int = MEMORY_LIMIT) -> dict[str, int]:
    done = tenant(memory_limit).run(sys.executable, CLIENT, name)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_expandable_segments_of_pytorch_are_charged_as_they_are_mapped(tenant: Tenants) -> None:
    segments = (MEMORY_LIMIT - CONTEXT) // SEGMENT
    assert replay(tenant, "pytorch_expandable_segments") == {
        "reserved": 0,
        "refused": OUT_OF_MEMORY,
        "segments": segments,
        "mapped": segments * SEGMENT,
        "left": 0,
    }


@pytest.mark.parametrize(("name", "exported"), [("nccl_buffers", False), ("nccl_peer_buffers", True)])
def test_buffers_of_nccl_are_charged_until_their_last_handle_is_released(
    tenant: Tenants, name: str, exported: bool
) -> None:
    """Another process may still have what was exported, so that stays charged."""
    steps = replay(tenant, name)
    size = steps["size"]
    left = size if exported else 0
    assert steps == {"host": 0, "buffer": size, "released once": size, "size": size, "left": left}


def test_jax_preallocates_a_part_of_the_share_and_not_of_the_gpu(tenant: Tenants) -> None:
    limit = 1024 * MIB
    steps = replay(tenant, "jax_preallocation", limit)
    assert steps["part"] == limit * 3 // 4
    assert steps["part"] <= steps["preallocated"] < steps["part"] + 2 * MIB
    assert (steps["refused"], steps["left"]) == (OUT_OF_MEMORY, 0)


def test_graphs_of_every_batch_size_are_captured_and_launched(tenant: Tenants) -> None:
    assert replay(tenant, "pytorch_graphs") == {"graphs": 67, "left": 0}
