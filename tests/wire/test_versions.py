"""Every document has its own version: what 0.1.0 wrote is read, and a newer one is not taken for a broken one."""

import json
import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from milligpu.agent.allocations import AllocationStore
from milligpu.agent.attachment import Allocation
from milligpu.agent.attachments import AttachmentStore
from milligpu.agent.driver import NodeDriver
from milligpu.dialects.resize import ShareChange, parse_resize
from milligpu.dialects.shares import parse_shares
from milligpu.model.errors import BadFormat, BadRequest, NewerDocument
from milligpu.model.gpu import Gpu
from milligpu.model.grant import GpuShare, Grant
from milligpu.model.policy import SharePolicy
from milligpu.model.request import ContainerKind, Share, ShareRequest, container_of_uid
from milligpu.model.units import Mib, Milli
from milligpu.sessions.place import CONTAINER
from milligpu.sessions.record import decode_session
from milligpu.sessions.store import SessionStore
from milligpu.tenancy.arbiter import Arbiter
from milligpu.tenancy.tenants import Tenants
from milligpu.wire.documents import DocumentFormat, named_gpus
from milligpu.wire.driver import decode_driver
from milligpu.wire.gpu_settings import decode_gpu_settings
from milligpu.wire.grant import decode_grant
from milligpu.wire.inventory import decode_inventory
from milligpu.wire.limits import decode_limits
from milligpu.wire.usage import decode_usage

GOLDEN = Path(__file__).parent / "golden"
JSON: dict[str, Callable[[str], object]] = {
    "grant": decode_grant,
    "inventory": decode_inventory,
    "gpu-settings": decode_gpu_settings,
    "driver": decode_driver,
    "session": decode_session,
}
PAGES: dict[str, Callable[[bytes], object]] = {"limits": decode_limits, "usage": decode_usage}
# Offset of the version in both pages: after the magic.
PAGE_VERSION = 4


def golden(name: str) -> str:
    return (GOLDEN / name).read_text().strip()


def of_version(text: str, version: int) -> str:
    document: dict[str, Any] = json.loads(text)
    return json.dumps({**document, "v": version, "unheard-of": {}})


@pytest.mark.parametrize("kind", JSON)
def test_a_newer_document_is_not_a_broken_one(kind: str) -> None:
    JSON[kind](golden(f"{kind}-v1.json"))
    with pytest.raises(NewerDocument, match="version 99 is newer") as caught:
        JSON[kind](of_version(golden(f"{kind}-v1.json"), 99))
    assert "upgrade" in caught.value.hint


@pytest.mark.parametrize("kind", PAGES)
def test_a_newer_page_is_not_a_broken_one(kind: str) -> None:
    page = bytearray((GOLDEN / f"{kind}-v1.bin").read_bytes())
    struct.pack_into("<I", page, PAGE_VERSION, 99)
    with pytest.raises(NewerDocument):
        PAGES[kind](bytes(page))


def test_a_version_before_the_readable_range_is_refused() -> None:
    document = DocumentFormat("grant", version=3, oldest=2)
    document.check(2)
    document.check(3)
    with pytest.raises(BadFormat, match="older") as caught:
        document.check(1)
    assert not isinstance(caught.value, NewerDocument)


def test_annotations_by_container_have_a_version_too() -> None:
    shares, changes = golden("shares-v1.json"), golden("resize-v1.json")
    assert parse_shares("shares", shares) == {"main": ShareRequest(2, Milli(300), Mib(3000), limit=Milli(400))}
    assert parse_resize(changes) == {"main": ShareChange(Milli(600), Mib(8192))}
    parsers: list[tuple[Callable[[str], object], str]] = [
        (partial(parse_shares, "shares"), shares),
        (parse_resize, changes),
    ]
    for parse, text in parsers:
        assert parse(json.dumps({**json.loads(text), "v": 1})) == parse(text)
        with pytest.raises(BadRequest, match="version 99 is newer"):
            parse(of_version(text, 99))


def test_a_container_may_be_called_v() -> None:
    assert parse_resize('{"v": {"milli": 600}}') == {"v": ShareChange(Milli(600))}


def test_an_allocation_of_0_1_0_is_read(tmp_path: Path) -> None:
    (tmp_path / "0011.json").write_text(golden("allocation-v1.json"))
    expected = Allocation("0011", 7, "nvidia.com/vgpu", frozenset({"slot-1", "slot-2"}))
    assert AllocationStore(tmp_path).entries == (expected,)


def test_an_attachment_of_0_1_0_is_read(tmp_path: Path) -> None:
    arbiter = Arbiter()
    (tmp_path / "containers/0011").mkdir(parents=True)
    (tmp_path / "containers/0011/attachment.json").write_text(golden("attachment-v1.json"))
    folders = tmp_path / "containers", tmp_path / "cdi"
    store = AttachmentStore(*folders, NodeDriver({}), {}, tenants=Tenants(arbiter), gpus=dict[str, Gpu])
    found = store.held["0011"]
    arbiter.close()
    share = GpuShare("GPU-aaaa", Share(Milli(300), Mib(4915), Milli(300)))
    assert (found.holder, found.kinds) == (container_of_uid("0b0d3a52", "main"), {"main": ContainerKind.MAIN})
    assert found.grant == Grant("0b0d3a52", "n1", {"main": (share,)}, SharePolicy.FIXED)


def test_a_session_of_a_newer_service_is_kept(tmp_path: Path) -> None:
    for name, version in (("abc123", 1), ("def456", 99)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "session.json").write_text(of_version(golden("session-v1.json"), version))
    (tmp_path / "abc123/session.json").write_text(golden("session-v1.json"))
    store = SessionStore(tmp_path)
    found, broken = store.found()
    assert [session.id for session, _ in found] == ["abc123"]
    assert found[0][0].grant.containers[CONTAINER][0].share.milli == 300
    assert broken == []
    assert store.newer == {"def456": ("GPU-aaaa",)}


@pytest.mark.parametrize(
    ("text", "gpus"),
    [
        ('{"v":9,"x":{"GPU-b":1},"y":["GPU-a","GPU-b","no GPU-c"]}', ("GPU-b", "GPU-a")),
        (r'{"grant":"{\"gpu\":\"GPU-a\"}"}', ("GPU-a",)),
        ('{"gpu":"GPU-a"', ()),
        ("", ()),
    ],
)
def test_the_gpus_in_a_document_of_unknown_format_are_found(text: str, gpus: tuple[str, ...]) -> None:
    assert named_gpus(text) == gpus
    assert named_gpus(text.encode()) == gpus
