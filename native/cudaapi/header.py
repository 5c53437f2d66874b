"""What the CUDA driver API is: every symbol with its signature, read from the vendor's own header.

The C preprocessor does the reading. With `__CUDA_API_VERSION_INTERNAL` the header declares every version of
every function by the name it is exported under; `cudaTypedefs.h` names the CUDA release that each came with.
Nothing here knows which library the answer is for.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from vendorapi.header import Function, Parameter, find_include, preprocess, read_functions

HEADER = "cuda.h"
PREAMBLE = "#define __CUDA_API_VERSION_INTERNAL 1\n#include <cuda.h>\n#include <cudaTypedefs.h>\n"

# Exported by the driver, but declared in a header that the wheel leaves out.
_PROFILER = {"cuProfilerStart": 4000, "cuProfilerStop": 4000}

_TYPEDEF = re.compile(r"typedef\s+CUresult\s*\(\s*\*PFN_(cu[A-Z]\w*?)_v(\d+)(_ptsz|_ptds)?\)")
_RENAME = re.compile(r"#\s*define\s+(cu[A-Z]\w*)\s+(?:__CUDA_API_PT[DS][SZ]\()?(cu[A-Z]\w*)")
_ERROR = re.compile(r"\b(CUDA_SUCCESS|CUDA_ERROR_\w+)\s*=\s*(\d+)")


@dataclass(frozen=True, slots=True)
class Version:
    """`cuGetProcAddress(name, release)` answers `symbol` from this release on."""

    name: str
    release: int
    per_thread: bool
    symbol: str
    typedef: str
    """The function pointer type of `cudaTypedefs.h`, against which the compiler checks the symbol."""


@dataclass(frozen=True, slots=True)
class Api:
    """The whole of it."""

    release: int
    functions: dict[str, Function]
    versions: tuple[Version, ...]
    errors: dict[str, int]


def include_folder() -> Path:
    """Where the header is."""
    return find_include(HEADER, "nvidia-cuda-runtime")


def is_stream(parameter: Parameter) -> bool:
    """Whether this is the stream that work goes to, where 0 means a default stream."""
    return re.fullmatch(r"CUstream\s+\w+", parameter.declaration) is not None


def base_of(symbol: str) -> str | None:
    """The symbol that this one is the per-thread-default-stream variant of."""
    base = re.sub(r"_pt[ds][sz]$", "", symbol)
    return base if base != symbol else None


def read(compiler: str, include: Path) -> Api:
    """Read the API from the headers in `include`."""
    text = preprocess(compiler, include, PREAMBLE)
    functions = read_functions(text, "CUresult", "cu")
    functions |= {name: Function("CUresult", name, ()) for name in _PROFILER}
    header = (include / HEADER).read_text()
    release = re.search(r"#define CUDA_VERSION (\d+)", header)
    if release is None or not functions:
        raise SystemExit(f"{include}/{HEADER} does not read as the CUDA driver API")
    versions = _versions(_TYPEDEF.findall(text), functions, dict(_RENAME.findall(header)))
    versions += [Version(name, since, False, name, "") for name, since in _PROFILER.items()]
    errors = {name: int(value) for name, value in _ERROR.findall(text)}
    return Api(int(release[1]), functions, tuple(sorted(versions, key=lambda v: (v.name, v.release))), errors)


def _versions(
    typedefs: list[tuple[str, str, str]], functions: dict[str, Function], renames: dict[str, str]
) -> list[Version]:
    """Which symbol each release's variant of a name is.

    Variants are exported as NAME, NAME_v2, NAME_v3 in the order of their releases; where the oldest is gone from
    the header, or none has such a name, it is what the header renames NAME to. That this holds is not taken on
    trust: the generated code has the compiler compare every row's types.
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
