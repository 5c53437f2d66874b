"""The JSON formats against their golden files, which are also what other implementations may test with."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from milligpu.model.errors import BadFormat
from milligpu.model.gpu import ComputeCapability, Gpu, GpuLink, GpuState, SharingMode
from milligpu.model.grant import GpuShare, Grant, whole_gpu
from milligpu.model.policy import SharePolicy
from milligpu.model.request import Share
from milligpu.model.units import Mib, Milli
from milligpu.wire.grant import decode_grant, encode_grant
from milligpu.wire.inventory import decode_inventory, encode_inventory

GOLDEN = Path(__file__).parent / "golden"

GRANT = Grant(
    uid="0b0d3a52-6b7c-4a43-9d3b-3d4c2f5f7a11",
    node="n1",
    containers={
        "main": (GpuShare("GPU-aaaa", Share(Milli(500), Mib(8192), Milli(1000))),),
        "trainer": (whole_gpu("GPU-bbbb"), whole_gpu("GPU-cccc")),
    },
    policy=SharePolicy.BEST_EFFORT,
    priority=7,
    generation=2,
)
WHOLE_V100 = tuple(
    GpuShare(uuid, Share(Milli(1000), Mib(16384), Milli(1000), whole=True)) for uuid in ("GPU-bbbb", "GPU-cccc")
)
GRANT_2 = replace(GRANT, containers={**GRANT.containers, "trainer": WHOLE_V100})
INVENTORY = (
    Gpu(
        uuid="GPU-aaaa",
        model="Tesla V100-SXM2-16GB",
        mib=Mib(16384),
        reserved=Milli(100),
        numa=1,
        capability=ComputeCapability(7, 0),
        ecc=True,
        links={"GPU-bbbb": GpuLink("NV", 2)},
        policy=SharePolicy.EQUAL,
    ),
    Gpu(
        uuid="GPU-bbbb",
        model="GRID V100-8Q",
        mib=Mib(8192),
        milli=Milli(500),
        links={"GPU-aaaa": GpuLink("NV", 2)},
        policy=SharePolicy.FIXED,
        mode=SharingMode.WHOLE,
        state=GpuState.UNHEALTHY,
        message="XID 79",
    ),
)


def golden(name: str) -> str:
    return (GOLDEN / name).read_text().strip()


def test_the_golden_grant_is_read_and_written() -> None:
    assert decode_grant(golden("grant-v1.json")) == GRANT
    assert encode_grant(GRANT) == golden("grant-v1.json")
    assert decode_grant(golden("grant-v2.json")) == GRANT_2
    assert encode_grant(GRANT_2) == golden("grant-v2.json")
    assert decode_grant(golden("grant-v3.json")) == replace(GRANT_2, gpu_class="gold")
    assert encode_grant(replace(GRANT_2, gpu_class="gold")) == golden("grant-v3.json")


def test_a_gpu_without_a_policy_is_one_of_an_old_agent_that_knew_only_fixed() -> None:
    gpu = Gpu("GPU-aaaa", "V100", Mib(16384))
    assert '"policy":"best-effort"' in encode_inventory([gpu])
    assert decode_inventory(encode_inventory([gpu])) == (gpu,)
    assert '"policy"' not in encode_inventory([replace(gpu, policy=SharePolicy.FIXED)])


def test_a_whole_gpu_of_either_version_is_all_of_the_gpu() -> None:
    gpu = Gpu("GPU-bbbb", "V100", Mib(8192), milli=Milli(500))
    for grant in (GRANT, GRANT_2):
        assert grant.containers["trainer"][0].resolve(gpu) == Share(Milli(500), Mib(8192), Milli(500), whole=True)
    assert GRANT.containers["main"][0].resolve(gpu) == Share(Milli(500), Mib(8192), Milli(1000))


def test_a_grant_without_whole_gpus_is_written_for_0_1_0_to_read() -> None:
    shares = replace(GRANT, containers={"main": GRANT.containers["main"]})
    assert json.loads(encode_grant(shares))["v"] == 1


@pytest.mark.parametrize("key", ["milli", "mib", "limit"])
def test_a_whole_gpu_of_version_2_has_all_numbers(key: str) -> None:
    with pytest.raises(BadFormat, match=f"^grant: {key}: required"):
        decode_grant(changed(golden("grant-v2.json"), f"containers.trainer.0.{key}", ...))


def test_the_golden_inventory_is_read_and_written() -> None:
    assert decode_inventory(golden("inventory-v1.json")) == INVENTORY
    assert decode_inventory(golden("inventory-v2.json")) == INVENTORY
    assert encode_inventory(INVENTORY) == golden("inventory-v2.json")
    limited = (replace(INVENTORY[0], limit=Milli(500)), *INVENTORY[1:])
    assert decode_inventory(golden("inventory-v3.json")) == limited
    assert encode_inventory(limited) == golden("inventory-v3.json")


def test_an_inventory_of_healthy_gpus_is_written_for_0_1_0_to_read() -> None:
    assert json.loads(encode_inventory(INVENTORY[:1]))["v"] == 1


def changed(text: str, path: str, value: object) -> str:
    """The document with one place changed; a value of ... removes it."""
    document: Any = json.loads(text)
    *parents, last = (int(step) if step.isdigit() else step for step in path.split("."))
    place = document
    for step in parents:
        place = place[step]
    if value is ...:
        del place[last]
    else:
        place[last] = value
    return json.dumps(document)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("v", 4),
        ("v", "1"),
        ("class", "gold"),
        ("v", ...),
        ("gen", 0),
        ("gen", ...),
        ("uid", ""),
        ("node", ""),
        ("node", None),
        ("policy", "fair"),
        ("priority", 101),
        ("extra", 1),
        ("containers", {}),
        ("containers.main", []),
        ("containers.main.0.gpu", "0"),
        ("containers.main.0.milli", 1001),
        ("containers.main.0.milli", ...),
        ("containers.main.0.milli", "500"),
        ("containers.main.0.limit", 499),
        ("containers.main.0.limit", ...),
        ("containers.main.0.mib", 0),
        ("containers.main.0.mib", 0.5),
        ("containers.main.0.whole", True),
        ("containers.trainer.0.whole", False),
        ("containers.trainer.0.gpu", "GPU-cccc"),
    ],
)
def test_a_grant_that_is_not_understood_is_refused_whole(path: str, value: object) -> None:
    with pytest.raises(BadFormat, match="^grant: "):
        decode_grant(changed(golden("grant-v1.json"), path, value))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("v", 4),
        ("gpus", ...),
        ("gpus.0.uuid", "GPU-bbbb"),
        ("gpus.0.uuid", "x"),
        ("gpus.0.model", ""),
        ("gpus.0.mib", 0),
        ("gpus.0.mib", ...),
        ("gpus.0.milli", 1001),
        ("gpus.1.reserved", 501),
        ("gpus.0.numa", -1),
        ("gpus.0.cc", "eight"),
        ("gpus.0.links", {"GPU-bbbb": "FAST"}),
        ("gpus.0.mode", "time-sliced"),
        ("gpus.0.state", "fine"),
        ("gpus.0.colour", "green"),
    ],
)
def test_an_inventory_that_is_not_understood_is_refused_whole(path: str, value: object) -> None:
    with pytest.raises(BadFormat, match="^inventory: "):
        decode_inventory(changed(golden("inventory-v1.json"), path, value))


def test_a_newer_version_says_to_upgrade() -> None:
    with pytest.raises(BadFormat) as caught:
        decode_grant(changed(golden("grant-v1.json"), "v", 4))
    assert "upgrade" in caught.value.hint


@given(st.binary(max_size=300) | st.text(max_size=300))
def test_garbage_is_refused_and_nothing_else_happens(data: bytes | str) -> None:
    for decode in (decode_grant, decode_inventory):
        with pytest.raises(BadFormat):
            decode(data)


def test_a_document_larger_than_an_annotation_is_refused() -> None:
    with pytest.raises(BadFormat, match="at most"):
        decode_grant(" " * 300_000)
