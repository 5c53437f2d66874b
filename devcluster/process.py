"""One program of a cluster: runs in the cluster's cgroup, has a log, and can be restarted unchanged."""

import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from devcluster.cgroups import ClusterCgroup
from devcluster.errors import DevclusterError

STOP_DEADLINE_S = 10.0

# Joins the cgroup before the program starts, so that even its first child is inside.
_LAUNCHER = 'echo 0 > "$1" && shift && exec "$@"'

# Kubernetes' programs are written in Go: they may use more memory before they spend CPU time on collecting garbage.
GARBAGE = {"GOGC": "400"}
# The caller's environment, such as proxies and language, must not reach the cluster's programs.
_ENVIRONMENT = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/", **GARBAGE}


class Process:
    """A program that tests may kill and start again with the same command line, and so the same ports."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        cgroup: ClusterCgroup,
        log: Path,
        environment: Mapping[str, str] | None = None,
        mount_namespace: Callable[[], int] | None = None,
    ) -> None:
        """`mount_namespace` returns the PID of a process whose mounts this one shares."""
        self.name = name
        self.log = log
        self._command = list(command)
        self._cgroup = cgroup
        self._environment = {**_ENVIRONMENT, **(environment or {})}
        self._mount_namespace = mount_namespace
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        if self._child is None:
            raise DevclusterError(f"{self.name} has not been started")
        return self._child.pid

    @property
    def is_running(self) -> bool:
        return self._child is not None and self._child.poll() is None

    def start(self) -> None:
        """Start the program, or restart it after it ended; the log continues in the same file."""
        if self.is_running:
            return
        command = self._command
        if self._mount_namespace is not None:
            command = ["nsenter", "--mount", f"--target={self._mount_namespace()}", "--", *command]
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            self._child = subprocess.Popen(
                ["/bin/sh", "-c", _LAUNCHER, "sh", str(self._cgroup.system_procs), *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment,
                start_new_session=True,  # Ctrl-C goes to the caller, which then stops the cluster in order
            )

    def stop(self) -> None:
        """Terminate the program; kill it if it does not end."""
        self._signal(signal.SIGTERM)
        if self._child is not None:
            try:
                self._child.wait(STOP_DEADLINE_S)
            except subprocess.TimeoutExpired:
                self.kill()

    def kill(self) -> None:
        """Kill the program, as a crash would: immediately and without cleanup."""
        self._signal(signal.SIGKILL)
        self.reap()

    def pause(self) -> None:
        """Stop the program with SIGSTOP, as a machine without memory or a stuck disk would, until `resume`."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def reap(self) -> None:
        """Collect the exit status of the dead process, so that no zombie remains."""
        if self._child is not None:
            self._child.wait()

    def must_run(self) -> None:
        """Raise with the end of its log if the program died, because waiting for it would be in vain."""
        if not self.is_running:
            code = self._child.returncode if self._child else "none"
            raise DevclusterError(f"{self.name} died (exit code {code})\n{self.tail(15)}")

    def tail(self, lines: int) -> str:
        """The last lines of its log."""
        with suppress(FileNotFoundError), self.log.open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - 500 * lines))
            return "\n".join(log.read().decode(errors="replace").splitlines()[-lines:])
        return ""

    def _signal(self, number: signal.Signals) -> None:
        if self._child is not None and self._child.poll() is None:
            self._child.send_signal(number)
