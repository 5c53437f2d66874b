"""The JSON formats against their golden files, which are also what other implementations may test with."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from milligpu.model.errors import BadFormat
from milligpu.model.gpu import Capability, Gpu, Link, Mode, State
from milligpu.model.grant import GpuShare, Grant
from milligpu.model.qos import Policy
from milligpu.model.units import Mib, Milli
from milligpu.wire.grant import decode_grant, encode_grant
from milligpu.wire.inventory import decode_inventory, encode_inventory

GOLDEN = Path(__file__).parent / "golden"

GRANT = Grant(
    uid="0b0d3a52-6b7c-4a43-9d3b-3d4c2f5f7a11",
    node="n1",
    containers={
        "main": (GpuShare("GPU-aaaa", Milli(500), Mib(8192), Milli(1000)),),
        "trainer": (GpuShare("GPU-bbbb", whole=True), GpuShare("GPU-cccc", whole=True)),
    },
    policy=Policy.BEST_EFFORT,
    priority=7,
    generation=2,
)
INVENTORY = (
    Gpu(
        uuid="GPU-aaaa",
        model="Tesla V100-SXM2-16GB",
        mib=Mib(16384),
        reserved=Milli(100),
        numa=1,
        capability=Capability(7, 0),
        ecc=True,
        links={"GPU-bbbb": Link("NV", 2)},
        policy=Policy.EQUAL,
    ),
    Gpu(
        uuid="GPU-bbbb",
        model="GRID V100-8Q",
        mib=Mib(8192),
        milli=Milli(500),
        links={"GPU-aaaa": Link("NV", 2)},
        mode=Mode.WHOLE,
        state=State.SICK,
        reason="XID 79",
    ),
)


def golden(name: str) -> str:
    return (GOLDEN / name).read_text().strip()


def test_the_golden_grant_is_read_and_written() -> None:
    assert decode_grant(golden("grant-v1.json")) == GRANT
    assert encode_grant(GRANT) == golden("grant-v1.json")


def test_the_golden_inventory_is_read_and_written() -> None:
    assert decode_inventory(golden("inventory-v1.json")) == INVENTORY
    assert encode_inventory(INVENTORY) == golden("inventory-v1.json")


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
        ("v", 2),
        ("v", "1"),
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
        ("v", 3),
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
        decode_grant(changed(golden("grant-v1.json"), "v", 2))
    assert "upgrade" in caught.value.hint


@given(st.binary(max_size=300) | st.text(max_size=300))
def test_garbage_is_refused_and_nothing_else_happens(data: bytes | str) -> None:
    for decode in (decode_grant, decode_inventory):
        with pytest.raises(BadFormat):
            decode(data)


def test_a_document_larger_than_an_annotation_is_refused() -> None:
    with pytest.raises(BadFormat, match="at most"):
        decode_grant(" " * 300_000)
