"""Compile the strict NVML, and read what NVIDIA documents about it."""

import re
import subprocess
from pathlib import Path

from nvmlapi import header
from vendorapi.header import Function

_HERE = Path(__file__).parent
_NATIVE = _HERE.parents[1] / "native"
_BY_HAND = frozenset({"nvmlErrorString", "nvmlDeviceGetMigMode"})
_DOCUMENTED = re.compile(
    r"/\*\*((?:(?!\*/).)*)\*/\s*(?:DEPRECATED\([\d.]+\)\s*)?nvmlReturn_t DECLDIR (nvml\w+)\(", re.S
)
_ERROR = re.compile(r"\\ref (NVML_ERROR_\w+)")


def build(folder: Path) -> Path:
    """Compile `libnvidia-ml.so.1` into `folder`."""
    include = header.include_folder()
    functions = header.read("cc", include).functions
    rest = folder / "rest.c"
    rest.write_text(
        '#include "strict.h"\n#define EXPORT __attribute__((visibility("default")))\n'
        + "\n".join(_passage(each) for name, each in functions.items() if name not in _BY_HAND)
    )
    made = folder / "libnvidia-ml.so.1"
    options = ["-O1", "-fPIC", "-shared", "-fvisibility=hidden", "-Wall", "-Wextra", "-Werror"]
    options += ["-Wno-deprecated-declarations", f"-isystem{include}", f"-I{_NATIVE / 'nvmlapi'}", f"-I{_HERE}"]
    options += ["-Wl,-Bsymbolic", "-Wl,-soname,libnvidia-ml.so.1", "-pthread"]
    subprocess.run(["cc", *options, "-o", made, _HERE / "strict.c", rest, "-ldl"], check=True)
    return made


def _passage(function: Function) -> str:
    first = function.parameters[0] if function.parameters else None
    about = f"strict_gpu({first.name})" if first and first.declaration.startswith("nvmlDevice_t ") else "-1"
    links = [each.name for each in function.parameters if each.name in ("link", "linkId")]
    beyond = (
        f"    if (strict_no_link(gpu, {links[0]}))\n        return NVML_ERROR_INVALID_ARGUMENT;\n" if links else ""
    )
    return (
        f"{function.prototype}\n{{\n    static __typeof__(&{function.symbol}) next;\n    int gpu = {about};\n"
        f'    int code = strict_answer("{function.symbol}", gpu);\n'
        f"    if (code >= 0)\n        return (nvmlReturn_t)code;\n{beyond}"
        f'    if (!next && !(next = (__typeof__(next))nvmlapi_next("{function.symbol}")))\n'
        f"        return NVML_ERROR_FUNCTION_NOT_FOUND;\n    return next({function.arguments});\n}}"
    )


def documented() -> dict[str, list[str]]:
    """Return the names of the errors that NVIDIA documents, by function."""
    text = (header.include_folder() / header.HEADER).read_text()
    return {name: sorted(set(_ERROR.findall(comment))) for comment, name in _DOCUMENTED.findall(text)}
