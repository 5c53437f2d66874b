"""Checks of any machine, server or client: libraries, installation, open files and network."""

import resource
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from milligpu.checks import health_network as network
from milligpu.checks.result import Check, CheckLevel, CheckResult, failed, passed
from milligpu.model.errors import Unavailable
from milligpu.native import library

SOFTWARE, RESOURCES = "Software Versions", "System Resources"
PERFORMANCE, STABILITY, CONSISTENCY = "Performance", "Stability", "Consistency"
GROUPS = (SOFTWARE, RESOURCES, PERFORMANCE, STABILITY, CONSISTENCY)
"""In the order of the report."""

OPEN_FILES_MIN = 4096
_CLIENT_FILES = ("remote/libcuda.so.1", "remote/libnvidia-ml.so.1")
SERVER_FILES = (*_CLIENT_FILES, "milligpu-worker", "enforce/libcuda.so.1")


def check_libraries() -> Iterable[CheckResult]:
    """The loader finds all that the client's libraries need; what is missing altogether is another check."""
    for path in filter(None, map(_path, _CLIENT_FILES)):
        # In a process of its own: a libcuda.so.1 that is loaded is found before the driver's.
        load = [sys.executable, "-c", "import ctypes, sys; ctypes.CDLL(sys.argv[1])", str(path)]
        done = subprocess.run(load, capture_output=True, text=True, check=False)
        if done.returncode:
            reason = (done.stderr.strip() or f"{path} cannot be loaded").splitlines()[-1]
            yield failed("library dependency", reason, "use an image with glibc, of this machine's release")
            return
    yield passed("library dependency", "")


def check_install(files: Sequence[str]) -> Iterable[CheckResult]:
    """All files of the installation are there."""
    missing = [name for name in files if _path(name) is None]
    if missing:
        fix = "reinstall milligpu; building it needs OpenSSL's headers and static libraries"
        yield failed("bitfusion install", f"{', '.join(missing)} not found", fix)
    else:
        yield passed("bitfusion install", "")


def _path(name: str) -> Path | None:
    try:
        return library(name)
    except Unavailable:
        return None


def check_open_files(soft: int) -> Iterable[CheckResult]:
    """Each session and each program needs a few descriptors."""
    name = f"ulimit -n >= {OPEN_FILES_MIN}"
    if soft >= OPEN_FILES_MIN or soft == resource.RLIM_INFINITY:
        yield passed(name, "unlimited" if soft == resource.RLIM_INFINITY else str(soft))
    else:
        fix = "raise it: ulimit -n 65536, or LimitNOFILE= in the service's unit"
        yield failed(name, str(soft), fix, CheckLevel.WARNING)


def host_checks(files: Sequence[str] = _CLIENT_FILES, interfaces: Path = network.SYS) -> list[Check]:
    """The checks of a machine without GPUs."""
    return [
        Check(SOFTWARE, "library dependency", check_libraries),
        Check(RESOURCES, "bitfusion install", lambda: check_install(files)),
        Check(PERFORMANCE, "network", lambda: network.check_subnets(network.read_interfaces(interfaces))),
        Check(PERFORMANCE, "open files", lambda: check_open_files(resource.getrlimit(resource.RLIMIT_NOFILE)[0])),
        Check(PERFORMANCE, "MTU Size", lambda: network.check_mtu(network.read_interfaces(interfaces))),
        Check(STABILITY, "Network Errors/Drops", lambda: network.check_errors(network.read_interfaces(interfaces))),
    ]
