"""`make images`: milligpu's container images as OCI archives, made without a registry or a daemon.

An image is Debian's Python, milligpu's wheel and what its extras need, in the versions of uv.lock; no shell, no
compiler, no package manager. The image for clients of GPU servers has only libraries and a static program. The
same sources give the same bytes. Each archive comes with a list of its packages (SPDX).
"""

import argparse
import json
import re
import shutil
import subprocess
import tempfile
import tomllib
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from devcluster import cache, images
from devcluster.report import Report, to_stderr

ROOT = Path(__file__).parents[1]
REPOSITORY = "milligpu.dev"
# Where pip's --target leaves scripts for this machine's interpreter, and how the wheel came here.
_NOT_IN_IMAGE = ("bin", "*.dist-info/direct_url.json", "*.dist-info/RECORD", "*.dist-info/uv_cache.json")
_PROGRAM = b"#!/usr/bin/python3\nimport sys\n\nfrom milligpu.cli.main import main\n\nsys.exit(main())\n"
WHEEL_SOURCES = ("src", "native", "proto", "deploy/chart", "pyproject.toml", "uv.lock", "README.md", "LICENSE")
"""What a wheel is made of."""
# "nobody": the service needs no file but its own.
_NOBODY = "65534:65534"


@dataclass(frozen=True)
class Product:
    """One of milligpu's images."""

    name: str
    about: str
    extras: tuple[str, ...]
    tag: str = ""
    """What comes after the version."""
    user: str = ""


SERVICE = Product(
    "milligpu",
    "scheduler service, admission webhook and dashboard",
    ("dashboard", "scheduler", "vsphere"),
    user=_NOBODY,
)
NODE = Product("milligpu-node", "node agent with the limits library", ("node",))
# LLVM is half of this image, so nodes with real GPUs get the other one.
SOFTGPU = Product("milligpu-node", "node agent and software GPU", ("node", "softgpu"), tag="-softgpu")
CLIENT = Product("milligpu-client", "client libraries for GPUs over the network", (), user=_NOBODY)
PRODUCTS = (SERVICE, NODE, SOFTGPU, CLIENT)
PYTHON_PRODUCTS = (SERVICE, NODE, SOFTGPU)
CLIENT_FILES = {
    "milligpu-client": "milligpu-client",
    "lib/libcuda.so.1": "remote/libcuda.so.1",
    "lib/libnvidia-ml.so.1": "remote/libnvidia-ml.so.1",
}
"""The client's image by paths, and where the wheel has these files below milligpu/_native."""


def version() -> str:
    """milligpu's version, as pyproject.toml has it."""
    return str(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"])


def reference(product: Product) -> str:
    """The image's name and tag."""
    return f"{REPOSITORY}/{product.name}:{version()}{product.tag}"


def image(product: Product) -> images.Image:
    """What the image is made of."""
    title = "org.opencontainers.image."
    labels = {
        "title": product.name,
        "description": product.about,
        "version": version(),
        "licenses": "Apache-2.0",
    }
    packages, program = ("python3", "libstdc++6", "libgcc-s1"), "/usr/bin/milligpu"
    if product is CLIENT:
        packages, program = (), "/milligpu-client"
    return images.Image(
        reference(product),
        packages,
        (program,),
        labels=tuple((title + name, text) for name, text in labels.items()),
        user=product.user,
    )


def archive(product: Product, report: Report = to_stderr) -> Path:
    """The image as an OCI archive, made now if these sources never were."""
    return _made(product, report) / f"{product.name}{product.tag}.tar"


def packages_file(product: Product, report: Report = to_stderr) -> Path:
    """The list of what is in the image, as SPDX JSON."""
    return _made(product, report) / f"{product.name}{product.tag}.spdx.json"


def _made(product: Product, report: Report) -> Path:
    parts = [repr(image(product)).encode(), repr(product.extras).encode(), Path(__file__).read_bytes(), *_sources()]
    name = f"{product.name}{product.tag}-{cache.checksum(parts)}"
    return cache.made("images", name, lambda draft: _make(product, draft, report))


def _sources() -> list[bytes]:
    """What a wheel is made of: names and contents."""
    listed = _run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", *WHEEL_SOURCES])
    files = sorted(path for name in listed.split("\0") if name and (path := ROOT / name).is_file())
    return [part for file in files for part in (str(file.relative_to(ROOT)).encode(), file.read_bytes())]


def _wheel(uv: str) -> Path:
    """milligpu's own wheel, built once for all images."""

    def make(draft: Path) -> None:
        _run([uv, "build", "--wheel", "--quiet", "--out-dir", str(draft), str(ROOT)])

    (wheel,) = cache.made("wheels", f"milligpu-{cache.checksum(_sources())}", make).glob("*.whl")
    return wheel


def _make(product: Product, draft: Path, report: Report) -> None:
    made = image(product)
    report(f"making image {made.reference}: once, about a minute")
    layer, listed = _client_layer() if product is CLIENT else _python_layer(product, report)
    stem = f"{product.name}{product.tag}"
    (draft / f"{stem}.tar").write_bytes(images.oci_archive(made, layer))
    (draft / f"{stem}.spdx.json").write_text(json.dumps(_spdx(made.reference, listed), indent=1) + "\n")
    report(f"made image {made.reference}: {len(layer) / 2**20:.0f} MiB")


def _python_layer(product: Product, report: Report) -> tuple[bytes, list[tuple[str, str, str]]]:
    """The files of an image with Python, and its packages."""
    made = image(product)
    with tempfile.TemporaryDirectory(prefix="milligpu-image-") as scratch:
        folder = Path(scratch)
        packages = images.download_packages(made, folder, report)
        site = folder / "site"
        _install(product, images.python_version(packages), site)
        layer = images.make_layer(made, packages, site, {"usr/bin/milligpu": _PROGRAM})
        return layer, [*map(_debian, packages), *_wheels(site), _openssl()]


def _client_layer() -> tuple[bytes, list[tuple[str, str, str]]]:
    """The files of the image for clients, and what is linked into them."""
    with zipfile.ZipFile(_wheel(_uv())) as wheel:
        files = {path: wheel.read(f"milligpu/_native/{source}") for path, source in CLIENT_FILES.items()}
    layer = images.plain_layer({**files, "LICENSE": (ROOT / "LICENSE").read_bytes()})
    return layer, [("milligpu", version(), f"pkg:pypi/milligpu@{version()}"), _openssl()]


def _openssl() -> tuple[str, str, str]:
    """OpenSSL, which is linked into the client libraries and the worker."""
    found = _run(["dpkg-query", "--show", "--showformat=${Version}", "libssl-dev"])
    return "openssl", found, f"pkg:deb/debian/openssl@{found}"


def _uv() -> str:
    return _run([str(ROOT / "tools/need"), "uv"]).strip()


def _install(product: Product, python: str, site: Path) -> None:
    """Unpack milligpu's wheel and what it needs, in the versions of uv.lock."""
    uv = _uv()
    extras = [word for extra in product.extras for word in ("--extra", extra)]
    locked = site.parent / "locked.txt"
    locked.write_text(
        _run([uv, "export", "--frozen", "--no-dev", "--no-emit-project", "--no-hashes", "--quiet", *extras])
    )
    install = [uv, "pip", "install", "--quiet", "--no-deps", "--only-binary", ":all:", "--target", str(site)]
    _run([*install, "--python-version", python, "-r", str(locked), str(_wheel(uv))])
    for pattern in _NOT_IN_IMAGE:
        for path in site.glob(pattern):
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def _debian(package: Path) -> tuple[str, str, str]:
    name, found, _ = package.name.split("_", 2)
    plain = found.replace("%3a", ":")
    return name, plain, f"pkg:deb/debian/{name}@{found}"


def _wheels(site: Path) -> list[tuple[str, str, str]]:
    found: list[tuple[str, str, str]] = []
    for folder in sorted(site.glob("*.dist-info")):
        name, number = folder.name.removesuffix(".dist-info").rsplit("-", 1)
        found.append((name, number, f"pkg:pypi/{name.replace('_', '-').lower()}@{number}"))
    return found


def _spdx(name: str, packages: list[tuple[str, str, str]]) -> dict[str, Any]:
    """SPDX 2.3, without a time: the same image has the same list."""

    def entry(number: int, package: tuple[str, str, str]) -> dict[str, Any]:
        title, found, locator = package
        reference = {"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": locator}
        return {
            "SPDXID": f"SPDXRef-{number}-{re.sub(r'[^A-Za-z0-9.-]', '-', title)}",
            "name": title,
            "versionInfo": found,
            "downloadLocation": "NOASSERTION",
            "filesAnalyzed": False,
            "externalRefs": [reference],
        }

    return {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": name,
        "documentNamespace": f"https://milligpu.dev/spdx/{name}",
        "creationInfo": {"created": "1970-01-01T00:00:00Z", "creators": ["Tool: milligpu-make-images"]},
        "packages": [entry(number, package) for number, package in enumerate(packages)],
    }


def _run(command: list[str]) -> str:
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr.strip()}")
    return done.stdout


def main() -> None:
    """Write the archives and their package lists into a directory."""
    parser = argparse.ArgumentParser(description="Write the container images as OCI archives.")
    parser.add_argument("--out", type=Path, default=Path("out/images"))
    out: Path = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    for product in PRODUCTS:
        for file in (archive(product), packages_file(product)):
            shutil.copy(file, out / file.name)
        size = (out / archive(product).name).stat().st_size / 2**20
        print(f"{out / archive(product).name}  {reference(product)}  {size:.0f} MiB")  # noqa: T201


if __name__ == "__main__":
    main()
