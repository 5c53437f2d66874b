"""Bitfusion's commands beyond `run`: GPUs that are held for several commands, filters, and `smi`."""

import json
import signal
import sys
from collections.abc import Iterator

import pytest

from milligpu.model.errors import BadRequest
from milligpu.remote.filters import filter_gpus, parse_filter
from milligpu.remote.protocol import GpuList
from milligpu.wire.status import GpuStatus
from tests.remote.conftest import CLIENTS, GpuServer, wait_for

HALF = ("-n", "1", "-p", "0.5")


@pytest.fixture
def user(server: GpuServer) -> Iterator[GpuServer]:
    """The server, whose user holds nothing at the end."""
    yield server
    server.run("release_gpus", program="bitfusion")


def test_requested_gpus_are_held_for_several_commands_until_they_are_released(user: GpuServer) -> None:
    asked = user.run("request_gpus", *HALF, program="bitfusion")
    assert f"1 GPUs of {user.address} are held" in asked.stderr
    [session] = user.machine.sessions()
    program = ("client", "--", sys.executable, str(CLIENTS / "hold.py"), "64")
    for _ in range(2):
        said = json.loads(user.run(*program, program="bitfusion").stdout)
        assert said["status"] == 0
    assert [each["id"] for each in user.machine.sessions()] == [session["id"]]
    again = user.run("request_gpus", *HALF, program="bitfusion", check=False)
    assert (again.returncode, again.stderr.splitlines()[0]) == (75, "error: GPUs are held already")
    user.run("release_gpus", program="bitfusion")
    wait_for("the share to be free", lambda: not user.machine.sessions())
    none = user.run(*program, program="bitfusion", check=False)
    assert "no GPUs are held" in none.stderr
    assert "no GPUs were held" in user.run("release_gpus", program="bitfusion").stderr


def test_gpus_that_nobody_holds_any_more_can_be_requested_again(user: GpuServer) -> None:
    user.run("request_gpus", *HALF, program="bitfusion")
    hold = user.folder / "client/milligpu/bitfusion"
    assert oct(hold.stat().st_mode & 0o777) == "0o700"
    assert oct((hold / "hold.json").stat().st_mode & 0o777) == "0o600"
    user.stop(signal.SIGKILL)
    wait_for("the hold to end", lambda: not list(hold.iterdir()))
    user.start()
    user.run("request_gpus", *HALF, program="bitfusion")
    assert len(user.machine.sessions()) == 1


def test_a_shell_holds_its_gpus_until_it_ends(server: GpuServer) -> None:
    shell = server.client("-p", "0.5", "--", "bash", "-i", env={"PS1": ""})
    assert shell.stdin is not None
    assert shell.stdout is not None
    shell.stdin.write(f"{sys.executable} {CLIENTS / 'hold.py'} 64 < /dev/null\n" * 2)
    shell.stdin.flush()
    assert [json.loads(shell.stdout.readline())["status"] for _ in range(2)] == [0, 0]
    assert len(server.machine.sessions()) == 1
    shell.stdin.write("exit\n")
    shell.stdin.flush()
    wait_for("the share to be free", lambda: not server.machine.sessions())


def test_smi_shows_what_the_gpus_do(server: GpuServer) -> None:
    head, *gpus = server.run("smi", program="bitfusion").stdout.splitlines()
    assert head.split() == ["SERVER", "GPU", "MODEL", "TEMPERATURE", "POWER", "MEMORY", "UTILIZATION"]
    assert len(gpus) == 1
    assert gpus[0].startswith(server.address)
    assert " C " in gpus[0]
    assert "MiB" in gpus[0]


def test_a_filter_leaves_only_the_gpus_that_it_describes(server: GpuServer) -> None:
    [gpu] = json.loads(server.run("pool", "list", "-o", "json").stdout)
    good = ("server.addr=127.0.0.1", f"device.id={gpu['uuid']}", "server.cuda-version>=12", "device.index<1")
    options = [word for each in good for word in ("--filter", each)]
    assert server.run("run", *HALF, *options, "--", "echo", "it runs", program="bitfusion").stdout == "it runs\n"
    for bad in ("server.driver-version<100", "device.name!=" + gpu["model"], "server.hostname=elsewhere"):
        done = server.run("run", *HALF, "--filter", bad, "--", "true", program="bitfusion", check=False)
        assert done.returncode == 75, bad
        assert "no GPU of the servers that answered meets all filters" in done.stderr


def gpus(*models: str, driver: str = "550.54.15", cuda: str = "12.4") -> GpuList:
    found = [GpuStatus(at, f"GPU-{at}", model, 1000, 24_000, 1000, 24_000) for at, model in enumerate(models)]
    return GpuList("gpu-1", found, driver=driver, cuda=cuda)


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("server.addr=10.0.0.1", {"10.0.0.1:7070": ["GPU-0", "GPU-1"]}),
        ("server.addr!=10.0.0.1", {}),
        ("server.hostname='gpu-1'", {"10.0.0.1:7070": ["GPU-0", "GPU-1"]}),
        ("server.cuda-version>=12.4", {"10.0.0.1:7070": ["GPU-0", "GPU-1"]}),
        ("server.cuda-version=12.4.0", {"10.0.0.1:7070": ["GPU-0", "GPU-1"]}),
        ("server.cuda-version>12.10", {}),
        ("server.driver-version<551", {"10.0.0.1:7070": ["GPU-0", "GPU-1"]}),
        ("device.name=Tesla T4", {"10.0.0.1:7070": ["GPU-1"]}),
        ('device.name != "Tesla T4"', {"10.0.0.1:7070": ["GPU-0"]}),
        ("device.index>0", {"10.0.0.1:7070": ["GPU-1"]}),
        ("device.id=GPU-0", {"10.0.0.1:7070": ["GPU-0"]}),
        ("device.physical-memory>25000", {"10.0.0.1:7070": ["GPU-0", "GPU-1"]}),
        ("device.physical-memory>26000", {}),
    ],
)
def test_each_key_of_a_filter_means_what_bitfusion_means(text: str, left: dict[str, list[str]]) -> None:
    found = filter_gpus([parse_filter(text)], {"10.0.0.1:7070": gpus("NVIDIA A10", "Tesla T4")})
    assert {server: [gpu.uuid for gpu in each.gpus] for server, each in found.items()} == left


def test_a_server_that_does_not_say_its_version_meets_no_lower_bound() -> None:
    assert filter_gpus([parse_filter("server.cuda-version>=11")], {"a:1": gpus("NVIDIA A10", cuda="")}) == {}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "device.name",
        "server.has-rdma=true",
        "device.name>A",
        "server.cuda-version=new",
        "device.index=one",
        "x=1",
    ],
)
def test_a_filter_that_is_not_understood_is_refused(text: str) -> None:
    with pytest.raises(BadRequest) as refused:
        parse_filter(text)
    assert refused.value.field == "--filter"
