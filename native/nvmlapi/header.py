"""What NVML is: every symbol with its signature, read from the vendor's own header.

With `NVML_NO_UNVERSIONED_FUNC_DEFS` the header declares every version of every function by the name it is exported
under; the C preprocessor does the reading.
"""

import re
import subprocess
import sysconfig
from dataclasses import dataclass
from pathlib import Path

PREAMBLE = "#define NVML_NO_UNVERSIONED_FUNC_DEFS\n#include <nvml.h>\n"

# The one that answers with text; every library writes it by hand.
ERROR_STRING = "nvmlErrorString"

_PROTOTYPE = re.compile(r"\bnvmlReturn_t\s+(nvml[A-Z]\w*)\s*\(([^;]*?)\)\s*;")
_RELEASE = re.compile(r"#define NVML_API_VERSION\s+(\d+)")


@dataclass(frozen=True, slots=True)
class Function:
    """One exported symbol and its parameters as declared."""

    symbol: str
    parameters: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """What the parameters are called."""
        return tuple(re.findall(r"\w+", re.sub(r"\[[^\]]*\]", "", each))[-1] for each in self.parameters)


@dataclass(frozen=True, slots=True)
class Api:
    """The whole of it."""

    release: int
    functions: dict[str, Function]


def include_folder() -> Path:
    """Where the header's wheel is installed in this Python."""
    found = sorted(Path(sysconfig.get_path("purelib"), "nvidia").glob("*/include/nvml.h"))
    if not found:
        raise SystemExit("nvml.h not found: pip install nvidia-nvml-dev")
    return found[-1].parent


def read(compiler: str, include: Path) -> Api:
    """Read the API from the header in `include`."""
    command = [compiler, "-E", "-P", "-x", "c", f"-I{include}", "-"]
    text = subprocess.run(command, input=PREAMBLE, capture_output=True, text=True, check=True).stdout
    functions = {name: Function(name, _parameters(body)) for name, body in _PROTOTYPE.findall(text)}
    release = _RELEASE.search((include / "nvml.h").read_text())
    if release is None or not functions:
        raise SystemExit(f"{include}/nvml.h does not read as NVML")
    return Api(int(release[1]), dict(sorted(functions.items())))


def _parameters(text: str) -> tuple[str, ...]:
    if text.strip() in ("", "void"):
        return ()
    return tuple(" ".join(part.split()) for part in text.split(","))
