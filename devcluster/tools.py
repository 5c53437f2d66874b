"""Check what the machine must have before a cluster can start, so that a missing tool is one clear message."""

import os
import shutil
from pathlib import Path

from devcluster.errors import DevclusterError
from devcluster.node import CNI_PLUGINS

PACKAGES_FILE = Path(__file__).parent / "packages.txt"
PROGRAMS = {
    "ip": "iproute2",
    "runc": "runc",
    "nsenter": "util-linux",
    "unshare": "util-linux",
    "mount": "mount",
}
PLUGINS = {"ptp": "containernetworking-plugins", "host-local": "containernetworking-plugins"}


def packages() -> tuple[str, ...]:
    """The Debian packages listed in packages.txt."""
    lines = (line.strip() for line in PACKAGES_FILE.read_text().splitlines())
    return tuple(line for line in lines if line and not line.startswith("#"))


def check(*, real_nodes: bool) -> None:
    """Raise if this user or this machine cannot run a cluster."""
    if os.geteuid() != 0:
        raise DevclusterError("a cluster needs root to create cgroups, mounts and addresses", "run this with sudo")
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    missing = {package for program, package in PROGRAMS.items() if not shutil.which(program, path=path)}
    if real_nodes:
        missing |= {package for plugin, package in PLUGINS.items() if not (CNI_PLUGINS / plugin).exists()}
    if missing:
        names = " ".join(sorted(missing))
        raise DevclusterError(f"missing on this machine: {names}", f"apt-get install {names}")
