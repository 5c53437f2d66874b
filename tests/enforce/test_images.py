"""What a module takes on the GPU is read from the module, however it is packed and written."""

import json
import random
import sys
from pathlib import Path

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.enforce.conftest import Tenants
from tests.enforce.images import (
    CUBIN,
    LZ4,
    WAYS,
    ZSTD,
    ImageReader,
    container,
    cubin,
    entry,
    nvidia_fatbin,
    ptx,
)
from tests.enforce.rig import MIB

CLIENTS = Path(__file__).parent / "clients"
MORE_THAN_ANY_GPU = 2**64 - 1
SOURCE = """
__device__ char big[3 << 20];
__device__ int set[1 << 18] = {1};
extern "C" __global__ void k(int *out) {
    __shared__ int local[8192];
    local[threadIdx.x] = set[threadIdx.x];
    __syncthreads();
    out[threadIdx.x] = local[threadIdx.x ^ 1] + big[threadIdx.x];
}
"""


@pytest.fixture(scope="session")
def reader(tmp_path_factory: pytest.TempPathFactory) -> ImageReader:
    """The compiled reader."""
    return ImageReader(tmp_path_factory.mktemp("images"))


def test_a_fat_binary_is_charged_on_the_gpu_for_the_variables_that_its_ptx_declares(
    tenant: Tenants, tmp_path: Path
) -> None:
    files: list[Path] = []
    for way in WAYS:
        files.append(tmp_path / f"{way}.fatbin")
        files[-1].write_bytes(nvidia_fatbin(way, [(70, 16 * MIB), (90, 128 * MIB)]))
    made = tenant()
    done = made.run(sys.executable, CLIENTS / "fatbins.py", *map(str, files))
    assert done.returncode == 0, done.stderr
    # From memory, behind a wrapper, from a file, as a library, from a file as a library; and after unloading.
    assert json.loads(done.stdout) == {str(file): [16 * MIB] * 5 + [0] for file in files}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("capability", "mib"), [(75, 7), (86, 8), (120, 9), (50, 0)])
def test_only_what_this_gpu_can_load_counts(reader: ImageReader, way: str, capability: int, mib: int) -> None:
    image = nvidia_fatbin(way, [(70, 7 * MIB), (80, 8 * MIB), (90, 9 * MIB)])
    assert reader.need(image, capability) == (mib * MIB, False)


@pytest.mark.parametrize("way", WAYS)
def test_machine_code_of_nvidias_compiler_is_charged_for_variables_and_code_but_not_for_shared_memory(
    reader: ImageReader, way: str
) -> None:
    codes = {architecture: cubin(SOURCE, architecture) for architecture in (80, 86)}
    variables = 4 * MIB
    for code in codes.values():
        need, unread = reader.need(code)
        assert not unread
        assert variables < need < variables + 16384, "8192 integers of shared memory would be 32768 bytes"
    image = nvidia_fatbin(way, [], [(str(each), code) for each, code in codes.items()])
    assert reader.need(image, 80) == reader.need(codes[80])
    assert reader.need(image, 86)[0] == max(reader.need(code)[0] for code in codes.values())
    assert reader.need(image, 90) == (0, False), "machine code of another generation is not loaded"
    assert reader.need(image, 75) == (0, False)


@pytest.mark.parametrize(
    ("declaration", "size"),
    [
        (".global .b8 x[16777216];", 16 * MIB),
        (".visible .global .align 4 .u32 x[0x400000];", 16 * MIB),
        (".global .b8 x[0100];", 64),
        (".global .b8 x[0b1000];", 8),
        (".global .u8 x[1024U];", 1024),
        (".global .b8 x[4096*4096];", 16 * MIB),
        (".global/**/.b8 x[16777216];", 16 * MIB),
        (".global .b8 x/* ; */[16777216];", 16 * MIB),
        (".global // [1];\n .b8 x[ /* 1 */ 16777216 ];", 16 * MIB),
        (".global.b8 x[5];", 0),  # no declaration: a word such as in st.global.b8
        (".global .v4 .f32 x[1024][4];", 65536),
        (".global .b64 x, y[1023];", 8192),
        (".global .b8 x<1000>[1000];", 1000000),
        (".global .b32 x[3] = {1, 2, 3}, y[5];", 32),
        (".global .b32 x[][2] = {{1, 2}, {3, 4}, {5, 6}};", 24),
        (".global .attribute(.managed) .align 8 .f64 x[4];", 32),
        (".common .global .bf16x2 x[4];", 16),
        (".extern .global .b8 x[16777216];", 0),
        ("// .global .b8 x[16777216];\n", 0),
        ('.file 1 ".global .b8 x[16777216];"\n', 0),
        (".entry k(.param .u64 .ptr .global .align 8 p, .param .u32 n) { ld.global.f32 %f0, [%p0]; }", 0),
        (".entry k() {.global .b8 x[64];}", 64),
        (".global .b8 x[1 + 1];", MORE_THAN_ANY_GPU),
        (".global .b8 x[size];", MORE_THAN_ANY_GPU),
        (".global .unheard x[1];", MORE_THAN_ANY_GPU),
        (".global .b8 x[18446744073709551615][16];", MORE_THAN_ANY_GPU),
    ],
)
def test_variables_are_counted_however_ptx_writes_them(reader: ImageReader, declaration: str, size: int) -> None:
    head = ".version 8.0\n.target sm_75\n.address_size 64\n"
    assert reader.text(head + declaration) == size


def test_a_module_that_cannot_be_read_is_charged_its_announced_size_and_reported(reader: ImageReader) -> None:
    broken = entry(b"not zstd at all!", flags=ZSTD, size=3 * MIB)
    assert reader.need(container(entry(ptx(75, MIB)), broken)) == (3 * MIB, True)
    # One that this GPU never loads is not looked at.
    assert reader.need(container(entry(ptx(75, MIB)), entry(b"?", architecture=90, flags=LZ4, size=3 * MIB))) == (
        MIB,
        False,
    )


@settings(max_examples=150, deadline=None)
@given(
    pieces=st.lists(
        st.tuples(st.binary(max_size=40), st.integers(0, 2000), st.integers(0, 6)), min_size=1, max_size=30
    ),
    level=st.integers(1, 19),
    checksum=st.booleans(),
    repeats=st.integers(1, 40),
)
def test_zstandard_is_decompressed_as_by_its_own_library(
    reader: ImageReader, pieces: list[tuple[bytes, int, int]], level: int, checksum: bool, repeats: int
) -> None:
    dice = random.Random(len(pieces) * level)
    text = b"".join(
        piece * (1 + times) + bytes(dice.choices(range(4 << bits), k=20)) for piece, times, bits in pieces
    )
    text = (text * repeats)[: 3 * MIB]
    packed = zstandard.ZstdCompressor(level=level, write_checksum=checksum).compress(text)
    assert reader.unpack("zstd", packed, len(text)) == text
    if text:
        assert reader.unpack("zstd", packed, len(text) - 1) is None
    assert reader.unpack("zstd", packed[:-1], len(text)) is None


def test_real_code_is_decompressed(reader: ImageReader) -> None:
    code = (
        cubin(SOURCE, 80)
        + b"".join(ptx(each, each) for each in range(50, 120))
        + Path(sys.executable).read_bytes()[:MIB]
    )
    for level in (1, 3, 9, 19, 22):
        assert reader.unpack("zstd", zstandard.ZstdCompressor(level=level).compress(code), len(code)) == code
    # A frame that may be skipped, and two frames after one another.
    packed = zstandard.ZstdCompressor().compress(code)
    skipped = b"\x50\x2a\x4d\x18\x04\x00\x00\x00skip"
    assert reader.unpack("zstd", skipped + packed + packed, 2 * len(code)) == code * 2


def test_a_mutated_image_is_read_or_reported_and_never_read_beyond_its_end(reader: ImageReader) -> None:
    dice = random.Random(5)
    code = ptx(75, MIB)
    sound = [
        nvidia_fatbin(way, [(70, MIB), (75, MIB)], [("75", cubin(SOURCE, 75))] if way != "plain" else [])[:60000]
        for way in WAYS
    ]
    sound.append(container(entry(zstandard.ZstdCompressor().compress(code), flags=ZSTD, size=len(code))))
    sound.append(container(entry(cubin(SOURCE, 75), kind=CUBIN)))
    unread = 0
    for turn in range(1200):
        image = bytearray(sound[turn % len(sound)])
        if dice.random() < 0.3:
            del image[dice.randrange(17, len(image)) :]
        for _ in range(dice.choice((1, 2, 5))):
            image[dice.randrange(16, min(len(image), dice.choice((200, 5000))))] = dice.randrange(256)
        unread += reader.need(bytes(image))[1]
    assert unread > 100
