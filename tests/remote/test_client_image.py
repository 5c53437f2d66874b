"""The image milligpu-client: a static program that copies the client libraries into a directory."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from milligpu.native import library

LIBRARIES = ("libcuda.so.1", "libnvidia-ml.so.1")


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """The files of the image, in a directory that serves as its root."""
    root = tmp_path / "image"
    (root / "lib").mkdir(parents=True)
    shutil.copy(library("milligpu-client"), root)
    for name in LIBRARIES:
        shutil.copy(library(f"remote/{name}"), root / "lib")
    return root


def run_in(image: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    """Run the program as the only one of its image."""
    command = ["unshare", "--user", "--map-root-user", "chroot", str(image), "/milligpu-client", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("name", LIBRARIES)
def test_the_client_libraries_can_be_loaded_with_glibc_2_17(name: str) -> None:
    command = ["objdump", "--private-headers", "--dynamic-syms", library(f"remote/{name}")]
    table = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    needed = {tuple(map(int, version.split("."))) for version in re.findall(r"GLIBC_([0-9.]+)", table)}
    assert needed
    assert max(needed) <= (2, 17), re.findall(r"\(GLIBC_2\.(?:1[89]|[23]\d)\) (\w+)", table)
    others = set(re.findall(r"NEEDED\s+(\S+)", table))
    assert others <= {"libc.so.6", "libdl.so.2", "libpthread.so.0", "libm.so.6", "ld-linux-x86-64.so.2"}


def test_copy_puts_complete_libraries_and_their_links_into_a_directory(image: Path) -> None:
    for _ in ("first", "again, over what is there"):
        done = run_in(image, "copy", "/made/by/it")
        assert done.returncode == 0, done.stderr
    made = image / "made/by/it"
    assert {path.name for path in made.iterdir()} == {*LIBRARIES, "libcuda.so", "libnvidia-ml.so"}
    for name in LIBRARIES:
        assert (made / name).read_bytes() == library(f"remote/{name}").read_bytes()
        link = made / name.removesuffix(".1")
        assert os.readlink(link) == name


def test_an_image_with_musl_gets_a_clear_error(image: Path) -> None:
    (image / "lib/ld-musl-x86_64.so.1").touch()
    done = run_in(image, "copy", "/made")
    assert done.returncode == 1
    assert "this image has musl (/lib/ld-musl-x86_64.so.1)" in done.stderr
    assert "need glibc 2.17 or later" in done.stderr
    assert not (image / "made").exists()
    # An image may have both.
    (image / "lib64").mkdir()
    (image / "lib64/ld-linux-x86-64.so.2").touch()
    assert run_in(image, "copy", "/made").returncode == 0


@pytest.mark.parametrize("words", [(), ("copy",), ("copy", ""), ("move", "/made"), ("copy", "/made", "/other")])
def test_other_words_are_answered_with_the_usage(image: Path, words: tuple[str, ...]) -> None:
    done = run_in(image, *words)
    assert done.returncode == 2
    assert "usage: milligpu-client copy DIR" in done.stderr


def test_what_cannot_be_written_or_read_is_named(image: Path) -> None:
    (image / "file").touch()
    done = run_in(image, "copy", "/file")
    assert (done.returncode, "cannot create the directory /file" in done.stderr) == (1, True)
    (image / "lib/libcuda.so.1").unlink()
    done = run_in(image, "copy", "/made")
    assert (done.returncode, "cannot open /lib/libcuda.so.1" in done.stderr) == (1, True)
