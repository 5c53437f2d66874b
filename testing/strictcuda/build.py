"""Compile the strict driver."""

import re
import subprocess
from pathlib import Path

from cudaapi import emit, header

_HERE = Path(__file__).parent
_NATIVE = _HERE.parents[1] / "native"


def build(folder: Path, compiler: str = "cc") -> Path:
    """Compile `libcuda.so.1` into `folder`, completed by the generator like our other driver libraries.

    `compiler` may be one for another architecture.
    """
    include = header.include_folder()
    options = ["-O1", "-g", "-fPIC", "-Wall", "-Wextra", "-Werror", "-Wno-deprecated-declarations"]
    options += ["-fvisibility=hidden", f"-isystem{include}", f"-I{_NATIVE / 'cudaapi'}", f"-I{_HERE}"]
    written = [_compile(compiler, source, folder, options) for source in sorted(_HERE.glob("*.c"))]
    symbols = subprocess.run(["nm", *written], capture_output=True, text=True, check=True).stdout
    rest = folder / "rest.c"
    rest.write_text(
        emit.source(header.read(compiler, include), set(re.findall(r" T (cu[A-Z]\w*)$", symbols, re.M)), wrap=False)
    )
    objects = [
        *written,
        *(_compile(compiler, each, folder, options) for each in (rest, _NATIVE / "cudaapi/find.c")),
    ]
    made = folder / "libcuda.so.1"
    link = ["-shared", "-Wl,-Bsymbolic", "-Wl,-soname,libcuda.so.1", "-pthread"]
    subprocess.run([compiler, *link, "-o", made, *objects], check=True)
    return made


def _compile(compiler: str, source: Path, folder: Path, options: list[str]) -> Path:
    made = folder / f"{source.stem}.o"
    subprocess.run([compiler, *options, "-c", "-o", made, source], check=True)
    return made
