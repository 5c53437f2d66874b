"""Which file the loader of another root directory finds under a library's name: reads its /etc/ld.so.cache. Pure.

`ldconfig -p` prints the cache of the machine that it runs on, and a container image without it has no such program.
"""

import platform
import struct
from collections.abc import Mapping

_MAGIC = b"glibc-ld.so.cache1.1"
_OLD_MAGIC = b"ld.so-1.7.0\0"
_OLD_HEADER = struct.Struct("12sI")
_OLD_ENTRY_SIZE = 12
_HEADER = struct.Struct("=20sII20x")
_ENTRY = struct.Struct("=iIIIQ")
# glibc's flags: a library of the C library's kind (3 is "ELF, libc6"), and the architecture in the second byte.
_KIND_MASK, _ELF_LIBC6, _ARCHITECTURE_MASK = 0xFF, 3, 0xFF00
_ARCHITECTURES = {"x86_64": 0x0300, "aarch64": 0x0A00, "ppc64le": 0x0500}


def read_loader_cache(data: bytes, machine: str | None = None) -> dict[str, str]:
    """Return the path of each library of this architecture by name. Of several, the loader takes the first.

    A cache that cannot be read counts as empty, as for the loader.
    """
    wanted = _ARCHITECTURES.get(machine or platform.machine())
    start = _start(data)
    if wanted is None or start is None or len(data) < start + _HEADER.size:
        return {}
    _, count, _ = _HEADER.unpack_from(data, start)
    found: dict[str, str] = {}
    for at in range(count):
        offset = start + _HEADER.size + at * _ENTRY.size
        if offset + _ENTRY.size > len(data):
            break
        flags, name, path, _, capabilities = _ENTRY.unpack_from(data, offset)
        # Entries for certain processors only come with another copy for all.
        if flags & _ARCHITECTURE_MASK == wanted and flags & _KIND_MASK == _ELF_LIBC6 and not capabilities:
            found.setdefault(_text(data, start + name), _text(data, start + path))
    return found


def library_folders(machine: str | None = None) -> tuple[str, ...]:
    """Return where loaders look by default: Debian's, then Red Hat's directory, then the plain one."""
    name = machine or platform.machine()
    triplet = {"ppc64le": "powerpc64le"}.get(name, name) + "-linux-gnu"
    return (f"/usr/lib/{triplet}", "/usr/lib64", "/usr/lib")


def pick(found: Mapping[str, str], stem: str) -> dict[str, str]:
    """Return the libraries whose names begin so."""
    return {name: path for name, path in found.items() if name.startswith(stem)}


def _start(data: bytes) -> int | None:
    """Return where the present format begins: older systems have another one in front."""
    if data.startswith(_OLD_MAGIC):
        _, count = _OLD_HEADER.unpack_from(data)
        end = _OLD_HEADER.size + count * _OLD_ENTRY_SIZE
        start = -(-end // 8) * 8
        return start if data.startswith(_MAGIC, start) else None
    return 0 if data.startswith(_MAGIC) else None


def _text(data: bytes, at: int) -> str:
    end = data.find(b"\0", at)
    return data[at : end if end >= 0 else len(data)].decode(errors="replace")
