"""The limits library, arbiter and pages on other machines with NVIDIA's GPUs: built by Debian's cross compilers."""

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from testing.strictcuda.build import build
from tests.enforce.strict.machine import CLIENTS, StrictMachine

pytestmark = [pytest.mark.long, pytest.mark.alone]

NATIVE = Path(__file__).parents[3] / "native"
ARCHITECTURES = {"aarch64": "aarch64-linux-gnu", "ppc64le": "powerpc64le-linux-gnu"}
# Debian's name of a processor for which OpenSSL is fetched; without it, GPUs over the network are left out.
DEBIAN = {"aarch64": "arm64"}
PACKAGES = ("cmake", "gcc-aarch64-linux-gnu", "gcc-powerpc64le-linux-gnu", "qemu-user-static")


@pytest.fixture(scope="module", autouse=True)
def compilers() -> None:
    if not all(shutil.which(f"{each}-gcc") for each in ARCHITECTURES.values()) or not shutil.which(
        "qemu-ppc64le-static"
    ):
        subprocess.run([NATIVE.parent / "tools/need", "debian", *PACKAGES], check=True)


@pytest.fixture(scope="module")
def headers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """NVIDIA's headers in the versions that a build gets, for Python's search path."""
    folder = tmp_path_factory.mktemp("headers")
    wanted = tomllib.loads((NATIVE.parent / "pyproject.toml").read_text())["build-system"]["requires"]
    uv = subprocess.run(
        [NATIVE.parent / "tools/need", "uv"], check=True, capture_output=True, text=True
    ).stdout.strip()
    install = [uv, "pip", "install", "--quiet", "--no-deps", "--target", str(folder)]
    subprocess.run([*install, *(each for each in wanted if each.startswith("nvidia-"))], check=True)
    return folder


def fetch_openssl(folder: Path, machine: str) -> Path:
    """Unpack the other machine's OpenSSL into a root directory of its own; nothing is installed here."""
    (folder / "lists/partial").mkdir(parents=True)
    (folder / "cache/archives/partial").mkdir(parents=True)
    (folder / "status").touch()
    settings = {
        "APT::Architecture": DEBIAN[machine],
        "APT::Architectures": DEBIAN[machine],
        "APT::Sandbox::User": "root",
        "Dir::State": folder,
        "Dir::State::status": folder / "status",
        "Dir::Cache": folder / "cache",
    }
    apt = ["apt-get", *(f"-o={key}={value}" for key, value in settings.items())]
    for words in (["update"], ["download", "libssl-dev"]):
        subprocess.run([*apt, *words], cwd=folder, check=True, capture_output=True)
    (package,) = folder.glob("libssl-dev_*.deb")
    subprocess.run(["dpkg-deb", "--extract", package, folder / "root"], check=True)
    return folder / "root"


def configure(folder: Path, machine: str, compiler: str, root: Path | None) -> None:
    system = ("-DCMAKE_SYSTEM_NAME=Linux", f"-DCMAKE_SYSTEM_PROCESSOR={machine}", f"-DCMAKE_C_COMPILER={compiler}")
    options = ("-DMILLIGPU_SOFTGPU=OFF", "-DMILLIGPU_WERROR=ON", f"-DPython_EXECUTABLE={sys.executable}")
    if root is not None:
        options += (f"-DCMAKE_FIND_ROOT_PATH={root}", f"-DCMAKE_LIBRARY_ARCHITECTURE={ARCHITECTURES[machine]}")
    subprocess.run(["cmake", "-S", NATIVE, "-B", folder, *system, *options], check=True, capture_output=True)


@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_limits_hold_on_other_architectures(
    machine: str, headers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(headers))
    triplet = ARCHITECTURES[machine]
    compiler = f"{triplet}-gcc"
    made = tmp_path / "build"
    root = fetch_openssl(tmp_path / "apt", machine) if machine in DEBIAN else None
    configure(made, machine, compiler, root)
    build_all = ["cmake", "--build", made, "--parallel", "2"]
    done = subprocess.run(build_all, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    for name in ("milligpu-worker", "remote/libcuda.so.1"):
        assert (made / name).exists() == (root is not None), name
    assert not (made / "softgpu").exists()
    (tmp_path / "driver").mkdir()
    driver = build(tmp_path / "driver", compiler)
    client = tmp_path / "client"
    subprocess.run([compiler, "-w", "-o", client, CLIENTS / "other_machine.c", "-ldl"], check=True)

    rig = StrictMachine(tmp_path / "rig", driver, gpus=1)
    try:
        tenant = rig.tenant()
        for name, folder in (("libcuda.so.1", "enforce"), ("libnvidia-ml.so.1", "enforce-nvml")):
            (tenant / name).unlink()
            (tenant / name).symlink_to(made / folder / name)
        libraries = f"/usr/{triplet}"
        environment = {**os.environ, "STRICT_UUIDS": ",".join(rig.uuids), "LD_LIBRARY_PATH": ""}
        run = [f"qemu-{machine}-static", "-L", libraries, "-E", f"LD_LIBRARY_PATH={tenant}", client]
        ran = subprocess.run(run, env=environment, capture_output=True, text=True, timeout=300, check=False)
    finally:
        rig.close()
    lines = ran.stdout.splitlines()
    assert lines[-1] == "1 GPUs, 1024 MiB", ran.stdout + ran.stderr
    assert lines[:5] == [
        f"{name} 0"
        for name in ("cuInit", "cuDeviceGetCount", "cuDevicePrimaryCtxRetain", "cuCtxSetCurrent", "cuMemAlloc_v2")
    ]
    # 512 MiB and a context are held: another 512 are too much, and 600 fit when the first are free.
    assert lines[5] == "cuMemAlloc_v2 2"
    assert lines[6:9] == ["cuMemGetInfo_v2 0", "cuMemFree_v2 0", "cuMemAlloc_v2 0"]
