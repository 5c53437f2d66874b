"""The limits library's reader of modules, compiled by itself, and fat binaries to read."""

import ctypes
import importlib
import os
import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ENFORCE = Path(__file__).parents[2] / "native/enforce"
SOURCES = ("image", "ptx", "fatbin", "unpack_lz4", "unpack_zstd")
MAGIC, PTX, CUBIN = 0xBA55ED50, 1, 2
LZ4, ZSTD = 0x2000, 0x8000
WAYS = {
    "zstd": ("-compress-all", "-compress-mode=size"),
    "lz4": ("-compress-all", "-compress-mode=speed"),
    "plain": ("-compress=false",),
    "together": ("-concat", "-compress-all"),
}


class Need(ctypes.Structure):
    """struct image_need."""

    _fields_ = (("bytes", ctypes.c_uint64), ("unread", ctypes.c_bool))


class ImageReader:
    """What a module takes on a GPU, as the limits library reads it."""

    def __init__(self, folder: Path) -> None:
        made = folder / "libimage.so"
        sources = [ENFORCE / f"{name}.c" for name in SOURCES]
        # Under tools/sanitized the runtime of the sanitizers is there already.
        checks = ["-fsanitize=address,undefined", "-fno-sanitize-recover"] if "ASAN_OPTIONS" in os.environ else []
        subprocess.run(["cc", "-O1", "-g", "-fPIC", "-shared", *checks, "-o", made, *sources], check=True)
        self._library = ctypes.CDLL(str(made))
        self._library.image_need.restype = Need

    def need(self, image: bytes, capability: int = 75) -> tuple[int, bool]:
        """The bytes, and whether a part could not be read. The image is in memory of just its size."""
        held = ctypes.create_string_buffer(image, len(image))
        found = self._library.image_need(held, ctypes.c_size_t(len(image)), capability)
        return found.bytes, found.unread

    def text(self, ptx: str) -> int:
        """The bytes of variables in PTX."""
        return self.need(ptx.encode() + b"\0")[0]

    def unpack(self, way: str, packed: bytes, room: int) -> bytes | None:
        """Decompress; None if the content is refused."""
        source = ctypes.create_string_buffer(packed, len(packed))
        out, made = ctypes.create_string_buffer(max(room, 1)), ctypes.c_size_t()
        call: Any = self._library[f"unpack_{way}"]
        call.restype = ctypes.c_bool
        good = call(source, ctypes.c_size_t(len(packed)), out, ctypes.c_size_t(room), ctypes.byref(made))
        return out.raw[: made.value] if good else None


def ptx(architecture: int, size: int) -> bytes:
    """A module with a variable of this size, and text that is worth compressing."""
    return (
        f".version 7.8\n.target sm_{architecture}\n.address_size 64\n.visible .global .align 4 .b8 big[{size}];\n"
        f".visible .entry k() {{\n.reg .b32 %r<2>;\n{'mov.u32 %r0, 0;' * 40}\nret;\n}}\n"
    ).encode() + b"\0"


def nvidia_fatbin(way: str, modules: Sequence[tuple[int, int]], cubins: Sequence[tuple[str, bytes]] = ()) -> bytes:
    """PTX of (architecture, bytes of variables) and cubins, packed by NVIDIA's own tool."""
    nvfatbin: Any = importlib.import_module("cuda.bindings.nvfatbin")  # has no types
    options = WAYS[way]
    handle = nvfatbin.create(list(options), len(options))
    for architecture, size in modules:
        code = ptx(architecture, size)
        name = f"module for sm_{architecture}"[-size % 9 :]
        nvfatbin.add_ptx(handle, code, len(code), str(architecture), name, "-O3")
    for architecture, code in cubins:
        nvfatbin.add_cubin(handle, code, len(code), architecture, f"cubin{architecture}")
    image = bytearray(nvfatbin.size(handle))
    nvfatbin.get(handle, image)
    nvfatbin.destroy(handle)
    return bytes(image)


def cubin(source: str, architecture: int) -> bytes:
    """Machine code that NVIDIA's compiler makes of CUDA C."""
    nvrtc: Any = importlib.import_module("cuda.bindings.nvrtc")
    # Under the sanitizers the compiler does not find this library by itself.
    for folder in importlib.import_module("nvidia").__path__:
        for builtins in Path(folder).glob("*/lib/libnvrtc-builtins.so.*"):
            ctypes.CDLL(str(builtins), ctypes.RTLD_GLOBAL)
    (_, program) = nvrtc.nvrtcCreateProgram(source.encode(), b"k.cu", 0, [], [])
    options = [f"--gpu-architecture=sm_{architecture}".encode()]
    (failed,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
    assert not failed, failed
    (_, size) = nvrtc.nvrtcGetCUBINSize(program)
    code = bytes(size)
    nvrtc.nvrtcGetCUBIN(program, code)
    return code


def entry(content: bytes, *, kind: int = PTX, architecture: int = 75, flags: int = 0, size: int = 0) -> bytes:
    """One module of a fat binary, written here."""
    padded = content + bytes(-len(content) % 8)
    packed = len(content) if flags else 0
    return (
        struct.pack(
            "<HHIQIIHHIIIQQQ", kind, 0x101, 64, len(padded), packed, 0, 0, 8, architecture, 0, 0, flags, 0, size
        )
        + padded
    )


def container(*entries: bytes) -> bytes:
    """A fat binary, written here."""
    return struct.pack("<IHHQ", MAGIC, 1, 16, sum(map(len, entries))) + b"".join(entries)
