"""NVML: every symbol with its signature, read from the vendor's header.

With `NVML_NO_UNVERSIONED_FUNC_DEFS` the header declares every version of every function under its exported name.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from vendorapi.header import Function, find_include, preprocess, read_functions

HEADER = "nvml.h"
PREAMBLE = "#define NVML_NO_UNVERSIONED_FUNC_DEFS\n#include <nvml.h>\n"

# The function that returns text; every library implements it by hand.
ERROR_STRING = "nvmlErrorString"

# Not in the header; nvidia-smi asks the driver's library for it.
EXPORT_TABLE = "nvmlInternalGetExportTable"

_RELEASE = re.compile(r"#define NVML_API_VERSION\s+(\d+)")


@dataclass(frozen=True, slots=True)
class Api:
    """The whole API of one release."""

    release: int
    functions: dict[str, Function]


def include_folder() -> Path:
    """Return the directory of the header."""
    return find_include(HEADER, "nvidia-nvml-dev")


def read(compiler: str, include: Path) -> Api:
    """Read the API from the header in `include`."""
    functions = read_functions(preprocess(compiler, (include,), PREAMBLE), "nvmlReturn_t", "nvml")
    release = _RELEASE.search((include / HEADER).read_text())
    if release is None or not functions:
        raise SystemExit(f"{include}/{HEADER} does not read as NVML")
    return Api(int(release[1]), dict(sorted(functions.items())))
