"""Which pods still have processes on this node: the word of the kernel, which no API can be ahead of."""

import re
from pathlib import Path

# The kubelet names a pod's group pod<uid>; systemd's form has underscores, because dashes mean something there.
_POD = re.compile(rb"pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12})")


def pod_of(cgroups: bytes) -> str | None:
    """The uid of the pod that a process with this /proc/PID/cgroup belongs to."""
    match = _POD.search(cgroups)
    return match[1].decode().replace("_", "-") if match else None


def pods_running(proc: Path = Path("/proc")) -> frozenset[str]:
    """The uids of all pods with at least one process, the pause process of their sandbox included."""
    found: set[str] = set()
    for folder in proc.iterdir():
        if folder.name.isdigit():
            try:
                uid = pod_of((folder / "cgroup").read_bytes())
            except OSError:  # it ended while we looked
                continue
            if uid:
                found.add(uid)
    return frozenset(found)
