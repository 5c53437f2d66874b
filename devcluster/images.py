"""Container images without a registry: OCI archives put together from Debian's packages and PyPI's wheels.

The packages are downloaded as if nothing were installed, so the image does not depend on what this machine
happens to have; they are unpacked straight into one layer, whose bytes depend on nothing but the packages.
"""

import hashlib
import io
import json
import os
import re
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from devcluster import cache
from devcluster.errors import DevclusterError
from devcluster.report import Report


@dataclass(frozen=True)
class Image:
    """What an image is called and what goes into it."""

    reference: str
    packages: tuple[str, ...]
    command: tuple[str, ...]
    links: tuple[tuple[str, str], ...] = ()
    """Symbolic links that a package's install script would have made: (path, target)."""
    alone: bool = False
    """Take the named packages only, without what they depend on."""
    wheels: tuple[str, ...] = ()
    """From PyPI, in the versions that this environment has."""
    environment: tuple[str, ...] = ()
    files: tuple[tuple[str, str], ...] = ()
    """Programs and modules that are in no package: (path, text)."""
    labels: tuple[tuple[str, str], ...] = ()
    user: str = ""
    """User and group by number, for a program that does not need root."""

    @property
    def file_name(self) -> str:
        return self.reference.rpartition("/")[2].partition(":")[0] + ".tar"


PAUSE = Image(
    "local.dev/pause:1",
    ("busybox-static",),
    ("/bin/busybox", "sleep", "2147483647"),
    alone=True,
)
BASE = Image(
    "local.dev/base:1",
    ("python3", "bash", "coreutils"),
    ("/bin/bash",),
    links=(("usr/bin/sh", "bash"),),
)
_WHEELS = "usr/lib/python3/dist-packages"
CUDA = Image(
    "local.dev/cuda:1",
    (*BASE.packages, "libstdc++6"),
    ("/bin/bash",),
    links=BASE.links,
    wheels=("tinygrad", "numpy", "nvidia-cuda-nvrtc", "nvidia-cuda-runtime"),
    environment=(f"LD_LIBRARY_PATH=/{_WHEELS}/nvidia/cu13/lib", f"CUDA_PATH=/{_WHEELS}/nvidia/cu13"),
)
"""What a person's image with a CUDA framework has; large, so nodes get it when a test asks for it."""
IMAGES = (PAUSE, BASE)
_TOUCH_GPUS = """#!/usr/bin/python3
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
count, total, context, memory = ctypes.c_int(), ctypes.c_size_t(), ctypes.c_void_p(), ctypes.c_void_p()
assert cuda.cuInit(0) == cuda.cuDeviceGetCount(ctypes.byref(count)) == 0
for at in range(count.value):
    assert cuda.cuDeviceTotalMem_v2(ctypes.byref(total), at) == 0
    assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), at) == cuda.cuCtxSetCurrent(context) == 0
    assert cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(total.value // 2)) == 0
    print(f"GPU {at}: {total.value >> 20} MiB", flush=True)
"""
_AND_STAY = """import time
time.sleep(1 << 20)
"""
SEEDS = Image(
    "local.dev/seeds:1",
    BASE.packages,
    ("/usr/bin/sleep", "infinity"),
    links=(*BASE.links, ("usr/bin/python", "python3")),
    files=(
        (f"{_WHEELS}/tensorflow.py", _TOUCH_GPUS),
        ("usr/local/nvidia/bin/nvidia-smi", _TOUCH_GPUS + _AND_STAY),
        ("benchmarks/scripts/tf_cnn_benchmarks/tf_cnn_benchmarks.py", _TOUCH_GPUS + _AND_STAY),
    ),
)
"""Stands in for the images of examples/seeds: programs of their names use half the memory of each GPU they see."""

# Needed to install or to configure packages, which nobody does inside this image.
_NOT_AT_RUN_TIME = frozenset({"debconf", "dpkg", "perl-base", "tar", "media-types", "mailcap", "debianutils"})
_NOT_IN_IMAGE = (
    "usr/share/doc/",
    "usr/share/man/",
    "usr/share/locale/",
    "usr/share/info/",
    "usr/share/lintian/",
)
_TOP_FOLDERS = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
_ACCOUNTS = {
    "etc/passwd": "root:x:0:0:root:/root:/bin/bash\nnobody:x:65534:65534:nobody:/nonexistent:/bin/false\n",
    "etc/group": "root:x:0:\nnogroup:x:65534:\n",
}
_EMPTY_FOLDERS = {"tmp": 0o1777, "root": 0o700, "run": 0o755, "dev": 0o755, "proc": 0o755, "sys": 0o755}
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def archive(image: Image, report: Report) -> Path:
    """The image as an OCI archive, made now if these packages never were."""
    release = Path("/etc/os-release").read_bytes()
    parts = [repr(image).encode(), release, Path(__file__).read_bytes(), os.uname().machine.encode()]
    name = f"{Path(image.file_name).stem}-" + cache.checksum(parts + [each.encode() for each in _pinned(image)])
    return cache.made("images", name, lambda draft: _make(image, draft, report)) / image.file_name


def program_archive(reference: str, program: Path) -> Path:
    """An image with one static program in /usr/bin, and nothing else."""
    image = Image(reference, (), (f"/usr/bin/{program.name}",))
    parts = [repr(image).encode(), Path(__file__).read_bytes(), program.read_bytes()]

    def make(draft: Path) -> None:
        (draft / "empty").mkdir()
        layer = make_layer(image, [], draft / "empty", {f"usr/bin/{program.name}": program.read_bytes()})
        (draft / image.file_name).write_bytes(oci_archive(image, layer))

    return cache.made("images", f"{program.name}-{cache.checksum(parts)}", make) / image.file_name


def layered_archive(image: Image, base: Image, files: Mapping[str, bytes], report: Report) -> Path:
    """An image with more files on top of another one, as most images are made."""
    below = archive(base, report)
    parts = [
        repr(image).encode(),
        str(below).encode(),
        *(part for file in files.items() for part in map(_bytes, file)),
    ]

    def make(draft: Path) -> None:
        (draft / "empty").mkdir()
        layer = make_layer(image, [], draft / "empty", files)
        (draft / image.file_name).write_bytes(oci_archive(image, _only_layer(below), layer))

    return cache.made("images", f"{Path(image.file_name).stem}-{cache.checksum(parts)}", make) / image.file_name


def _bytes(part: str | bytes) -> bytes:
    return part if isinstance(part, bytes) else part.encode()


def _only_layer(file: Path) -> bytes:
    with tarfile.open(file) as tar:

        def read(name: str) -> bytes:
            stream = tar.extractfile(name)
            assert stream, f"{name} is a file"
            return stream.read()

        def blob(described: dict[str, Any]) -> bytes:
            return read("blobs/sha256/" + described["digest"].removeprefix("sha256:"))

        (layer,) = json.loads(blob(json.loads(read("index.json"))["manifests"][0]))["layers"]
        return blob(layer)


def _make(image: Image, draft: Path, report: Report) -> None:
    report(f"making image {image.reference} from packages: once, about 20 seconds")
    with tempfile.TemporaryDirectory(prefix="milligpu-image-") as folder:
        packages = download_packages(image, Path(folder), report)
        layer = make_layer(image, packages, _install_wheels(image, packages, Path(folder, "wheels")))
    (draft / image.file_name).write_bytes(oci_archive(image, layer))
    report(f"made image {image.reference}: {len(packages)} packages, {len(layer) // 2**20} MiB")


def download_packages(image: Image, folder: Path, report: Report) -> list[Path]:
    """Fetch the packages and all they depend on, whatever is installed here."""
    if not any(Path("/var/lib/apt/lists").glob("*_Packages*")):
        report("apt knows no packages yet: running apt-get update")
        _run(["apt-get", "update"])
    (folder / "status").touch()
    (folder / "archives" / "partial").mkdir(parents=True)
    options = [
        f"Dir::State::status={folder}/status",
        f"Dir::Cache::archives={folder}/archives",
        "APT::Install-Recommends=false",
        "APT::Sandbox::User=root",
        "Debug::NoLocking=true",
    ]
    flags = [word for option in options for word in ("-o", option)]
    install = ["apt-get", *flags, "--yes", "--download-only", "install", *image.packages]
    try:
        _run(install)
    except DevclusterError:
        report("apt could not fetch a package, its list may be old: running apt-get update")
        _run(["apt-get", "update"])
        _run(install)
    found = {file.name.partition("_")[0]: file for file in sorted((folder / "archives").glob("*.deb"))}
    wanted = set(image.packages) if image.alone else set(found) - _NOT_AT_RUN_TIME
    return [file for name, file in sorted(found.items()) if name in wanted]


def _pinned(image: Image) -> list[str]:
    return [f"{name}=={version(name)}" for name in image.wheels]


def _install_wheels(image: Image, packages: list[Path], folder: Path) -> Path:
    """Unpack the wheels for the Python that is among the packages."""
    folder.mkdir()
    if image.wheels:
        python = python_version(packages)
        uv = _run([str(Path(__file__).parents[1] / "tools/need"), "uv"]).decode().strip()
        _run(
            [
                uv,
                "pip",
                "install",
                "--quiet",
                "--no-deps",
                "--target",
                str(folder),
                "--python-version",
                python,
                *_pinned(image),
            ]
        )
    return folder


def python_version(packages: list[Path]) -> str:
    """The version of the Python among the packages, such as 3.11."""
    found = (re.match(r"python(3\.\d+)_", file.name) for file in packages)
    return next(match[1] for match in found if match)


def _files(folder: Path) -> Iterator[tuple[str, Path]]:
    """What is below a folder, with the folders themselves; nothing that was compiled here."""
    for path in sorted(folder.rglob("*")):
        if "__pycache__" not in path.parts:
            yield str(path.relative_to(folder)), path


def make_layer(
    image: Image, packages: list[Path], wheels: Path, programs: Mapping[str, bytes] | None = None
) -> bytes:
    """One tar with everything, in sorted order and without times, owners' names or documentation.

    `programs` are executable files by their paths.
    """
    entries: dict[str, tuple[tarfile.TarInfo, bytes]] = {}

    def add(path: str, kind: bytes, mode: int, content: bytes = b"", target: str = "") -> None:
        info = tarfile.TarInfo(path)
        info.type, info.mode, info.size, info.linkname = kind, mode, len(content), target
        entries[path] = (info, content)

    for package in packages:
        for member, content in _members(package):
            path = merged(member.name)
            if path and path not in _TOP_FOLDERS and not f"{path}/".startswith(_NOT_IN_IMAGE):
                target = merged(member.linkname) if member.islnk() else member.linkname
                add(path, member.type, member.mode, content, target)
    for name, file in _files(wheels):
        if file.is_dir():
            add(f"{_WHEELS}/{name}", tarfile.DIRTYPE, 0o755)
        else:
            mode = 0o755 if os.access(file, os.X_OK) else 0o644
            add(f"{_WHEELS}/{name}", tarfile.REGTYPE, mode, file.read_bytes())
    for path, content in (programs or {}).items():
        add(path, tarfile.REGTYPE, 0o755, content)
    for path, text in _ACCOUNTS.items():
        add(path, tarfile.REGTYPE, 0o644, text.encode())
    for path, mode in _EMPTY_FOLDERS.items():
        add(path, tarfile.DIRTYPE, mode)
    for path in _TOP_FOLDERS:
        add(path, tarfile.SYMTYPE, 0o777, target=f"usr/{path}")
        add(f"usr/{path}", tarfile.DIRTYPE, 0o755)
    for path, text in image.files:
        add(path, tarfile.REGTYPE, 0o755, text.encode())
    for path, target in image.links:
        add(path, tarfile.SYMTYPE, 0o777, target=target)
    # A hard link must come after the file that it names.
    ordered = sorted(entries.values(), key=lambda entry: (entry[0].islnk(), entry[0].name))
    return _tar(ordered)


def plain_layer(programs: Mapping[str, bytes]) -> bytes:
    """One tar with these executable files, and their directories, and nothing else."""
    entries: list[tuple[tarfile.TarInfo, bytes]] = []
    for folder in sorted({str(above) for path in programs for above in Path(path).parents} - {"."}):
        info = tarfile.TarInfo(folder)
        info.type, info.mode = tarfile.DIRTYPE, 0o755
        entries.append((info, b""))
    for path, content in sorted(programs.items()):
        info = tarfile.TarInfo(path)
        info.mode, info.size = 0o755, len(content)
        entries.append((info, content))
    return _tar(entries)


def _members(package: Path) -> list[tuple[tarfile.TarInfo, bytes]]:
    unpacked = _run(["dpkg-deb", "--fsys-tarfile", str(package)])
    members: list[tuple[tarfile.TarInfo, bytes]] = []
    with tarfile.open(fileobj=io.BytesIO(unpacked)) as tar:
        for member in tar:
            stream = tar.extractfile(member) if member.isreg() else None
            members.append((member, stream.read() if stream else b""))
    return members


def merged(name: str) -> str:
    """Where a path of a package ends up today: /bin and /lib are links into /usr."""
    path = name.removeprefix("./").strip("/").removeprefix(".")
    top = path.partition("/")[0]
    return f"usr/{path}" if top in _TOP_FOLDERS and path != top else path


def _tar(entries: list[tuple[tarfile.TarInfo, bytes]]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for info, content in entries:
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def oci_archive(image: Image, *layers: bytes) -> bytes:
    """Wrap layers as the OCI image layout wants them, with the name that containerd is to give the image."""
    config = _json(
        {
            "architecture": _ARCHITECTURES.get(os.uname().machine, os.uname().machine),
            "os": "linux",
            "config": {"Cmd": list(image.command), "Env": _environment(image), **_optional(image)},
            "rootfs": {"type": "layers", "diff_ids": [_digest(layer) for layer in layers]},
        }
    )
    kind = "application/vnd.oci.image"
    manifest = _json(
        {
            "schemaVersion": 2,
            "mediaType": f"{kind}.manifest.v1+json",
            "config": _descriptor(f"{kind}.config.v1+json", config),
            "layers": [_descriptor(f"{kind}.layer.v1.tar", layer) for layer in layers],
        }
    )
    named = _descriptor(f"{kind}.manifest.v1+json", manifest)
    named["annotations"] = {"io.containerd.image.name": image.reference}
    index = _json({"schemaVersion": 2, "manifests": [named]})
    files = {"index.json": index, "oci-layout": _json({"imageLayoutVersion": "1.0.0"})}
    for blob in (config, manifest, *layers):
        files["blobs/sha256/" + _digest(blob).removeprefix("sha256:")] = blob
    entries: list[tuple[tarfile.TarInfo, bytes]] = []
    for path, content in sorted(files.items()):
        info = tarfile.TarInfo(path)
        info.size, info.mode = len(content), 0o644
        entries.append((info, content))
    return _tar(entries)


def _optional(image: Image) -> dict[str, Any]:
    found = {"Labels": dict(image.labels), "User": image.user}
    return {key: value for key, value in found.items() if value}


def _environment(image: Image) -> list[str]:
    return ["PATH=/usr/sbin:/usr/bin:/sbin:/bin", *image.environment]


def _descriptor(media_type: str, blob: bytes) -> dict[str, Any]:
    return {"mediaType": media_type, "digest": _digest(blob), "size": len(blob)}


def _digest(blob: bytes) -> str:
    return "sha256:" + hashlib.sha256(blob).hexdigest()


def _json(value: dict[str, Any]) -> bytes:
    return json.dumps(value, sort_keys=True).encode()


def _run(command: list[str]) -> bytes:
    try:
        return subprocess.run(command, check=True, capture_output=True).stdout
    except FileNotFoundError:
        raise DevclusterError(f"{command[0]} is not installed", "images are made on Debian or Ubuntu") from None
    except subprocess.CalledProcessError as error:
        words = error.stderr.decode(errors="replace").strip()
        raise DevclusterError(f"{' '.join(command)} failed:\n{words}") from None
