"""The loader's cache of another root, as ldconfig wrote it."""

import struct
import subprocess
from pathlib import Path

import pytest

from milligpu.agent.driver import find_host_paths, find_libraries
from milligpu.agent.host_paths import HostPaths, resolve_below
from milligpu.agent.loader_cache import library_folders, read_loader_cache
from milligpu.tenancy.tenant import CUDA, NVML
from testing.driver_root import DEBIAN, RED_HAT, VERSION, make_driver_root


def test_it_reads_what_ldconfig_prints() -> None:
    """Every architecture that this machine has is in its own cache."""
    printed = subprocess.run(["ldconfig", "-p"], check=True, capture_output=True, text=True).stdout
    lines = [line.split() for line in printed.splitlines() if "(libc6,x86-64)" in line]
    first = dict(reversed([(words[0], words[-1]) for words in lines]))
    assert read_loader_cache(Path("/etc/ld.so.cache").read_bytes(), "x86_64") == first


@pytest.mark.parametrize(
    ("machine", "flag", "folder"),
    [("aarch64", 0x0A, "/usr/lib/aarch64-linux-gnu"), ("ppc64le", 0x05, "/usr/lib/powerpc64le-linux-gnu")],
)
def test_the_cache_and_directories_of_other_architectures_are_read(machine: str, flag: int, folder: str) -> None:
    """glibc writes the architecture into the second byte of an entry's flags."""
    cache = bytearray(Path("/etc/ld.so.cache").read_bytes())
    start = cache.index(b"glibc-ld.so.cache1.1")
    (count,) = struct.unpack_from("=I", cache, start + 20)
    for at in range(start + 48, start + 48 + 24 * count, 24):
        cache[at + 1] = flag if cache[at + 1] == 0x03 else 0
    assert read_loader_cache(bytes(cache), machine) == read_loader_cache(
        Path("/etc/ld.so.cache").read_bytes(), "x86_64"
    )
    assert read_loader_cache(bytes(cache), "x86_64") == {}
    assert library_folders(machine) == (folder, "/usr/lib64", "/usr/lib")


def test_a_damaged_or_foreign_cache_counts_as_empty() -> None:
    whole = Path("/etc/ld.so.cache").read_bytes()
    assert read_loader_cache(b"") == {}
    assert read_loader_cache(b"x" * 4096) == {}
    assert read_loader_cache(whole[:60]) == {}
    assert read_loader_cache(whole, "riscv64") == {}


def test_of_several_libcuda_the_first_in_the_loaders_cache_counts(tmp_path: Path) -> None:
    root = make_driver_root(tmp_path, libraries=DEBIAN)
    other = tmp_path / "opt/old"
    other.mkdir(parents=True)
    (other / f"libcuda.so.{VERSION}").write_bytes((root.library_folder / f"libcuda.so.{VERSION}").read_bytes())
    (other / CUDA).symlink_to(f"libcuda.so.{VERSION}")
    for order in ((f"/{DEBIAN}", "/opt/old"), ("/opt/old", f"/{DEBIAN}")):
        (tmp_path / "etc/ld.so.conf").write_text("\n".join(order))
        subprocess.run(["ldconfig", "-r", str(tmp_path)], check=True, stderr=subprocess.DEVNULL)
        found = find_libraries(HostPaths(tmp_path))
        assert found[CUDA] == Path(order[0], f"libcuda.so.{VERSION}")


def test_libraries_of_debian_and_of_red_hat_are_found_with_and_without_a_cache(tmp_path: Path) -> None:
    for folder in (DEBIAN, RED_HAT):
        root = make_driver_root(tmp_path / folder.replace("/", "-"), libraries=folder)
        whole = find_libraries(HostPaths(root.folder))
        (root.folder / "etc/ld.so.cache").unlink()
        assert find_libraries(HostPaths(root.folder)) == whole
        assert whole[CUDA] == Path("/", folder, f"libcuda.so.{VERSION}")
        # Its name has the driver's version.
        assert f"libnvidia-gpucomp.so.{VERSION}" in whole


def test_a_driver_in_a_container_is_found_below_the_nodes_root(tmp_path: Path) -> None:
    (tmp_path / "var").mkdir()
    (tmp_path / "var/run").symlink_to("/run")
    make_driver_root(tmp_path / "run/nvidia/driver")
    paths = find_host_paths(tmp_path, None, {})
    assert paths is not None
    assert paths == HostPaths(tmp_path, Path("/run/nvidia/driver"))
    assert find_libraries(paths)[NVML] == Path("/run/nvidia/driver", DEBIAN, f"libnvidia-ml.so.{VERSION}")
    assert paths.here("/var/run/nvidia") == tmp_path / "run/nvidia"


def test_links_are_followed_below_their_root(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/tool").symlink_to("/usr/../usr/bin/tool")
    (tmp_path / "loop").symlink_to("/loop")
    assert resolve_below(tmp_path, Path("/etc/tool")) == Path("/usr/bin/tool")
    assert resolve_below(tmp_path, Path("/../../etc")) == Path("/etc")
    assert not HostPaths(tmp_path).exists("/loop")
