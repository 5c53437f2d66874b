"""The guide's third step: an image that holds the client next to the application.

No CUDA, no driver and no GPU is in it. Besides the client's Python code it has two shared libraries and two wheels.
"""

from pathlib import Path

from devcluster.images import BASE, Image, layered_archive
from devcluster.report import to_stderr
from milligpu.native import library

ROOT = Path(__file__).parents[3]
PACKAGES = "usr/lib/python3/dist-packages"
# The name in the guide's podspec.
REFERENCE = "docker.io/library/test-image:latest"
BASE_WITH_CLIENT = Image(
    "local.dev/client-base:1",
    BASE.packages,
    BASE.command,
    links=(*BASE.links, ("usr/bin/python", "python3")),
    wheels=("click", "msgspec"),
)
BITFUSION = b"#!/usr/bin/python3\nfrom milligpu.cli.bitfusion import main\n\nmain()\n"


def client_image() -> tuple[Image, Path]:
    """The image and its archive."""
    source = ROOT / "src"
    code = {
        f"{PACKAGES}/{path.relative_to(source)}": path.read_bytes()
        for path in sorted((source / "milligpu").rglob("*.py"))
    }
    libraries = {
        f"{PACKAGES}/milligpu/_native/remote/{name}": library(f"remote/{name}").read_bytes()
        for name in ("libcuda.so.1", "libnvidia-ml.so.1")
    }
    program = (ROOT / "tests/remote/clients/tf_cnn_benchmarks.py").read_bytes()
    files = {
        **code,
        **libraries,
        "usr/local/bin/bitfusion": BITFUSION,
        "benchmarks/scripts/tf_cnn_benchmarks/tf_cnn_benchmarks.py": program,
    }
    image = Image(REFERENCE, (), BASE.command, environment=("PATH=/usr/local/bin:/usr/bin:/bin",))
    return image, layered_archive(image, BASE_WITH_CLIENT, files, to_stderr)
