"""Which pods still have processes on this node: the word of the kernel, which no API can be ahead of."""

import re
from pathlib import Path

# The kubelet names a pod's group pod<uid>; systemd's form has underscores, because dashes mean something there.
_POD = re.compile(rb"pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12})")


def pod_of(cgroups: bytes) -> str | None:
    """The uid of the pod that a process with this /proc/PID/cgroup belongs to."""
    match = _POD.search(cgroups)
    return match[1].decode().replace("_", "-") if match else None


def pod_of_process(pid: int, proc: Path = Path("/proc")) -> str | None:
    """The uid of the pod of a process; None when it has none, or has ended."""
    try:
        return pod_of((proc / str(pid) / "cgroup").read_bytes())
    except OSError:
        return None


def pods_running(proc: Path = Path("/proc")) -> frozenset[str]:
    """The uids of all pods with at least one process, the pause process of their sandbox included."""
    pids = (int(folder.name) for folder in proc.iterdir() if folder.name.isdigit())
    return frozenset(uid for pid in pids if (uid := pod_of_process(pid, proc)))
