"""The health report: each fault turns exactly its own line, in the guide's groups and words."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from milligpu import __version__
from milligpu.checks import health_gpus as gpus
from milligpu.checks import health_network as network
from milligpu.checks.health import (
    HealthReport,
    HealthWord,
    ServerLink,
    check_consistency,
    check_link,
    from_line,
    health_word,
    local_report,
)
from milligpu.checks.health_gpus import GpuFacts, HealthGpu
from milligpu.checks.health_host import check_open_files
from milligpu.checks.result import CheckLevel, CheckOutcome, CheckResult, noted
from milligpu.cli.health import report_lines
from milligpu.remote.protocol import VERSION, HealthLine, HealthRead

GPU = HealthGpu(0, 16000, 16, 16, 32.0, 0, "", "", stream_memory_operations=True, host_pointer=True)
SLOW = replace(GPU, stream_memory_operations=False)
GOOD = GpuFacts("535.104", 12020, (GPU, replace(GPU, index=1)), 64000)
LINK = ServerLink(HealthRead(__version__, VERSION, 0.0, []), 0.2, 900.0, 0.0, 300.0)
CARD = network.NetworkInterface("eth0", 9000, 10_000, "10.0.0.0/24", {})


def words(results: Iterable[CheckResult]) -> dict[str, HealthWord]:
    return {each.name: health_word(each) for each in results}


def gpu_checks(facts: GpuFacts) -> dict[str, HealthWord]:
    checks = (
        gpus.check_versions,
        gpus.check_memory,
        gpus.check_pcie,
        gpus.check_features,
        gpus.check_stability,
    )
    return words(each for check in checks for each in check(facts))


def test_a_good_server_passes_all_the_guides_checks_of_gpus() -> None:
    assert set(gpu_checks(GOOD).values()) == {HealthWord.PASS}
    assert list(gpu_checks(GOOD)) == [
        "CUDA version >= 9000",
        "GPU driver version >= 440.33",
        "shadow memory 64000MB and total gpu mem 32000MB",
        "PCIe Width",
        "stream memory ops support",
        "host pointer on device support",
        "PCIe P2P support",
        "GPU Xid errors",
        "temperature <= 100.00",
        "GPU ECC errors",
        "compute mode",
    ]


@pytest.mark.parametrize(
    ("facts", "line", "word"),
    [
        (replace(GOOD, cuda=8000), "CUDA version >= 9000", "FATAL"),
        (replace(GOOD, driver="430.5"), "GPU driver version >= 440.33", "FATAL"),
        (replace(GOOD, driver="unknown"), "GPU driver version >= 440.33", "FATAL"),
        (replace(GOOD, memory_mib=1000), "shadow memory 1000MB and total gpu mem 32000MB", "MARGINAL"),
        (replace(GOOD, gpus=(GPU, replace(GPU, index=1, pcie_width=8))), "PCIe Width", "MARGINAL"),
        (replace(GOOD, gpus=(SLOW, SLOW)), "stream memory ops support", "MARGINAL"),
        (replace(GOOD, gpus=(replace(GPU, host_pointer=False),) * 2), "host pointer on device support", "MARGINAL"),
        (replace(GOOD, peers_without_access=((0, 1),)), "PCIe P2P support", "MARGINAL"),
        (replace(GOOD, gpus=(GPU, replace(GPU, index=1, problem="XID 79"))), "GPU Xid errors", "FATAL"),
        (replace(GOOD, gpus=(GPU, replace(GPU, index=1, celsius=101.0))), "temperature <= 100.00", "FATAL"),
        (replace(GOOD, gpus=(GPU, replace(GPU, index=1, ecc_uncorrected=3))), "GPU ECC errors", "FATAL"),
        (replace(GOOD, gpus=(GPU, replace(GPU, index=1, exclusive="prohibited"))), "compute mode", "FATAL"),
    ],
)  # fmt: skip
def test_a_fault_of_a_gpu_turns_exactly_its_line(facts: GpuFacts, line: str, word: str) -> None:
    found = gpu_checks(facts)
    assert {name: each for name, each in found.items() if each is not HealthWord.PASS} == {line: HealthWord(word)}


def test_what_gpus_do_not_report_is_skipped_not_passed() -> None:
    quiet = replace(GOOD, gpus=(HealthGpu(0, 16000),), probe_error="the CUDA driver did not answer")
    found = gpu_checks(quiet)
    skipped = {name for name, word in found.items() if word is HealthWord.SKIPPED}
    assert skipped == {
        "PCIe Width",
        "PCIe P2P support",
        "temperature <= 100.00",
        "stream memory ops support",
        "host pointer on device support",
    }


@pytest.mark.parametrize(
    ("interfaces", "line", "message"),
    [
        ([replace(CARD, mtu=1500)], "MTU Size", "10000Mbps interface eth0 has low MTU: 1500 < 4K"),
        (
            [CARD, replace(CARD, name="eth1", network="10.0.0.128/25")],
            "Interface/Subnet Compatibility",
            "eth0 (10.0.0.0/24) and eth1 (10.0.0.128/25) are in one subnet",
        ),
        (
            [replace(CARD, errors={"/sys/class/net/eth0/statistics/rx_dropped": 7})],
            "Network Errors/Drops",
            "drops reported in file: /sys/class/net/eth0/statistics/rx_dropped (7)",
        ),
    ],
)
def test_a_fault_of_the_network_turns_exactly_its_line(
    interfaces: list[network.NetworkInterface], line: str, message: str
) -> None:
    checks = (network.check_subnets, network.check_mtu, network.check_errors)
    results = [each for check in checks for each in check(interfaces)]
    [bad] = [each for each in results if health_word(each) is not HealthWord.PASS]
    assert (bad.name, bad.message, health_word(bad)) == (line, message, HealthWord.MARGINAL)
    assert bad.fix


def test_interfaces_are_read_from_sysfs_and_virtual_ones_only_in_containers(tmp_path: Path) -> None:
    def add(name: str, *, mtu: int, speed: str, dropped: int, physical: bool) -> None:
        folder = tmp_path / name
        (folder / "statistics").mkdir(parents=True)
        (folder / "mtu").write_text(f"{mtu}\n")
        (folder / "speed").write_text(f"{speed}\n")
        (folder / "statistics/rx_dropped").write_text(f"{dropped}\n")
        if physical:
            (folder / "device").mkdir()

    add("lo", mtu=65536, speed="", dropped=9, physical=False)
    add("veth1", mtu=1500, speed="10000", dropped=5, physical=False)
    assert [each.name for each in network.read_interfaces(tmp_path)] == ["veth1"]
    add("ens1", mtu=1500, speed="-1", dropped=3, physical=True)
    [card] = network.read_interfaces(tmp_path)
    assert (card.name, card.mtu, card.mbps) == ("ens1", 1500, None)
    assert card.errors == {str(tmp_path / "ens1/statistics/rx_dropped"): 3}


@pytest.mark.parametrize(
    ("link", "line", "word"),
    [
        (replace(LINK, round_trip_ms=5.0), "round trip <= 1 ms", "MARGINAL"),
        (replace(LINK, clock_s=45.0), "clock difference", "MARGINAL"),
        (replace(LINK, clock_s=-90.0), "clock difference", "FATAL"),
        (replace(LINK, certificate_days=3.0), "certificate expiry", "MARGINAL"),
        (replace(LINK, certificate_days=None), "certificate expiry", "SKIPPED"),
        (replace(LINK, answer=HealthRead("0.0.1", VERSION, 0.0, [])), "GPU API mismatch", "MARGINAL"),
        (replace(LINK, answer=HealthRead("9.0", VERSION + 1, 0.0, [])), "GPU API mismatch", "FATAL"),
    ],
)
def test_a_fault_between_client_and_server_turns_exactly_its_line(link: ServerLink, line: str, word: str) -> None:
    good = words([*check_link(LINK), *check_consistency(LINK)])
    assert set(good.values()) == {HealthWord.PASS, HealthWord.INFO}
    found = words([*check_link(link), *check_consistency(link)])
    assert {name: each for name, each in found.items() if each != good[name]} == {line: HealthWord(word)}


def test_few_open_files_are_marginal() -> None:
    assert words(check_open_files(4096)) == {"ulimit -n >= 4096": HealthWord.PASS}
    assert words(check_open_files(1024)) == {"ulimit -n >= 4096": HealthWord.MARGINAL}


def test_a_word_of_a_later_release_is_shown_and_not_taken_for_a_failure() -> None:
    assert health_word(from_line(HealthLine("Stability", "new", "grave", "burnt", "what"))) is HealthWord.INFO


def test_the_report_has_the_guides_headings_words_and_totals() -> None:
    results = [
        CheckResult("Stability", "compute mode", CheckLevel.ERROR, CheckOutcome.PASSED, ""),
        replace(noted("bandwidth", "900 MB/s"), group="Performance"),
        CheckResult("Stability", "MTU Size", CheckLevel.WARNING, CheckOutcome.FAILED, "low", "raise it"),
    ]
    assert "\n".join(report_lines(HealthReport("10.0.0.1:7070", results))) == (
        "Health report for server: 10.0.0.1:7070\n=====\n"
        "\nSoftware Versions checks:\n=====\n"
        "\nSystem Resources checks:\n=====\n"
        "\nPerformance checks:\n=====\n[INFO   ] Check bandwidth: 900 MB/s\n"
        "\nStability checks:\n=====\n[PASS   ] Check compute mode\n[MARGINAL] Check MTU Size: low\n"
        "          fix: raise it\n"
        "\nConsistency checks:\n=====\n"
        "\nPASS: 1\nINFO: 1\nSKIPPED: 0\nMARGINAL: 1\nFATAL: 0\n"
    )


def test_this_machine_has_a_report_without_a_fatal_line() -> None:
    assert local_report().totals[HealthWord.FATAL] == 0
