"""The memory pages: golden files read from Python and from C, and a writer that races with readers."""

import ctypes
import struct
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from milligpu.model.errors import BadFormat, BadRequest
from milligpu.model.policy import SharePolicy
from milligpu.model.units import Milli
from milligpu.native import library
from milligpu.wire.limits import LIMITS_SIZE, GpuLimits, LimitsPage, decode_limits, encode_limits
from milligpu.wire.usage import USAGE_SIZE, MemoryAccount, ProcessSlot, UsagePage, decode_usage, encode_usage

GOLDEN = Path(__file__).parent / "golden"
UNUSED = slice(64 + 24, 64 + 28)

LIMITS = LimitsPage(
    gpus=(
        GpuLimits(
            "GPU-aaaa", Milli(500), Milli(1000), 8 * 2**30, SharePolicy.BEST_EFFORT, 0, 50_000, 123_456_789, 3
        ),
        GpuLimits("GPU-bbbb", Milli(300), Milli(300), 4 * 2**30, SharePolicy.FIXED, 50_000, 30_000),
    ),
    priority=7,
    generation=2,
    heartbeat_ns=987_654_321,
)
USAGE = UsagePage(
    accounts=(MemoryAccount(used=300, peak=400, refused=2), MemoryAccount()),
    processes=(ProcessSlot(17, 5_000, (100, 0)), ProcessSlot(18, 5_001, (200, 0))),
)


@pytest.fixture(scope="module")
def pages() -> ctypes.CDLL:
    return ctypes.CDLL(str(library("libmilligpu-pages.so")))


def read(pages: ctypes.CDLL, page: bytes) -> tuple[int, bytes]:
    copy = ctypes.create_string_buffer(LIMITS_SIZE)
    return pages.mg_limits_read(ctypes.create_string_buffer(page, LIMITS_SIZE), copy), copy.raw


def test_the_golden_limits_page_is_read_and_written() -> None:
    data = (GOLDEN / "limits-v1.bin").read_bytes()
    assert decode_limits(data) == LIMITS
    assert encode_limits(LIMITS) == data


def test_the_golden_limits_page_is_read_in_c(pages: ctypes.CDLL) -> None:
    data = (GOLDEN / "limits-v1.bin").read_bytes()
    assert read(pages, data) == (0, data)


def test_the_golden_usage_page_is_read_and_written() -> None:
    data = bytearray((GOLDEN / "usage-v1.bin").read_bytes())
    assert decode_usage(bytes(data)) == USAGE
    data[UNUSED] = bytes(4)  # 0.1.0 had a number there that nobody read
    assert encode_usage(USAGE) == data


@pytest.mark.parametrize(
    ("offset", "value", "what"),
    [
        (0, 0, "magic"),
        (4, 2, "version"),
        (12, 17, "17 GPUs"),
        (64, 0, "uuid"),
        (64 + 48, 1001, "milli"),
        (64 + 52, 499, "milli"),
        (64 + 52, 0, "milli"),
        (64 + 88, 0, "policy"),
        (64 + 88, 4, "policy"),
        (64 + 84, 100_001, "slot_length_us"),
    ],
)
def test_a_corrupt_limits_page_is_refused_by_python_and_c(
    pages: ctypes.CDLL, offset: int, value: int, what: str
) -> None:
    data = bytearray(encode_limits(LIMITS))
    struct.pack_into("<I", data, offset, value)
    with pytest.raises(BadFormat, match=what):
        decode_limits(bytes(data))
    assert read(pages, bytes(data))[0] == -1


def test_a_page_whose_writer_died_is_refused_in_the_end(pages: ctypes.CDLL) -> None:
    data = bytearray(encode_limits(LIMITS))
    struct.pack_into("<I", data, 8, 1)
    with pytest.raises(BadFormat, match="being written"):
        decode_limits(bytes(data))
    assert read(pages, bytes(data))[0] == -2


def test_a_change_of_the_limits_keeps_lease_and_heartbeat(pages: ctypes.CDLL) -> None:
    page = ctypes.create_string_buffer(encode_limits(LIMITS), LIMITS_SIZE)
    changed = LimitsPage((GpuLimits("GPU-aaaa", Milli(200), Milli(200), 2**30, SharePolicy.FIXED),), generation=3)
    assert pages.mg_limits_write(page, encode_limits(changed)) == 0
    now = decode_limits(page.raw)
    assert (now.generation, now.gpus[0].milli, now.gpus[0].policy) == (3, 200, SharePolicy.FIXED)
    assert (now.heartbeat_ns, now.gpus[0].lease_until_ns) == (LIMITS.heartbeat_ns, LIMITS.gpus[0].lease_until_ns)


def test_an_invalid_change_leaves_the_page_as_it_was(pages: ctypes.CDLL) -> None:
    page = ctypes.create_string_buffer(encode_limits(LIMITS), LIMITS_SIZE)
    assert pages.mg_limits_write(page, bytes(LIMITS_SIZE)) == -1
    assert decode_limits(page.raw) == LIMITS


def test_a_reader_waits_for_a_writer_that_lost_its_processor(pages: ctypes.CDLL) -> None:
    page = ctypes.create_string_buffer(encode_limits(LIMITS), LIMITS_SIZE)
    at_rest = struct.unpack_from("<I", page.raw, 8)[0]
    struct.pack_into("<I", page, 8, at_rest + 1)
    writer = threading.Timer(0.02, lambda: struct.pack_into("<I", page, 8, at_rest + 2))
    writer.start()
    assert pages.mg_limits_read(page, ctypes.create_string_buffer(LIMITS_SIZE)) == 0
    writer.join()


def test_a_reader_never_sees_half_a_change(pages: ctypes.CDLL) -> None:
    """The writer alternates between two pages in which all numbers belong together; ctypes releases the GIL."""
    versions = [
        encode_limits(
            LimitsPage((GpuLimits("GPU-a", Milli(m), Milli(m), m, SharePolicy.FIXED, 0, m),), generation=m)
        )
        for m in (1, 1000)
    ]
    page = ctypes.create_string_buffer(versions[0], LIMITS_SIZE)
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            for version in versions:
                pages.mg_limits_write(page, version)

    writer = threading.Thread(target=write)
    writer.start()
    seen: set[int] = set()
    copy = ctypes.create_string_buffer(LIMITS_SIZE)
    for _ in range(20_000):
        assert pages.mg_limits_read(page, copy) == 0
        generation = struct.unpack_from("<Q", copy.raw, 24)[0]
        milli, limit, cap = struct.unpack_from("<IIQ", copy.raw, 64 + 48)
        assert {milli, limit, cap} == {generation}
        seen.add(generation)
    stop.set()
    writer.join()
    assert seen == {1, 1000}


@pytest.mark.parametrize(
    "page",
    [
        LimitsPage((GpuLimits("x", Milli(1), Milli(1), 1, SharePolicy.FIXED),)),
        LimitsPage((GpuLimits("GPU-a", Milli(2), Milli(1), 1, SharePolicy.FIXED),)),
        LimitsPage((GpuLimits("GPU-a", Milli(1), Milli(1), 0, SharePolicy.FIXED),)),
        LimitsPage((), priority=101),
        LimitsPage(LIMITS.gpus * 9),
    ],
)
def test_a_page_without_meaning_is_not_written(page: LimitsPage) -> None:
    with pytest.raises(BadRequest):
        encode_limits(page)


@given(st.binary(min_size=0, max_size=200))
def test_any_bytes_on_a_usage_page_are_read_without_harm(data: bytes) -> None:
    spoilt = data + encode_usage(USAGE)[len(data) :]
    for page in (data, spoilt):
        try:
            decode_usage(page)
        except BadFormat:
            pass


def test_a_usage_page_has_room_for_512_processes_and_no_more() -> None:
    many = tuple(ProcessSlot(pid, 1, (1,)) for pid in range(1, 513))
    full = UsagePage((MemoryAccount(),), many)
    assert decode_usage(encode_usage(full)) == full
    assert USAGE_SIZE == 19 * 4096
    with pytest.raises(BadRequest, match="at most 512"):
        encode_usage(UsagePage((MemoryAccount(),), many + many[:1]))
