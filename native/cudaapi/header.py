"""The CUDA driver API: every symbol with its signature, read from the vendor's header.

With `__CUDA_API_VERSION_INTERNAL` the header declares every version of every function under its exported name;
`cudaTypedefs.h` names the CUDA release that introduced each.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from vendorapi.header import Function, Parameter, find_include, preprocess, read_functions, read_parameters

HEADER = "cuda.h"
GRAPHICS = ("cudaGL.h", "cudaEGL.h", "cudaVDPAU.h")
"""Headers of what compute shares with graphics; the types of OpenGL, EGL and VDPAU are in this directory."""
PREAMBLE = """#define __CUDA_API_VERSION_INTERNAL 1
#include "all.h"
#include <cudaTypedefs.h>
#include <cudaGLTypedefs.h>
#include <cudaEGLTypedefs.h>
#include <cudaVDPAUTypedefs.h>
"""

# Exported by the driver, but declared in a header that the wheel leaves out.
_PROFILER = {
    "cuProfilerInitialize": "const char *configFile, const char *outputFile, CUoutput_mode outputMode",
    "cuProfilerStart": "",
    "cuProfilerStop": "",
}
_PROFILER_SINCE = 4000

_TYPEDEF = re.compile(r"typedef\s+CUresult\s*\(\s*\*PFN_(cu[A-Z]\w*?)_v(\d+)(_ptsz|_ptds)?\)")
_RENAME = re.compile(r"#\s*define\s+(cu[A-Z]\w*)\s+(?:__CUDA_API_PT[DS][SZ]\()?(cu[A-Z]\w*)")
_ERROR = re.compile(r"\b(CUDA_SUCCESS|CUDA_ERROR_\w+)\s*=\s*(\d+)")


@dataclass(frozen=True, slots=True)
class Version:
    """`cuGetProcAddress(name, release)` returns `symbol` from this release on."""

    name: str
    release: int
    per_thread: bool
    symbol: str
    typedef: str
    """The function pointer type of `cudaTypedefs.h`, against which the compiler checks the symbol."""


@dataclass(frozen=True, slots=True)
class Api:
    """The whole API of one release."""

    release: int
    functions: dict[str, Function]
    versions: tuple[Version, ...]
    errors: dict[str, int]


def include_folder() -> Path:
    """Return the directory of the header."""
    return find_include(HEADER, "nvidia-cuda-runtime")


def is_stream(parameter: Parameter) -> bool:
    """Whether this is the stream that work goes to, where 0 means a default stream."""
    return re.fullmatch(r"CUstream\s+\w+", parameter.declaration) is not None


def base_of(symbol: str) -> str | None:
    """Return the symbol whose per-thread-default-stream variant this one is."""
    base = re.sub(r"_pt[ds][sz]$", "", symbol)
    return base if base != symbol else None


def read(compiler: str, include: Path) -> Api:
    """Read the API from the headers in `include`."""
    text = preprocess(compiler, (Path(__file__).parent, include), PREAMBLE)
    functions = read_functions(text, "CUresult", "cu")
    functions |= {name: Function("CUresult", name, read_parameters(body)) for name, body in _PROFILER.items()}
    header = (include / HEADER).read_text()
    renames = dict(_RENAME.findall("".join((include / name).read_text() for name in (HEADER, *GRAPHICS))))
    release = re.search(r"#define CUDA_VERSION (\d+)", header)
    if release is None or not functions:
        raise SystemExit(f"{include}/{HEADER} does not read as the CUDA driver API")
    versions = _versions(_TYPEDEF.findall(text), functions, renames)
    versions += [Version(name, _PROFILER_SINCE, False, name, "") for name in _PROFILER]
    errors = {name: int(value) for name, value in _ERROR.findall(text)}
    return Api(int(release[1]), functions, tuple(sorted(versions, key=lambda v: (v.name, v.release))), errors)


def _versions(
    typedefs: list[tuple[str, str, str]], functions: dict[str, Function], renames: dict[str, str]
) -> list[Version]:
    """Return the symbol of each release's variant of a name.

    Variants are exported as NAME, NAME_v2, NAME_v3 in the order of their releases; if the oldest is gone from
    the header, or none has such a name, the symbol is what the header renames NAME to. The compiler checks this
    rule: the generated code compares every row's types.
    """
    releases: dict[str, set[int]] = {}
    for name, release, suffix in typedefs:
        if not suffix:
            releases.setdefault(name, set()).add(int(release))
    versions: list[Version] = []
    for name, release, suffix in typedefs:
        order = sorted(releases.get(name, {int(release)}))
        place = max((at for at, each in enumerate(order) if each <= int(release)), default=0)
        symbol = f"{name}_v{place + 1}" if place else name
        if symbol not in functions or (name == symbol and place == len(order) - 1):
            symbol = renames.get(name, symbol)
        symbol = symbol.removesuffix("_ptsz").removesuffix("_ptds") + suffix
        if symbol in functions:
            versions.append(Version(name, int(release), bool(suffix), symbol, f"PFN_{name}_v{release}{suffix}"))
    return versions
