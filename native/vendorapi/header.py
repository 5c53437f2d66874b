"""The functions that a vendor's header declares, read from the output of the C preprocessor.

The headers come as wheels and stay out of this repository.
"""

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter as declared."""

    declaration: str
    name: str


@dataclass(frozen=True, slots=True)
class Function:
    """One exported symbol."""

    result: str
    symbol: str
    parameters: tuple[Parameter, ...]

    @property
    def declarations(self) -> str:
        """The parameters as a declaration lists them."""
        return ", ".join(parameter.declaration for parameter in self.parameters) or "void"

    @property
    def arguments(self) -> str:
        """The parameters as a call passes them on."""
        return ", ".join(parameter.name for parameter in self.parameters)

    @property
    def prototype(self) -> str:
        """The declaration with which a library exports it."""
        return f"EXPORT {self.result} {self.symbol}({self.declarations})"


def find_include(header: str, wheel: str) -> Path:
    """Return the directory of a header that a wheel installed for this Python.

    pip adds its build environment to the module search path and leaves the installation's own directories as they
    are, so the path is searched, in order.
    """
    found = [file for entry in sys.path for file in sorted(Path(entry, "nvidia").glob(f"*/include/{header}"))]
    if not found:
        raise SystemExit(f"{header} not found: pip install {wheel}")
    return found[0].parent


def preprocess(compiler: str, include: tuple[Path, ...], preamble: str) -> str:
    """Return the preprocessed text."""
    command = [compiler, "-E", "-P", "-x", "c", *(f"-I{each}" for each in include), "-"]
    return subprocess.run(command, input=preamble, capture_output=True, text=True, check=True).stdout


def read_functions(text: str, result: str, prefix: str) -> dict[str, Function]:
    """Return the functions that return `result` and whose names begin with `prefix` and a capital letter."""
    prototype = re.compile(rf"\b{result}\s+({prefix}[A-Z]\w*)\s*\(([^;]*?)\)\s*;")
    return {name: Function(result, name, read_parameters(body)) for name, body in prototype.findall(text)}


def read_parameters(text: str) -> tuple[Parameter, ...]:
    """Parse the parameters between the parentheses of a declaration."""
    if text.strip() in ("", "void"):
        return ()
    return tuple(_parameter(" ".join(part.split())) for part in _split(text))


def _split(text: str) -> list[str]:
    """Split at commas, except for those inside a function pointer's own parameters."""
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
