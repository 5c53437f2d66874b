"""PTX in fat binaries, packed by NVIDIA's own tool in each way; prints {case: architecture or error}."""

import ctypes
import json
import tempfile
from pathlib import Path

import numpy as np
from cuda.bindings import nvfatbin
from driver import Failed, check, download, driver, function, launch, start, upload

WAYS = {
    "zstd": ("-compress-all", "-compress-mode=size"),
    "lz4": ("-compress-all", "-compress-mode=speed"),
    "plain": ("-compress=false",),
    "together": ("-concat", "-compress-all"),
}


def text(architecture: int) -> bytes:
    """A kernel that writes the architecture it was compiled for; long enough to be worth compressing."""
    return (
        f""".version 7.8
.target sm_{architecture}
.address_size 64
.visible .entry k(.param .u64 o) {{
.reg .b64 %p<2>; .reg .b32 %r<2>;
ld.param.u64 %p0, [o]; mov.u32 %r0, 0;
{"add.u32 %r0, %r0, 1;" * architecture}
st.global.u32 [%p0], %r0; ret;
}}
""".encode()
        + b"\0"
    )


def packed(options: tuple[str, ...], *architectures: int, cubin: bool = False) -> bytes:
    handle = nvfatbin.create(list(options), len(options))
    for architecture in architectures:
        code = text(architecture)
        nvfatbin.add_ptx(handle, code, len(code), str(architecture), f"sm_{architecture}", "")
    if cubin:
        code = elf()
        nvfatbin.add_cubin(handle, code, len(code), "86", "cubin")
    image = bytearray(nvfatbin.size(handle))
    nvfatbin.get(handle, image)
    nvfatbin.destroy(handle)
    return bytes(image)


def elf() -> bytes:
    """The header of machine code for sm_86, which is all that the packer reads."""
    head = bytearray(64)
    head[:8] = b"\x7fELF\x02\x01\x01\x33"
    head[16:24] = b"\x02\x00\xbe\x00\x01\x00\x00\x00"
    head[48:52] = (0x560556).to_bytes(4, "little")
    head[52:54] = (64).to_bytes(2, "little")
    return bytes(head)


def loaded(image: bytes) -> str:
    """The architecture that the kernel writes, or the driver's error."""
    buffer = ctypes.create_string_buffer(image)
    try:
        return ran(check(driver.cuModuleLoadFatBinary(ctypes.addressof(buffer))))
    except Failed as failed:
        return str(failed)


def ran(module: object) -> str:
    output = upload(np.zeros(1, np.uint32))
    launch(function(module, "k"), 1, 1, output)
    check(driver.cuCtxSynchronize())
    return str(download(output, np.zeros(1, np.uint32))[0])


class Wrapper(ctypes.Structure):
    _fields_ = (("magic", ctypes.c_uint32), ("version", ctypes.c_uint32), ("data", ctypes.c_void_p),
                ("more", ctypes.c_void_p))  # fmt: skip


def from_a_program(image: bytes) -> str:
    """The form in which compilers link it in: behind a pointer."""
    buffer = ctypes.create_string_buffer(image)
    wrapper = Wrapper(0x466243B1, 1, ctypes.addressof(buffer), None)
    return ran(check(driver.cuModuleLoadData(ctypes.addressof(wrapper))))


def from_a_file(image: bytes) -> str:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "k.fatbin")
        path.write_bytes(image)
        try:
            return ran(check(driver.cuModuleLoad(str(path).encode())))
        except Failed as failed:
            return str(failed)


def main() -> None:
    start()  # an A10: compute capability 8.6
    found = {way: loaded(packed(options, 70, 80, 90)) for way, options in WAYS.items()}
    image = packed(WAYS["zstd"], 70, 80, 90)
    found["wrapped"] = from_a_program(image)
    found["file"] = from_a_file(image)
    found["half a file"] = from_a_file(image[: len(image) // 2])
    found["next to machine code"] = loaded(packed(WAYS["zstd"], 75, cubin=True))
    found["only for newer GPUs"] = loaded(packed(WAYS["zstd"], 90, 100))
    found["only machine code"] = loaded(packed(WAYS["plain"], cubin=True))
    for way in ("zstd", "lz4"):
        broken = bytearray(packed(WAYS[way], 80))
        broken[-40:] = bytes(40)
        found[f"broken {way}"] = loaded(bytes(broken))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
