"""Fat binaries: containers of one program for several cards, from which the PTX that suits a card is taken.

The layout is not documented; what is written here was found by looking at what the vendor's packer makes. Machine
code in such a container is for real cards only.
"""

import struct
from collections.abc import Iterator
from typing import NamedTuple

import zstandard

from milligpu.softgpu.ptx.errors import BadImage, NoPtx

MAGIC = 0xBA55ED50
_HEAD = struct.Struct("<IHHQ")  # magic, version, size of this, size of what follows
# Kind, version, size of this (in a group: where it begins), size of the content, compressed size, options' offset,
# PTX version, architecture, name's offset and length, flags, nothing, size when it is not compressed.
_ENTRY = struct.Struct("<HHIQIIHHIIIQQQ")
_GROUP = struct.Struct("<II")  # how many entries are compressed together, size of this and of their heads
_GROUPED_HEAD = 88
_PTX, _TOGETHER = 1, 256
_LZ4, _ZSTD = 0x2000, 0x8000
# As much as a text of that size may be by itself: see `wire.LARGEST_BODY`.
_LARGEST = 256 << 20


class _Entry(NamedTuple):
    architecture: int
    content: memoryview
    flags: int
    full_size: int

    def text(self) -> bytes:
        return _unpacked(self.content, self.flags, self.full_size).rstrip(b"\0")


def is_fatbin(image: bytes) -> bool:
    """Whether this is such a container, and not text."""
    return image[:4] == MAGIC.to_bytes(4, "little")


def ptx_for(image: bytes, capability: tuple[int, int]) -> bytes:
    """The newest PTX for at most this compute capability."""
    limit = 10 * capability[0] + capability[1]
    try:
        fitting = [entry for entry in _entries(memoryview(image)) if entry.architecture <= limit]
        if not fitting:
            raise NoPtx(limit)
        return max(fitting, key=lambda entry: entry.architecture).text()
    except (struct.error, IndexError, zstandard.ZstdError) as error:
        raise BadImage(f"fat binary: {error}") from None


def _entries(image: memoryview) -> Iterator[_Entry]:
    _, _, start, size = _HEAD.unpack_from(image)
    end = start + size
    if end > len(image):
        raise BadImage(f"fat binary: {end} bytes announced, {len(image)} there")
    while start < end:
        kind, _, head, length, packed, _, _, _, architecture, _, _, flags, _, full = _ENTRY.unpack_from(
            image, start
        )
        if head < _ENTRY.size or start + head + length > end:
            raise BadImage(f"fat binary: an entry of {head + length} bytes does not fit")
        content = image[start + head : start + head + (packed or length)]
        if kind == _PTX:
            yield _Entry(architecture, content, flags, full)
        elif kind == _TOGETHER:
            yield from _grouped(image, start, memoryview(_unpacked(content, flags, full)))
        start += head + length


def _grouped(image: memoryview, start: int, content: memoryview) -> Iterator[_Entry]:
    """Entries that were compressed as one; each says where in that it begins."""
    count, _ = _GROUP.unpack_from(image, start + _ENTRY.size)
    heads = start + _ENTRY.size + _GROUP.size
    for at in range(heads, heads + count * _GROUPED_HEAD, _GROUPED_HEAD):
        kind, _, offset, length, _, _, _, _, architecture, *_ = _ENTRY.unpack_from(image, at)
        if kind == _PTX:
            yield _Entry(architecture, content[offset : offset + length], 0, length)


def _unpacked(content: memoryview, flags: int, size: int) -> bytes:
    if size > _LARGEST:
        raise BadImage(f"fat binary: {size} bytes, want at most {_LARGEST}")
    if flags & _ZSTD:
        # What the frame itself announces is believed over our limit.
        if zstandard.frame_content_size(content) > size:
            raise BadImage("fat binary: more content than announced")
        return zstandard.ZstdDecompressor().decompress(content, max_output_size=size)
    return _unpacked_lz4(content, size) if flags & _LZ4 else bytes(content)


def _unpacked_lz4(content: memoryview, size: int) -> bytes:
    """A block of LZ4: literals, then a stretch of what was there before, again and again."""
    result = bytearray()
    at = 0
    while at < len(content):
        token = content[at]
        length, at = _length(content, at + 1, token >> 4)
        result += content[at : at + length]
        at += length
        if at >= len(content):
            break
        distance = content[at] | content[at + 1] << 8
        length, at = _length(content, at + 2, token & 15)
        length += 4
        if not 0 < distance <= len(result) or len(result) + length > size:
            raise BadImage("fat binary: broken LZ4")
        stretch = result[-distance:]
        result += (stretch * (length // distance + 1))[:length]
    return bytes(result)


def _length(content: memoryview, at: int, length: int) -> tuple[int, int]:
    """A length that goes on in the next bytes while they are full, and where the rest begins."""
    if length == 15:
        while True:
            more = content[at]
            at += 1
            length += more
            if more != 255:
                break
    return length, at
