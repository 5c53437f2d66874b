"""Where the C parts are: built by CMake into the package, beside the Python code."""

import sysconfig
from pathlib import Path

from milligpu.model.errors import Unavailable


def library(name: str) -> Path:
    """The path of one of our shared libraries, such as `libmilligpu-pages.so`."""
    installed = Path(__file__).parent / "_native" / name
    # An editable install leaves the sources in place and puts what was built into site-packages.
    editable = Path(sysconfig.get_path("platlib"), "milligpu", "_native", name)
    for path in (installed, editable):
        if path.is_file():
            return path
    raise Unavailable(f"native library {name} is not built", hint="reinstall milligpu, or run: uv sync")
