"""The other end of the agent's socket: finds an agent, or starts one."""

import fcntl
import socket
import subprocess
import sys
import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from milligpu.agent import protocol
from milligpu.agent.places import SERVICE, Places
from milligpu.agent.processes import SESSION_VARIABLE
from milligpu.agent.protocol import Answer, Granted, Queued, Refused, Request, Take
from milligpu.model.errors import Unavailable

# An agent that a command started stays so long: a script's next command then finds it and its software GPU.
_IDLE_SECONDS = 10.0
# Starting takes a second or two on a busy machine.
_START_SECONDS = 30.0
_LOOK_SECONDS = 0.05
# One agent of a node takes over from another in less.
_NODE_SECONDS = 5.0
_NODE_HINT = "start it: milligpu agent; where the machine left the cluster, remove /run/milligpu/agent/node"
# The agent looks for GPUs, and may have to start one, before its first answer.
_ANSWER_SECONDS = 60.0
# An agent may be killed, and its successor too; more often than this it has a fault.
_TRIES = 5


class Client:
    """Talks to this machine's agent."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self._env = env

    def ask(self, request: Request) -> Answer:
        """One question, one answer; a refusal is raised. Who met an agent that was just stopping asks the next."""
        for _ in range(_TRIES):
            with suppress(TimeoutError):
                for answer in self._answers(request, time.monotonic() + _ANSWER_SECONDS):
                    return _checked(answer)
        raise self._silent()

    def _silent(self) -> Unavailable:
        return Unavailable("the agent does not answer", hint=f"its log: {Places.own(self._env).log}")

    def take(self, request: Take, deadline: float | None) -> Iterator[Queued | Granted]:
        """Ask for a share: how we stand whenever that changes, and in the end the share.

        If the agent is killed meanwhile, its successor is asked again; it knows what we were granted.
        """
        unanswered = 0
        while unanswered < _TRIES:
            unanswered += 1
            for answer in self._answers(request, deadline):
                unanswered = 0
                checked = _checked(answer)
                assert isinstance(checked, Queued | Granted)
                yield checked
                if isinstance(checked, Granted):
                    return
        raise self._silent()

    def _answers(self, request: Request, deadline: float | None) -> Iterator[Answer]:
        """All that is said, until the other end leaves; TimeoutError at the deadline."""
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
        own = Places.own(self._env)
        deadline = time.monotonic() + _START_SECONDS
        while (connection := self._connected(own)) is None:
            if time.monotonic() > deadline:
                raise Unavailable("the agent does not start", hint=f"its log: {own.log}")
            if Places(SERVICE).node.exists():
                # On a cluster node only its own agent knows what pods have.
                if time.monotonic() > deadline - _START_SECONDS + _NODE_SECONDS:
                    raise Unavailable("this is a cluster node, and its agent does not answer", hint=_NODE_HINT)
                time.sleep(_LOOK_SECONDS)
                continue
            with _alone(own.starting):
                # Whoever had the lock before us may have started one.
                connection = self._connected(own)
                if connection is not None:
                    return connection
                self._start(own)
            time.sleep(_LOOK_SECONDS)
        return connection

    @staticmethod
    def _connected(own: Places) -> socket.socket | None:
        for places in (Places(SERVICE), own):
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            with suppress(OSError):
                connection.connect(str(places.socket))
                return connection
            connection.close()
        return None

    def _start(self, places: Places) -> None:
        """Start an agent; it returns at once when there is one already."""
        command = [sys.executable, "-m", "milligpu.agent", str(places.folder), "--idle", str(_IDLE_SECONDS)]
        # numpy's threads would cost an agent more than they bring, and must not be there when it forks.
        env = {**_outside(self._env, places), "OPENBLAS_NUM_THREADS": "1"}
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, env=env, cwd="/"
        )
        if done.returncode > 0:  # one that was killed says nothing against the next
            reason = (done.stderr.strip() or "no reason given").splitlines()[-1]
            raise Unavailable(f"the agent did not start: {reason}")


@contextmanager
def _alone(lock: Path) -> Generator[None]:
    """One at a time: a hundred commands that find no agent must not start a hundred."""
    lock.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _outside(env: Mapping[str, str], places: Places) -> dict[str, str]:
    """The environment without what belongs to a session: an agent that a session's command starts is outside it."""
    path = [part for part in env.get("LD_LIBRARY_PATH", "").split(":") if not part.startswith(str(places.sessions))]
    clean = {name: value for name, value in env.items() if name not in (SESSION_VARIABLE, "LD_LIBRARY_PATH")}
    return {**clean, "LD_LIBRARY_PATH": ":".join(path)} if any(path) else clean


def _checked(answer: Answer) -> Answer:
    if isinstance(answer, Refused):
        raise protocol.error(answer)
    return answer
