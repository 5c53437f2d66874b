"""The hook of shares: which files of an image it covers with the limits library."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from milligpu.native import library
from milligpu.tenancy.tenant import CUDA, NVML

# Root may mount; others may in a user namespace of their own.
UNSHARE = ["unshare", "--mount", "--propagation", "private", *([] if os.geteuid() == 0 else ["--map-root-user"])]
ENTER = """
mount --bind -o ro "$1" "$2/run/milligpu/lib"
mount --bind "$3" "$2/run/milligpu/driver"
"$4" "$5" "$6" < "$7" || exit 9
for file in $(cd "$2" && find . -name 'lib*' -not -path './run/*' | sort); do echo "$file $(cat "$2/$file")"; done
echo "driver $(cat "$2/run/milligpu/driver/$5")"
echo no > "$2/usr/local/cuda/compat/$5" 2>/dev/null && echo writable
exit 0
"""


class Container:
    """A bundle as a runtime makes it, with the image's files below `rootfs`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.root = folder / "rootfs"
        for name in ("ours", "behind", "rootfs/run/milligpu/lib", "rootfs/run/milligpu/driver", "rootfs/etc"):
            (folder / name).mkdir(parents=True)
        for name in (CUDA, NVML):
            (folder / "ours" / name).write_text("ours")
            (folder / "behind" / name).write_text("driver")

    def add(self, path: str, text: str = "image") -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def link(self, path: str, target: str) -> None:
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).symlink_to(target)

    def start(self, *environment: str) -> "subprocess.CompletedProcess[str]":
        config = {"process": {"args": ["a\\"], "env": list(environment)}, "root": {"path": "rootfs"}}
        (self.folder / "config.json").write_text(json.dumps(config))
        state = self.folder / "state.json"
        state.write_text(json.dumps({"ociVersion": "1.2.0", "pid": 1, "bundle": str(self.folder)}))
        hook = str(library("milligpu-attach-hook"))
        names = [self.folder / "ours", self.root, self.folder / "behind", hook, CUDA, NVML, state]
        command = [*UNSHARE, "bash", "-c", ENTER, "hook", *map(str, names)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    def seen(self, *environment: str) -> dict[str, str]:
        """The content of each library of the image, as the container would see it."""
        done = self.start(*environment)
        assert done.returncode == 0, done.stderr
        words = (line.removeprefix("./").split(" ", 1) for line in done.stdout.splitlines())
        return {word[0]: word[1] if len(word) > 1 else "" for word in words}


@pytest.fixture
def container(tmp_path: Path) -> Container:
    return Container(tmp_path)


def test_forward_compatibility_libraries_of_cuda_are_covered_and_stay_read_only(container: Container) -> None:
    container.link("usr/local/cuda", "/etc/alternatives/cuda")
    container.link("etc/alternatives/cuda", "/usr/local/cuda-12.8")
    container.add("usr/local/cuda-12.8/compat/libcuda.so.570.1")
    container.link("usr/local/cuda-12.8/compat/libcuda.so.1", "libcuda.so.570.1")
    container.add("usr/local/cuda-12.8/compat/libnvidia-ptxjitcompiler.so.1")
    container.add("usr/local/cuda-11.8/compat/lib.real/libcuda.so.1")
    seen = container.seen()
    assert seen["usr/local/cuda-12.8/compat/libcuda.so.570.1"] == "ours"
    assert seen["usr/local/cuda-12.8/compat/libcuda.so.1"] == "ours"
    assert seen["usr/local/cuda-11.8/compat/lib.real/libcuda.so.1"] == "ours"
    assert seen["usr/local/cuda-12.8/compat/libnvidia-ptxjitcompiler.so.1"] == "image"
    assert "writable" not in seen
    assert (container.root / "usr/local/cuda-12.8/compat/libcuda.so.570.1").read_text() == "image"


def test_the_library_path_and_conda_are_covered_and_the_driver_behind_is_not(container: Container) -> None:
    container.add("opt/own/libcuda.so.1")
    container.add("opt/own/libnvidia-ml.so.1")
    container.add("env/cuda-compat/libcuda.so")
    container.add("opt/other/libcuda.so.1")
    path = "LD_LIBRARY_PATH=:relative:/nowhere:/opt/own:/run/milligpu/driver"
    seen = container.seen('A="b\\u0000\n', "CONDA_PREFIX=/env", path)
    assert seen["opt/own/libcuda.so.1"] == seen["opt/own/libnvidia-ml.so.1"] == "ours"
    assert seen["env/cuda-compat/libcuda.so"] == "ours"
    assert seen["opt/other/libcuda.so.1"] == "image"  # nothing leads there
    assert seen["driver"] == "driver"


def test_what_the_loaders_cache_names_is_covered(container: Container) -> None:
    container.add("opt/cached/libcuda.so.1")
    strings = b"libcuda.so.1\0/opt/cached/libcuda.so.1\0libc.so.6\0/lib/libc.so.6\0"
    (container.root / "etc/ld.so.cache").write_bytes(b"glibc-ld.so.cache1.1\1\0\0\0\x2f\0\0\0" + strings)
    assert container.seen()["opt/cached/libcuda.so.1"] == "ours"


def test_an_image_cannot_lead_the_hook_out_of_its_root(container: Container, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "libcuda.so.1").write_text("host")
    container.link("usr/local/cuda-1/compat", str(outside))
    container.link("usr/local/cuda-2/compat", f"../../../../{outside.relative_to(tmp_path)}")
    container.link("usr/local/cuda-3/compat", f"/proc/self/root{outside}")
    done = container.start(f"LD_LIBRARY_PATH=/../../outside:/proc/1/root{outside}")
    assert done.returncode == 0, done.stderr
    assert (outside / "libcuda.so.1").read_text() == "host"


def test_an_image_without_any_of_these_gets_no_directories(container: Container) -> None:
    container.seen()
    assert sorted(each.name for each in container.root.iterdir()) == ["etc", "run"]


@pytest.mark.parametrize("state", ["", "[", '{"bundle": 7}', '{"bundle": "/nowhere"}', '{"bundle": "/"}'])
def test_a_runtime_that_says_nothing_useful_gets_no_container(state: str) -> None:
    command = [str(library("milligpu-attach-hook")), CUDA]
    done = subprocess.run(command, input=state, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("milligpu: ")
