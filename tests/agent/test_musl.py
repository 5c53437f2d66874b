"""Images with musl instead of glibc: a program there gets no GPU, rather than one without limits."""

import os
import platform
import subprocess
import tempfile
from pathlib import Path

import pytest

from devcluster import cache, images
from devcluster.report import to_stderr
from milligpu.native import library

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="the program is built for x86-64")

# Without musl's headers and start files: the loader alone is what matters.
PROGRAM = """
void *dlopen(const char *, int);
char *dlerror(void);
void *dlsym(void *, const char *);
int puts(const char *);
_Noreturn void exit(int);
__attribute__((force_align_arg_pointer)) void _start(void)
{
    void *cuda = dlopen("libcuda.so.1", 2);
    if (!cuda) {
        puts(dlerror());
        exit(9);
    }
    int (*init)(unsigned) = (int (*)(unsigned))dlsym(cuda, "cuInit");
    exit(init(0));
}
"""
NOT_LOADED, NO_DEVICE = 9, 100


@pytest.fixture(scope="module")
def musl() -> Path:
    """Debian's musl, which is the loader and the library in one file."""
    image = images.Image("local.dev/musl:1", ("musl",), (), alone=True)

    def make(draft: Path) -> None:
        with tempfile.TemporaryDirectory() as folder:
            (package,) = images.download_packages(image, Path(folder), to_stderr)
            subprocess.run(["dpkg-deb", "--extract", str(package), str(draft)], check=True)

    made = cache.made("images", f"musl-{cache.checksum([repr(image).encode()])}", make)
    return next(made.glob("**/x86_64-linux-musl/libc.so"))


def test_a_program_with_musl_gets_no_gpu(musl: Path, tmp_path: Path) -> None:
    (tmp_path / "program.c").write_text(PROGRAM)
    program = tmp_path / "program"
    flags = ["-nostdlib", "-nostartfiles", "-fno-stack-protector", "-o", str(program)]
    subprocess.run(["cc", *flags, str(tmp_path / "program.c"), str(musl)], check=True)
    environment = {**os.environ, "LD_LIBRARY_PATH": str(library("enforce/libcuda.so.1").parent)}
    done = subprocess.run([musl, program], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode in (NOT_LOADED, NO_DEVICE), done.stdout
    assert "libcuda.so.1" in done.stdout or done.returncode == NO_DEVICE
