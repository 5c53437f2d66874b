"""Fat binaries from outside are read or refused, whatever they contain."""

import random
import struct

import pytest
import zstandard

from milligpu.softgpu.ptx.errors import BadImage, NoPtx
from milligpu.softgpu.ptx.fatbin import MAGIC, is_fatbin, ptx_for

TEXT = b".version 8.0\n.target sm_80\n" + b"// the same again\n" * 9
ZSTD, LZ4 = 0x8000, 0x2000


def entry(content: bytes, *, kind: int = 1, architecture: int = 80, flags: int = 0, size: int = 0) -> bytes:
    padded = content + bytes(-len(content) % 8)
    packed = len(content) if flags else 0
    head = struct.pack(
        "<HHIQIIHHIIIQQQ", kind, 0x101, 64, len(padded), packed, 0, 0, 8, architecture, 0, 0, flags, 0, size
    )
    return head + padded


def container(*entries: bytes) -> bytes:
    return struct.pack("<IHHQ", MAGIC, 1, 16, sum(map(len, entries))) + b"".join(entries)


def compressed() -> bytes:
    return entry(zstandard.ZstdCompressor().compress(TEXT), flags=ZSTD, size=len(TEXT))


# Literals, then 60 bytes copied from 4 bytes back.
LZ4_BLOCK = b"\x4f.abc\x04\x00" + bytes([60 - 4 - 15]) + b"\x10\n"


def test_ptx_text_is_not_a_fat_binary() -> None:
    assert not is_fatbin(TEXT)
    assert is_fatbin(container())


@pytest.mark.parametrize(("capability", "taken"), [((7, 5), b"70"), ((8, 6), b"86"), ((9, 0), b"86")])
def test_the_newest_ptx_up_to_the_capability_is_chosen(capability: tuple[int, int], taken: bytes) -> None:
    image = container(*(entry(str(each).encode(), architecture=each) for each in (86, 70, 100)))
    assert ptx_for(image, capability) == taken


def test_compressed_ptx_is_decompressed() -> None:
    assert ptx_for(container(compressed()), (8, 0)) == TEXT
    packed = entry(LZ4_BLOCK, flags=LZ4, size=65)
    assert ptx_for(container(packed), (8, 0)) == b".abc" * 16 + b"\n"


def test_a_fat_binary_with_only_machine_code_is_refused() -> None:
    with pytest.raises(NoPtx, match=r"8\.0 or less"):
        ptx_for(container(entry(b"code", kind=2)), (8, 0))


def test_a_small_fat_binary_cannot_decompress_to_a_huge_text() -> None:
    bomb = zstandard.ZstdCompressor().compress(bytes(1 << 20))
    with pytest.raises(BadImage, match="more content"):
        ptx_for(container(entry(bomb, flags=ZSTD, size=100)), (8, 0))
    with pytest.raises(BadImage, match="at most"):
        ptx_for(container(entry(bomb, flags=ZSTD, size=1 << 40)), (8, 0))


def test_a_mutated_fat_binary_is_read_or_refused() -> None:
    dice = random.Random(3)
    sound = container(compressed(), entry(LZ4_BLOCK, flags=LZ4, size=65, architecture=75), entry(TEXT))
    refused = 0
    for _ in range(3000):
        image = bytearray(sound[: dice.choice((len(sound), dice.randrange(17, len(sound))))])
        for _ in range(dice.choice((1, 2, 5))):
            image[dice.randrange(16, len(image))] = dice.randrange(256)
        try:
            ptx_for(bytes(image), (8, dice.choice((0, 6))))
        except (BadImage, NoPtx):
            refused += 1
    assert refused > 100
