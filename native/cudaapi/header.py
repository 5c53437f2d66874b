"""What the CUDA driver API is: every symbol with its signature, read from the vendor's own header.

The C preprocessor does the reading. With `__CUDA_API_VERSION_INTERNAL` the header declares every version of
every function by the name it is exported under; `cudaTypedefs.h` names the CUDA release that each came with.
Nothing here knows which library the answer is for.
"""

import re
import subprocess
import sysconfig
from dataclasses import dataclass
from pathlib import Path

PREAMBLE = "#define __CUDA_API_VERSION_INTERNAL 1\n#include <cuda.h>\n#include <cudaTypedefs.h>\n"

# Exported by the driver, but declared in a header that the wheel leaves out.
_PROFILER = {"cuProfilerStart": (4000, "void"), "cuProfilerStop": (4000, "void")}

_PROTOTYPE = re.compile(r"\bCUresult\s+(cu[A-Z]\w*)\s*\(([^;]*?)\)\s*;")
_TYPEDEF = re.compile(r"typedef\s+CUresult\s*\(\s*\*PFN_(cu[A-Z]\w*?)_v(\d+)(_ptsz|_ptds)?\)")
_RENAME = re.compile(r"#\s*define\s+(cu[A-Z]\w*)\s+(?:__CUDA_API_PT[DS][SZ]\()?(cu[A-Z]\w*)")
_ERROR = re.compile(r"\b(CUDA_SUCCESS|CUDA_ERROR_\w+)\s*=\s*(\d+)")


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter as declared."""

    declaration: str
    name: str

    @property
    def is_stream(self) -> bool:
        """Whether this is the stream that work goes to, where 0 means a default stream."""
        return re.fullmatch(r"CUstream\s+\w+", self.declaration) is not None


@dataclass(frozen=True, slots=True)
class Function:
    """One exported symbol."""

    symbol: str
    parameters: tuple[Parameter, ...]

    @property
    def per_thread(self) -> str | None:
        """The symbol that this one is the per-thread-default-stream variant of."""
        base = re.sub(r"_pt[ds][sz]$", "", self.symbol)
        return base if base != self.symbol else None


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
    """Where the headers' wheel is installed in this Python."""
    found = sorted(Path(sysconfig.get_path("purelib"), "nvidia").glob("*/include/cuda.h"))
    if not found:
        raise SystemExit("cuda.h not found: pip install nvidia-cuda-runtime")
    return found[-1].parent


def read(compiler: str, include: Path) -> Api:
    """Read the API from the headers in `include`."""
    command = [compiler, "-E", "-P", "-x", "c", f"-I{include}", "-"]
    text = subprocess.run(command, input=PREAMBLE, capture_output=True, text=True, check=True).stdout
    functions = {name: Function(name, _parameters(body)) for name, body in _PROTOTYPE.findall(text)}
    functions |= {name: Function(name, _parameters(body)) for name, (_, body) in _PROFILER.items()}
    header = (include / "cuda.h").read_text()
    release = re.search(r"#define CUDA_VERSION (\d+)", header)
    if release is None or not functions:
        raise SystemExit(f"{include}/cuda.h does not read as the CUDA driver API")
    versions = _versions(_TYPEDEF.findall(text), functions, dict(_RENAME.findall(header)))
    versions += [Version(name, since, False, name, "") for name, (since, _) in _PROFILER.items()]
    errors = {name: int(value) for name, value in _ERROR.findall(text)}
    return Api(int(release[1]), functions, tuple(sorted(versions, key=lambda v: (v.name, v.release))), errors)


def _parameters(text: str) -> tuple[Parameter, ...]:
    if text.strip() in ("", "void"):
        return ()
    return tuple(_parameter(" ".join(part.split())) for part in _split(text))


def _split(text: str) -> list[str]:
    """Split at commas, but not at those inside a function pointer's own parameters."""
    parts, depth = [""], 0
    for char in text:
        depth += (char == "(") - (char == ")")
        if char == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += char
    return parts


def _parameter(declaration: str) -> Parameter:
    pointer = re.search(r"\(\s*\*\s*(\w+)\s*\)", declaration)
    name = pointer[1] if pointer else re.findall(r"\w+", re.sub(r"\[[^\]]*\]", "", declaration))[-1]
    return Parameter(declaration, name)


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
