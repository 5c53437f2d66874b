"""Sessions on a GPU server: held to their share there, and gone when any part of them is."""

import json
import os
import signal
import socket
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from milligpu.model.units import BYTES_PER_MIB
from milligpu.remote.token_file import decode_token_file, encode_token_file
from tests.remote.conftest import GpuServer, Holder, wait_for

OUT_OF_MEMORY, DEVICE_UNAVAILABLE = 2, 46
HALF = ("-p", "0.5", "-m", "1Gi")


def command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def processes_with(variable: bytes) -> list[int]:
    """Processes with a variable in their environment."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdigit() and variable in (entry / "environ").read_bytes() + b"\0":
                found.append(int(entry.name))
    return found


def test_a_program_sees_its_share_of_the_memory_and_gets_no_more(
    server: GpuServer, holder: Callable[..., Holder]
) -> None:
    held = holder(*HALF, mib=512)
    assert held.first["status"] == 0
    assert held.first["total"] == 1024 * BYTES_PER_MIB
    assert held.call() == 0
    [session] = server.machine.sessions()
    assert session["command"][0].startswith("alice@127.0.0.1")
    assert holder("-p", "0.2", "-m", "1Gi", mib=1100).first["status"] == OUT_OF_MEMORY


def test_a_share_that_is_not_free_is_refused_or_waited_for(
    server: GpuServer, holder: Callable[..., Holder]
) -> None:
    held = holder("-p", "0.8")
    refused = server.run("run", "--remote", "--no-wait", "-p", "0.5", "--", "true", check=False)
    assert refused.returncode == 75, refused.stderr
    late = server.run("run", "--remote", "--timeout", "1", "-p", "0.5", "--", "true", check=False)
    assert late.returncode == 75, late.stderr
    waiting = server.client("-p", "0.5", "--", "echo", "granted")
    assert waiting.stderr is not None
    assert "waiting for" in waiting.stderr.readline()
    held.process.kill()
    assert waiting.communicate(timeout=60)[0] == "granted\n"


def test_a_killed_client_leaves_nothing(server: GpuServer, holder: Callable[..., Holder]) -> None:
    held = holder(*HALF)
    assert server.processes("milligpu-worker")
    held.process.kill()
    wait_for("the worker to end", lambda: not server.processes("milligpu-worker"))
    wait_for("the host to end", lambda: not server.processes("milligpu.remote.worker"))
    wait_for("the share to be free", lambda: not server.machine.sessions())


def test_a_killed_worker_is_a_cuda_error_not_a_hang(server: GpuServer, holder: Callable[..., Holder]) -> None:
    held = holder(*HALF)
    for pid in server.processes("milligpu-worker"):
        os.kill(pid, signal.SIGKILL)
    assert held.call() == DEVICE_UNAVAILABLE
    assert held.call() == DEVICE_UNAVAILABLE


def test_a_killed_server_is_a_cuda_error_and_leaves_no_session(
    server: GpuServer, holder: Callable[..., Holder]
) -> None:
    held = holder(*HALF)
    server.stop(signal.SIGKILL)
    wait_for("the worker to end", lambda: not server.processes("milligpu-worker"))
    assert held.call() == DEVICE_UNAVAILABLE
    wait_for("the share to be free", lambda: not server.machine.sessions())
    assert server.processes("milligpu-worker") == []
    server.start()
    assert holder(*HALF).call() == 0


def test_a_silent_worker_is_a_cuda_error_not_a_hang(server: GpuServer, holder: Callable[..., Holder]) -> None:
    held = holder(*HALF)
    for pid in server.processes("milligpu-worker"):
        os.kill(pid, signal.SIGSTOP)
    assert held.call() == DEVICE_UNAVAILABLE


def test_a_session_whose_client_is_silent_ends(server: GpuServer, holder: Callable[..., Holder]) -> None:
    held = holder(*HALF)
    # The process that keeps the session open is no child of the command, but of its session's environment.
    marker = f"MILLIGPU_TOKEN_FILE={server.token}\0".encode()
    keepers = [pid for pid in processes_with(marker) if b"run\0--remote" in command_line(pid)]
    assert keepers
    for pid in keepers:
        os.kill(pid, signal.SIGSTOP)
    wait_for("the share to be free", lambda: not server.machine.sessions())
    assert held.call() == DEVICE_UNAVAILABLE
    for pid in keepers:
        os.kill(pid, signal.SIGKILL)


def test_a_session_ends_when_its_token_expires(server: GpuServer) -> None:
    brief = server.make_token("brief", "--expires", "6s")
    held = Holder(server, "--token", str(brief), *HALF)
    assert held.first["status"] == 0
    wait_for("the share to be free", lambda: not server.machine.sessions())
    assert held.call() == DEVICE_UNAVAILABLE


def test_a_session_that_leaves_its_gpu_unused_ends() -> None:
    strict = GpuServer(Path(tempfile.mkdtemp(prefix="mgi-")), 1, "--idle-limit", "3s")
    try:
        held = Holder(strict, *HALF)
        wait_for("the share to be free", lambda: not strict.machine.sessions())
        assert held.call() == DEVICE_UNAVAILABLE
        assert "it was idle for 3 s" in (strict.folder / "server.log").read_text()
    finally:
        strict.close()


def test_a_command_that_ends_frees_its_share_and_keeps_its_exit_code(server: GpuServer) -> None:
    assert server.run("run", "--remote", *HALF, "--", "sh", "-c", "exit 7", check=False).returncode == 7
    wait_for("the share to be free", lambda: not server.machine.sessions())


def test_bitfusion_runs_a_command_and_lists_gpus(server: GpuServer) -> None:
    done = server.run("run", "-n", "1", "-p", "0.5", "--", "echo", "it runs", program="bitfusion")
    assert done.stdout == "it runs\n"
    wait_for("the share to be free", lambda: not server.machine.sessions())
    elsewhere = ("run", "-n", "1", "-p", "0.5", "-l", "127.0.0.1:1;127.0.0.1:2", "--", "true")
    lost = server.run(*elsewhere, program="bitfusion", check=False)
    assert (lost.returncode, "127.0.0.1:" in lost.stderr) == (125, True)
    listed = server.run("list_gpus", program="bitfusion").stdout
    assert server.address in listed
    [gpu, *_] = json.loads(server.run("pool", "list", "-o", "json").stdout)
    assert gpu["model"] in listed
    assert gpu["free"] == "1"
    both = server.run("run", "-n", "1", "-p", "0.5", "-m", "10", "--", "true", program="bitfusion", check=False)
    assert (both.returncode, both.stderr.splitlines()[0]) == (
        2,
        "error: -m: invalid value '10': must be left out where -p is given",
    )


# -- who may ask ---------------------------------------------------------------------------------------------------


def refused(server: GpuServer, token: Path, *options: str) -> str:
    done = server.run("run", "--remote", "--token", str(token), *options, "-p", "0.1", "--", "true", check=False)
    assert done.returncode != 0
    assert server.machine.sessions() == []
    return done.stderr


def test_tokens_that_are_expired_foreign_or_forged_open_nothing(server: GpuServer, tmp_path: Path) -> None:
    brief = server.make_token("brief", "--expires", "1s")
    asks = ("run", "--remote", "--token", str(brief), "-p", "0.1", "--", "true")
    wait_for("the token to expire", lambda: server.run(*asks, check=False).returncode != 0)
    assert "a token that has not expired" in refused(server, brief)
    good = decode_token_file(server.token.read_bytes())
    server.run("pool", "create", "--pool", str(tmp_path / "other"))
    foreign = tmp_path / "foreign.json"
    args = ("pool", "token", "create", "alice", "--pool", str(tmp_path / "other"), "--server", server.address)
    server.run(*args, "-o", str(foreign))
    assert "no trusted connection" in refused(server, foreign)
    mixed = decode_token_file(foreign.read_bytes())
    forged = tmp_path / "forged.json"
    forged.write_text(encode_token_file(type(good)(good.servers, good.authority, mixed.token)))
    assert "its signature is not the pool's" in refused(server, forged)


def test_a_tokens_quota_and_priority_are_held(server: GpuServer, holder: Callable[..., Holder]) -> None:
    token = server.make_token("bob", "--quota", "0.6", "--priority-max", "10")
    holder("--token", str(token), *HALF)
    over = server.run("run", "--remote", "--token", str(token), "-p", "0.2", "--", "true", check=False)
    assert (over.returncode, over.stderr.splitlines()[0]) == (75, "error: bob holds 0.5 GPUs of a quota of 0.6")
    high = server.run(
        "run", "--remote", "--token", str(token), "--priority", "11", "-p", "0.1", "--", "true", check=False
    )
    assert "at most 10, as the token says" in high.stderr


def test_neither_side_speaks_without_tls_unless_it_was_told_to(server: GpuServer) -> None:
    assert "GPU server" in refused(server, server.token, "--plain")


def test_a_server_that_was_told_to_speaks_without_tls() -> None:
    plain = GpuServer(Path(tempfile.mkdtemp(prefix="mgp-")), 1, "--plain")
    try:
        [gpu] = json.loads(plain.run("pool", "list", "--plain", "--servers", plain.address, "-o", "json").stdout)
        assert gpu["free"] == "1"
        done = plain.run("run", "--remote", "--plain", *HALF, "--", "echo", "it runs")
        assert done.stdout == "it runs\n"
        revoke = ("pool", "token", "revoke", "alice", "--pool", str(plain.pool))
        assert "no trusted connection" in plain.run(*revoke, check=False).stderr
        assert "list 2 taken" in plain.run(*revoke, "--plain").stdout
        assert "a token that was not revoked" in refused(plain, plain.token, "--plain")
    finally:
        plain.close()


@pytest.mark.parametrize("name", ["0" * 16, ""])
def test_a_connection_for_an_unknown_session_is_closed(server: GpuServer, name: str) -> None:
    with socket.create_connection(("127.0.0.1", server.port), 10) as connection:
        connection.sendall(b"mgpu-wrk" + name.encode().ljust(32, b"\0"))
        assert connection.recv(1) == b""


def test_a_session_of_somebody_else_does_not_open_without_its_key(
    server: GpuServer, holder: Callable[..., Holder]
) -> None:
    environment = server.client("-p", "0.1", "--", "sh", "-c", "env; read line")
    assert environment.stdout is not None
    lines = iter(environment.stdout.readline, "")
    name = next(line for line in lines if line.startswith("MILLIGPU_REMOTE_SESSION=")).strip().partition("=")[2]
    thief = holder(*HALF)
    assert thief.first["status"] == 0
    stolen = server.client(
        "-p", "0.1", "--", "env", f"MILLIGPU_REMOTE_SESSION={name}", "python3", "-c",
        "import ctypes; print(ctypes.CDLL('libcuda.so.1').cuInit(0))",
    )  # fmt: skip
    assert stolen.communicate(timeout=60)[0] == "100\n"
