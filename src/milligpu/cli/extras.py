"""Which extra of the package brings a module that is not installed."""

import importlib.metadata
import re

from milligpu.model.errors import Unavailable

# Distributions whose module has another name.
_MODULES = {"grpcio": "grpc", "nvidia-ml-py": "pynvml", "protobuf": "google", "pyvmomi": "pyVmomi"}
_REQUIREMENT = re.compile(r"(?P<name>[\w.-]+).*\bextra == ['\"](?P<extra>[\w-]+)['\"]")


def modules_by_extra() -> dict[str, set[str]]:
    """The modules that each extra brings, according to the package's metadata."""
    found: dict[str, set[str]] = {}
    for line in importlib.metadata.requires("milligpu") or ():
        if match := _REQUIREMENT.match(line):
            name = match["name"].lower()
            found.setdefault(match["extra"], set()).add(_MODULES.get(name, name.replace("-", "_")))
    return found


def missing_extra(error: ModuleNotFoundError, preferred: str) -> Unavailable | None:
    """The error that names the extra to install; None for a module that no extra brings.

    Where several extras bring the module, it is the preferred one.
    """
    module = (error.name or "").partition(".")[0]
    extras = sorted(extra for extra, modules in modules_by_extra().items() if module in modules)
    if not extras:
        return None
    extra = preferred if preferred in extras else extras[0]
    return Unavailable(
        f"this command needs the Python module {module}, which is not installed",
        hint=f"pip install 'milligpu[{extra}]'",
    )
