"""The client of the session service: finds the service, or starts one."""

import fcntl
import socket
import subprocess
import sys
import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from milligpu.model.errors import Unavailable
from milligpu.sessions import protocol
from milligpu.sessions.members import SESSION_VARIABLE
from milligpu.sessions.paths import SERVICE, ServicePaths
from milligpu.sessions.protocol import Answer, Request, RequestRefused, RequestShare, ShareGranted, ShareQueued

# A service that a command started stays this long, so a script's next command finds it and its software GPU.
_IDLE_SECONDS = 10.0
# Starting takes a second or two on a busy machine.
_START_SECONDS = 30.0
_LOOK_SECONDS = 0.05
# A node's agent takes over from another in less.
_NODE_SECONDS = 5.0
_NODE_HINT = "start it: milligpu agent; where the machine left the cluster, remove /run/milligpu/agent/node"
# Before its first answer the service discovers the GPUs, and may start a software GPU.
_ANSWER_SECONDS = 60.0
# The service may be killed, and the next one, too; more often than this it has a fault.
_TRIES = 5


class SessionClient:
    """Talks to this machine's session service."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self._env = env

    def is_running(self) -> bool:
        """Whether a session service is there, or must be because this is a cluster node."""
        connection = self._connected(ServicePaths.own(self._env))
        if connection is not None:
            connection.close()
        return connection is not None or ServicePaths(SERVICE).node.exists()

    def ask(self, request: Request) -> Answer:
        """Send one request and return the answer, or raise the refusal.

        A service that is just stopping is asked again.
        """
        for _ in range(_TRIES):
            with suppress(TimeoutError):
                for answer in self._answers(request, time.monotonic() + _ANSWER_SECONDS):
                    return _checked(answer)
        raise self._silent()

    def _silent(self) -> Unavailable:
        return Unavailable(
            "the session service does not answer", hint=f"its log is {ServicePaths.own(self._env).log}"
        )

    def take(self, request: RequestShare, deadline: float | None) -> Iterator[ShareQueued | ShareGranted]:
        """Ask for a share: yields the place in the queue whenever it changes, and in the end the share.

        If the service is killed meanwhile, the next one is asked; it knows what was granted.
        """
        unanswered = 0
        while unanswered < _TRIES:
            unanswered += 1
            for answer in self._answers(request, deadline):
                unanswered = 0
                checked = _checked(answer)
                assert isinstance(checked, ShareQueued | ShareGranted)
                yield checked
                if isinstance(checked, ShareGranted):
                    return
        raise self._silent()

    def _answers(self, request: Request, deadline: float | None) -> Iterator[Answer]:
        """Yield all answers until the service disconnects; TimeoutError at the deadline."""
        with closing(self._connect()) as connection, suppress(ConnectionError):
            connection.sendall(protocol.encode(request))
            with connection.makefile("rb") as lines:
                while True:
                    if deadline is not None:
                        connection.settimeout(max(0.001, deadline - time.monotonic()))
                    line = lines.readline(protocol.LINE_MAX)
                    if not line:
                        return
                    yield protocol.decode_answer(line)

    def _connect(self) -> socket.socket:
        own = ServicePaths.own(self._env)
        deadline = time.monotonic() + _START_SECONDS
        while (connection := self._connected(own)) is None:
            if time.monotonic() > deadline:
                raise Unavailable("the session service does not start", hint=f"its log is {own.log}")
            if ServicePaths(SERVICE).node.exists():
                # On a cluster node only the agent knows what pods hold.
                if time.monotonic() > deadline - _START_SECONDS + _NODE_SECONDS:
                    raise Unavailable("this is a cluster node, and its agent does not answer", hint=_NODE_HINT)
                time.sleep(_LOOK_SECONDS)
                continue
            with _alone(own.starting):
                # The process that had the lock before may have started one.
                connection = self._connected(own)
                if connection is not None:
                    return connection
                self._start(own)
            time.sleep(_LOOK_SECONDS)
        return connection

    @staticmethod
    def _connected(own: ServicePaths) -> socket.socket | None:
        for places in (ServicePaths(SERVICE), own):
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            with suppress(OSError):
                connection.connect(str(places.socket))
                return connection
            connection.close()
        return None

    def _start(self, places: ServicePaths) -> None:
        """Start a service; the command returns at once when one runs already."""
        command = [sys.executable, "-m", "milligpu.sessions", str(places.folder), "--idle", str(_IDLE_SECONDS)]
        # numpy's threads cost the service more than they bring, and must not run when it forks.
        env = {**_outside(self._env, places), "OPENBLAS_NUM_THREADS": "1"}
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, env=env, cwd="/"
        )
        if done.returncode > 0:  # not when it was killed: then the next start may succeed
            reason = (done.stderr.strip() or "no reason given").splitlines()[-1]
            raise Unavailable(f"the session service did not start: {reason}")


@contextmanager
def _alone(lock: Path) -> Generator[None]:
    """Let one command at a time start a service, so a hundred commands do not start a hundred."""
    lock.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _outside(env: Mapping[str, str], places: ServicePaths) -> dict[str, str]:
    """The environment without that of a session: a service that a session's command starts is not part of it."""
    path = [part for part in env.get("LD_LIBRARY_PATH", "").split(":") if not part.startswith(str(places.sessions))]
    clean = {name: value for name, value in env.items() if name not in (SESSION_VARIABLE, "LD_LIBRARY_PATH")}
    return {**clean, "LD_LIBRARY_PATH": ":".join(path)} if any(path) else clean


def _checked(answer: Answer) -> Answer:
    if isinstance(answer, RequestRefused):
        raise protocol.to_error(answer)
    return answer
