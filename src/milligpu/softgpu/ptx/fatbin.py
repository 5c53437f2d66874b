"""Fat binaries: containers of one program for several GPU architectures, from which we take the PTX.

The layout is not documented; this was found by examining what NVIDIA's `fatbinary` tool writes. Machine code in
such a container is for real GPUs only.
"""

import struct
from collections.abc import Iterator
from typing import NamedTuple

import zstandard

from milligpu.softgpu.ptx.errors import BadImage, NoPtx

MAGIC = 0xBA55ED50
_HEAD = struct.Struct("<IHHQ")  # magic, version, header size, content size
# Kind, version, header size (in a group: content offset), content size, compressed size, options offset, PTX
# version, architecture, name offset and length, flags, unused, uncompressed size.
_ENTRY = struct.Struct("<HHIQIIHHIIIQQQ")
_GROUP = struct.Struct("<II")  # number of entries compressed together, size of this and of their headers
_TEXT = struct.Struct("<II")  # offset and length; a zero byte and padding to 8 bytes follow
_PTX, _TOGETHER = 1, 256
_LZ4, _ZSTD = 0x2000, 0x8000
# The same limit as for a module as text: see `driver_wire.LARGEST_BODY`.
_LARGEST = 256 << 20


class _Entry(NamedTuple):
    architecture: int
    content: memoryview
    flags: int
    full_size: int

    def text(self) -> bytes:
        return _unpacked(self.content, self.flags, self.full_size).rstrip(b"\0")


def is_fatbin(image: bytes) -> bool:
    """Whether this is a fat binary and not text."""
    return image[:4] == MAGIC.to_bytes(4, "little")


def ptx_for(image: bytes, capability: tuple[int, int]) -> bytes:
    """Return the newest PTX for at most this compute capability."""
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
        raise BadImage(f"fat binary: {end} bytes announced, {len(image)} present")
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
    """Entries that were compressed as one; each gives its offset in the uncompressed content."""
    count, _ = _GROUP.unpack_from(image, start + _ENTRY.size)
    at = start + _ENTRY.size + _GROUP.size
    for _ in range(count):
        kind, _, offset, length, _, options, _, _, architecture, name, name_length, *_ = _ENTRY.unpack_from(
            image, at
        )
        if kind == _PTX:
            yield _Entry(architecture, content[offset : offset + length], 0, length)
        texts = [(name, name_length)] if name else []
        if options:
            texts.append(_TEXT.unpack_from(image, at + options))
        at += max((offset + (length + 8) // 8 * 8 for offset, length in texts), default=_ENTRY.size)


def _unpacked(content: memoryview, flags: int, size: int) -> bytes:
    if size > _LARGEST:
        raise BadImage(f"fat binary: {size} bytes, must be at most {_LARGEST}")
    if flags & _ZSTD:
        # The decompressor trusts the size in the frame more than our limit.
        if zstandard.frame_content_size(content) > size:
            raise BadImage("fat binary: more content than announced")
        return zstandard.ZstdDecompressor().decompress(content, max_output_size=size)
    return _unpacked_lz4(content, size) if flags & _LZ4 else bytes(content)


def _unpacked_lz4(content: memoryview, size: int) -> bytes:
    """Decompress an LZ4 block: literals, then a copy of earlier output, repeatedly."""
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
            raise BadImage("fat binary: corrupt LZ4")
        stretch = result[-distance:]
        result += (stretch * (length // distance + 1))[:length]
    return bytes(result)


def _length(content: memoryview, at: int, length: int) -> tuple[int, int]:
    """Read a length, which continues while bytes are 255, and return it with the next position."""
    if length == 15:
        while True:
            more = content[at]
            at += 1
            length += more
            if more != 255:
                break
    return length, at
