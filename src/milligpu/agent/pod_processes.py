"""Which pods still have processes on this node, by the kernel: no API shows it earlier."""

import re
from pathlib import Path

# The kubelet names a pod's cgroup pod<uid>; systemd's form has underscores, because dashes separate levels.
_POD = re.compile(rb"pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12})")


def pod_uid_in_cgroup(cgroups: bytes) -> str | None:
    """Return the uid of the pod of a process with this /proc/PID/cgroup."""
    match = _POD.search(cgroups)
    return match[1].decode().replace("_", "-") if match else None


def pod_uid_of_process(pid: int, proc: Path = Path("/proc")) -> str | None:
    """Return the uid of the pod of a process; None if it has no pod or has ended."""
    try:
        return pod_uid_in_cgroup((proc / str(pid) / "cgroup").read_bytes())
    except OSError:
        return None


def pods_running(proc: Path = Path("/proc")) -> frozenset[str]:
    """Return the uids of all pods with at least one process; the sandbox's pause process counts."""
    pids = (int(folder.name) for folder in proc.iterdir() if folder.name.isdigit())
    return frozenset(uid for pid in pids if (uid := pod_uid_of_process(pid, proc)))
