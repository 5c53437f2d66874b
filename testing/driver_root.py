"""A stand-in for the files of NVIDIA's driver: what its container toolkit looks for, without a driver.

libcuda and libnvidia-ml are the software GPU's, so programs really run. The other libraries are empty; they have
the names and SONAMEs of a driver's.
"""

import os
import shutil
import stat
import subprocess
from dataclasses import dataclass
from pathlib import Path

from milligpu.native import library

VERSION = "615.71.01"
DEBIAN, RED_HAT = "usr/lib/x86_64-linux-gnu", "usr/lib64"
# Name and what follows ".so." in the SONAME; "" if that is the driver's version.
_LIBRARIES = {
    **dict.fromkeys(("nvidia-ptxjitcompiler", "nvidia-opencl", "cudadebugger", "nvidia-cfg"), "1"),
    **dict.fromkeys(("nvidia-encode", "nvcuvid", "nvidia-allocator", "nvidia-opticalflow"), "1"),
    **dict.fromkeys(("nvidia-gpucomp", "nvidia-glcore", "nvidia-eglcore", "nvidia-tls"), ""),
    "nvidia-nvvm": "4",
    "GLX_nvidia": "0",
}
_PROGRAMS = (
    *("nvidia-smi", "nvidia-debugdump", "nvidia-persistenced"),
    *("nvidia-cuda-mps-control", "nvidia-cuda-mps-server"),
)


@dataclass(frozen=True)
class DriverRoot:
    """The files below `folder`, which a node has as its root or in a directory of its own."""

    folder: Path
    libraries: str = DEBIAN

    @property
    def library_folder(self) -> Path:
        return self.folder / self.libraries


def make_driver_root(folder: Path, *, gpus: int = 1, libraries: str = DEBIAN) -> DriverRoot:
    """Make the files. As root, also device nodes; no device is behind them."""
    root = DriverRoot(folder, libraries)
    for path in (root.library_folder, *(folder / each for each in ("usr/bin", "dev", "etc", "usr/share"))):
        path.mkdir(parents=True, exist_ok=True)
    firmware = folder / "lib/firmware/nvidia" / VERSION
    firmware.mkdir(parents=True)
    (firmware / "gsp_ga10x.bin").touch()
    for name in ("cuda", "nvidia-ml"):
        _place(root, name, "1", library(f"softgpu/lib{name}.so.1"))
    nothing = folder / "nothing.o"
    subprocess.run(["as", "-o", str(nothing), "/dev/null"], check=True)
    for name, number in _LIBRARIES.items():
        soname = f"lib{name}.so.{number or VERSION}"
        empty = folder / f"{soname}.tmp"
        subprocess.run(["ld", "-shared", "-soname", soname, "-o", str(empty), str(nothing)], check=True)
        _place(root, name, number, empty)
        empty.unlink()
    nothing.unlink()
    (root.library_folder / "libcuda.so").symlink_to("libcuda.so.1")
    for name in _PROGRAMS:
        program = folder / "usr/bin" / name
        program.write_text(f"#!/bin/sh\necho {name} stand-in\n")
        program.chmod(0o755)
    (folder / "etc/ld.so.conf").write_text(f"/{libraries}\n")
    subprocess.run(["ldconfig", "-r", str(folder)], check=True, stderr=subprocess.DEVNULL)
    if os.geteuid() == 0:
        _make_nodes(folder / "dev", gpus)
    return root


def _place(root: DriverRoot, name: str, number: str, source: Path) -> None:
    file = root.library_folder / f"lib{name}.so.{VERSION}"
    shutil.copy(source, file)
    if number:
        (root.library_folder / f"lib{name}.so.{number}").symlink_to(file.name)


def _make_nodes(dev: Path, gpus: int) -> None:
    numbers = {
        "nvidiactl": (195, 255),
        "nvidia-modeset": (195, 254),
        "nvidia-uvm": (511, 0),
        "nvidia-uvm-tools": (511, 1),
    }
    for name, (major, minor) in {**numbers, **{f"nvidia{at}": (195, at) for at in range(gpus)}}.items():
        os.mknod(dev / name, stat.S_IFCHR | 0o666, os.makedev(major, minor))
