"""A driver that only records how it was called, with every symbol of the API.

The software GPU has no mipmapped arrays and no legacy inter-process handles. These tests show that such calls reach
a driver unchanged and what is charged for them, but not what a real GPU would do with them.
"""

import subprocess
from dataclasses import dataclass
from pathlib import Path

from cudaapi import header
from vendorapi.header import Function

_BY_VALUE = ("CUipcMemHandle", "CUipcEventHandle", "CUmemLocation", "CUuuid", "CUeglFrame")
_MOST_ARGUMENTS = 16

# What the limits library needs as an answer to continue.
_ANSWERS = {
    "cuDriverGetVersion": "*driverVersion = CUDA_VERSION;",
    "cuDeviceGetCount": "*count = 1;",
    "cuDeviceGet": "*device = 0;",
    "cuDeviceGetUuid_v2": "memcpy(uuid, UUID, 16);",
    "cuCtxGetCurrent": "*pctx = (CUcontext)(uintptr_t)77;",
    "cuCtxGetDevice": "*device = 0;",
    "cuDevicePrimaryCtxGetState": "*active = 1;",
    "cuMemGetInfo_v2": "*free = *total = 1ull << 40;",
    "cuDeviceTotalMem_v2": "*bytes = 1ull << 40;",
    "cuMemGetAddressRange_v2": "if (psize) *psize = 8 << 20;",
    "cuMemGetAllocationPropertiesFromHandle": "prop->location.type = CU_MEM_LOCATION_TYPE_DEVICE;",
    "cuMemRetainAllocationHandle": "*handle = last;",
    "cuMemAllocPitch_v2": "*dptr = ++last << 20; *pPitch = (WidthInBytes + 511) / 512 * 512;",
}
# Functions that return what they created in their first parameter.
_MAKERS = ("Create", "Alloc", "Import", "Open", "Load", "PrimaryCtxRetain")

_HEAD = """
#define __CUDA_API_VERSION_INTERNAL 1
#include "all.h"
#include <stdint.h>
#include <string.h>
#define API __attribute__((visibility("default")))
struct seen {{ uint64_t calls, arguments[{most}]; }};
API struct seen standin_seen[{count}];
static uint64_t last;
static const unsigned char UUID[16] = {{{uuid}}};
"""


@dataclass(frozen=True, slots=True)
class Symbol:
    """One function and the kind of each of its parameters."""

    name: str
    kinds: list[str]


def _kind(declaration: str) -> str:
    if "*" in declaration or "[" in declaration:
        return "pointer"
    if declaration.startswith(_BY_VALUE):
        return "struct"
    return "float" if declaration.startswith("float") else "number"


def _function(place: int, function: Function) -> str:
    kinds = [_kind(parameter.declaration) for parameter in function.parameters]
    seen = [
        "0" if kind == "struct" else f"(uint64_t){parameter.name}"
        for kind, parameter in zip(kinds, function.parameters, strict=True)
    ]
    makes = any(word in function.symbol for word in _MAKERS) and kinds[:1] == ["pointer"]
    made = f"*(uint64_t *){function.parameters[0].name} = ++last;" if makes else ""
    body = _ANSWERS.get(function.symbol, made)
    stores = " ".join(f"standin_seen[{place}].arguments[{at}] = {value};" for at, value in enumerate(seen))
    head = f"API CUresult {function.symbol}({function.declarations})"
    return f"{head} {{ standin_seen[{place}].calls++; {stores} {body} return 0; }}"


def build(library: Path, uuid: bytes) -> list[Symbol]:
    """Compile the stand-in; returns the symbols in the order of `standin_seen`."""
    include = header.include_folder()
    functions = [function for _, function in sorted(header.read("cc", include).functions.items())]
    text = _HEAD.format(most=_MOST_ARGUMENTS, count=len(functions), uuid=", ".join(map(str, uuid)))
    text += "\n".join(_function(place, function) for place, function in enumerate(functions))
    source = library.with_suffix(".c")
    source.write_text(text)
    options = [
        "-shared",
        "-fPIC",
        "-O1",
        "-w",
        "-Wl,-Bsymbolic",
        "-Wl,-soname,libcuda.so.1",
        f"-I{include}",
        f"-I{Path(header.__file__).parent}",
    ]
    subprocess.run(["cc", *options, "-o", library, source], check=True)
    return [Symbol(each.symbol, [_kind(p.declaration) for p in each.parameters]) for each in functions]
