"""The health of a real server with software GPUs: faults that are injected turn the right lines."""

import json
from typing import Any

import pytest

from tests.remote.conftest import GpuServer, wait_for


@pytest.fixture(scope="module")
def devices() -> int:
    return 2


def report(server: GpuServer, *options: str) -> tuple[int, dict[str, str], dict[str, Any]]:
    """Exit code, the word of each line of the server's report, and the whole report."""
    done = server.run("health", *options, "-o", "json", check=False)
    [first, *_] = json.loads(done.stdout)
    return done.returncode, {each["check"]: each["result"] for each in first["results"]}, first


def test_faults_of_a_servers_gpus_turn_exactly_their_lines(server: GpuServer) -> None:
    code, good, whole = report(server)
    assert (code, whole["machine"], whole["totals"]["FATAL"]) == (0, server.address, 0)
    assert good["GPU Xid errors"] == good["temperature <= 100.00"] == good["GPU ECC errors"] == "PASS"
    assert good["PCIe P2P support"] == good["GPU API mismatch"] == good["certificate expiry"] == "PASS"
    assert good["bandwidth"] == "INFO"
    # Lines that name what is free now change with other programs of this machine.
    fixed = {name: word for name, word in good.items() if not name.startswith("shadow memory")}

    def changed() -> dict[str, str]:
        code, now, _ = report(server)
        assert code == int("FATAL" in now.values())
        return {name: now[name] for name, word in fixed.items() if now[name] != word}

    server.machine.run("softgpu", "fault", "1", "--temperature", "105")
    server.machine.run("softgpu", "fault", "0", "--ecc", "2")
    assert changed() == {"temperature <= 100.00": "FATAL", "GPU ECC errors": "FATAL"}
    server.machine.run("softgpu", "fault", "0", "--clear")
    server.machine.run("softgpu", "fault", "1", "--clear")
    server.machine.run("softgpu", "fault", "1", "--xid", "79")
    wait_for("the XID to be reported", lambda: changed() == {"GPU Xid errors": "FATAL"})
    server.machine.run("softgpu", "fault", "1", "--clear")


def test_a_server_that_does_not_answer_is_fatal_and_the_others_are_reported(server: GpuServer) -> None:
    done = server.run("health", "--servers", f"{server.address},127.0.0.1:1", check=False)
    assert done.returncode == 1
    assert "[FATAL  ] Check connection: GPU server 127.0.0.1:1: Connection refused" in done.stdout
    reports = [line for line in done.stdout.splitlines() if line.startswith("Health report")]
    assert reports == [
        f"Health report for server: {server.address}",
        "Health report for server: 127.0.0.1:1",
        "Health report for localhost",
    ]


def test_bitfusion_health_prints_the_same_report_and_a_machine_can_be_checked_alone(server: GpuServer) -> None:
    same = server.run("health", program="bitfusion").stdout
    assert same.startswith(
        f"Health report for server: {server.address}\n=====\n\nSoftware Versions checks:\n=====\n"
    )
    assert same.count("PASS: ") == 2
    alone = server.run("health", "--local").stdout
    assert alone.startswith("Health report for localhost\n")
    both = server.run("health", "--local", "--servers", server.address, check=False)
    assert (both.returncode, "--local" in both.stderr) == (2, True)
