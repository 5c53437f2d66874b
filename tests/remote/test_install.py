"""`milligpu server install` and `milligpu doctor --server`."""

import json
import shlex
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.remote.conftest import BIN, free_port
from tests.sessions.conftest import Machine, wait_for


@pytest.fixture
def machine() -> Iterator[Machine]:
    found = Machine(Path(tempfile.mkdtemp(prefix="mgs-")))
    yield found
    found.close()


@pytest.fixture
def install(machine: Machine, tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    def run(*options: str, port: int = 7070, answer: str = "") -> subprocess.CompletedProcess[str]:
        address = f"127.0.0.1:{port}"
        places = ("--pool", str(tmp_path / "pool"), "-o", str(tmp_path / "token.json"), "--unit-dir", str(tmp_path))
        return machine.run(
            "server", "install", "--address", address, "--listen", address, *places, *options, input=answer
        )

    return run


def test_everything_is_shown_and_nothing_is_written_without_a_yes(
    install: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    done = install(answer="n\n")
    assert done.returncode == 0
    assert "nothing was written" in done.stderr
    for shown in (f"# {tmp_path}/pool: ", f"# {tmp_path}/token.json: ", "[Service]", "ExecStart="):
        assert shown in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_the_installed_unit_starts_a_server_that_takes_the_first_token(
    install: Callable[..., subprocess.CompletedProcess[str]], machine: Machine, tmp_path: Path
) -> None:
    port = free_port("127.0.0.1")
    assert install(port=port, answer="y\n").returncode == 0
    unit = (tmp_path / "milligpu-server.service").read_text()
    if shutil.which("systemd-analyze"):
        checked = subprocess.run(
            ["systemd-analyze", "verify", tmp_path / "milligpu-server.service"],
            check=False,
            capture_output=True,
            text=True,
        )
        assert "milligpu-server" not in checked.stderr, checked.stderr
    [start] = [line.partition("=")[2] for line in unit.splitlines() if line.startswith("ExecStart=")]
    machine.run("softgpu", "up", "--memory", "4Gi")
    command = [*shlex.split(start), "--state-dir", str(tmp_path / "state")]
    doctor = ("doctor", "--server", "--server-address", f"127.0.0.1:{port}", "--pool", str(tmp_path / "pool"))

    def answer() -> dict[str, str]:
        results = json.loads(machine.run(*doctor, "-o", "json").stdout)
        return next(each for each in results if each["name"] == "answer")

    before = answer()
    assert (before["result"], "systemctl start" in before["fix"]) == ("failed", True)
    with subprocess.Popen(command, env=machine.env, stderr=subprocess.DEVNULL, start_new_session=True) as server:
        try:
            wait_for("the server", lambda: answer()["result"] == "passed")
            assert "serves 1 GPUs, driver " in answer()["message"]
            token = ("--token", str(tmp_path / "token.json"))
            done = machine.run("run", "--remote", *token, "-p", "0.5", "--", "echo", "it runs")
            assert (done.returncode, done.stdout) == (0, "it runs\n"), done.stderr
        finally:
            server.send_signal(signal.SIGTERM)
    first = {path: path.read_bytes() for path in (tmp_path / "token.json", tmp_path / "pool/authority.key")}
    again = install(port=port)
    assert (again.returncode, "all is installed already" in again.stderr) == (0, True)
    other = install("--yes", "--token", "other", port=port + 1)
    assert other.returncode == 0
    assert "authority" not in other.stdout, "a pool is never replaced"
    assert {path: path.read_bytes() for path in first} == first


def test_doctor_says_what_a_gpu_server_lacks(machine: Machine, tmp_path: Path) -> None:
    machine.run("softgpu", "up", "--memory", "4Gi")
    pool = tmp_path / "pool"
    args = ("doctor", "--server", "--server-address", f"127.0.0.1:{free_port('127.0.0.1')}", "--pool", str(pool))

    def found() -> dict[str, dict[str, str]]:
        done = machine.run(*args, "-o", "json")
        assert done.returncode == 1
        return {each["name"]: each for each in json.loads(done.stdout)}

    assert found()["authority"]["result"] == "failed"
    subprocess.run([BIN / "milligpu", "pool", "create", "--pool", pool], check=True, capture_output=True)
    assert found()["authority"]["result"] == "passed"
    pool.chmod(0o755)
    assert found()["authority"]["fix"] == f"chmod 700 {pool}"
    both = machine.run("doctor", "--server", "--cluster")
    assert (both.returncode, "left out where --server is given" in both.stderr) == (2, True)
