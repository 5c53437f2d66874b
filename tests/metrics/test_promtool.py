"""Prometheus' own tool reads our metrics and rules."""

import re
import subprocess
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
import yaml
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from deploy.grafana import BOARDS, expressions
from milligpu.agent.samples import MeasuredGpu, gpu_sample, share_sample
from milligpu.dashboard.metrics import METRICS
from milligpu.metrics.node import families
from milligpu.model.gpu import Gpu
from milligpu.model.reasons import ViolationKind
from milligpu.model.units import Mib
from milligpu.nvml.readings import GpuReading, GpuVitals, RemappedRows, ThrottleReason
from milligpu.nvml.throttle_times import ThrottleSource, ThrottleTime
from milligpu.scheduler.metrics import SchedulerMetrics
from milligpu.tenancy.energy import GpuAccount
from milligpu.wire.status import AcceleratorStats, ShareUsage

ROOT = Path(__file__).parents[2]
RULES = ROOT / "deploy" / "prometheus" / "rules.yaml"
DOCS = ROOT / "docs" / "monitoring.md"
READING = GpuReading(
    GpuVitals(0, "GPU-a", 40, 90, 0, reset_needed=False, millijoules=1000),
    Mib(40960),
    Mib(100),
    **dict.fromkeys(("utilization", "memory_utilization", "milliwatts", "milliwatts_limit"), 1),
    **dict.fromkeys(("clock_mhz", "memory_clock_mhz", "pcie_sent_kbps", "pcie_received_kbps"), 1),
    **dict.fromkeys(("pcie_sent_bytes", "pcie_received_bytes", "pcie_replays", "ecc_corrected"), 1),
    **dict.fromkeys(("nvlink_sent_kib", "nvlink_received_kib", "encoder", "decoder"), 1),
    throttled=frozenset({ThrottleReason.POWER}),
    remapped_rows=RemappedRows(0, 1, pending=True, failed=False),
)
USE = ShareUsage(
    AcceleratorStats("nvidia", "A100", "GPU-a", 1 << 30, 1 << 20, 10),
    500,
    600,
    1024,
    **dict.fromkeys(("memory_peak", "gpu_time_ns", "waiting_ns", "throttled_ns", "refusals"), 1),
    **dict.fromkeys(("energy", "power"), 1.0),
)


def promtool(*args: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    command = ["promtool", *args]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=60, check=False)


class Everything(Collector):
    """Every metric that an agent can have, once, made as the agent makes it."""

    def collect(self) -> list[Metric]:
        gpu = Gpu("GPU-a", "A100", Mib(40960))
        times = ThrottleTime(ThrottleSource.COUNTERS, dict.fromkeys(ThrottleReason, 1.0))
        measured = MeasuredGpu(0, gpu, "n1", READING, 1, times, GpuAccount(energy_j=1.0))
        own = [
            msgspec.structs.replace(USE, **owner) for owner in ({"pod": "p", "namespace": "n"}, {"session": "s"})
        ]
        counts = dict.fromkeys(map(str, ViolationKind), 1)
        sample = replace(gpu_sample(measured, own), violations=counts)
        return list(families([sample], [share_sample(use, sample, gpu) for use in own]))


def exposition() -> str:
    registry = CollectorRegistry()
    registry.register(Everything())
    return generate_latest(registry).decode()


def known() -> set[str]:
    """The names of all series of agents and of the scheduler service."""
    text = exposition() + SchedulerMetrics().text({"waiting": 1})
    return set(re.findall(r"^# TYPE (milligpu_\w+) ", text, re.M)) | {"milligpu_scheduler_binds_total"}


def test_the_docs_list_every_metric_of_an_agent_and_no_other() -> None:
    listed = re.findall(r"^\| `(milligpu_(?:gpu|container|session)_\w+)` \| [^|]+ \|$", DOCS.read_text(), re.M)
    assert sorted(listed) == sorted(set(listed))
    measured = {name for name in known() if re.match(r"milligpu_(gpu|container|session)_", name)}
    # The name that version 0.1.0 had is in the text below the table.
    assert set(listed) - set(METRICS) == measured - {"milligpu_gpu_outside_total"}


def test_the_docs_list_every_recording_rule() -> None:
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    assert set(re.findall(r"^\| `(milligpu:\S+)` \|", DOCS.read_text(), re.M)) == recorded


def test_every_dashboard_uses_metrics_that_exist() -> None:
    for board in BOARDS:
        for expression in expressions(board):
            assert set(re.findall(r"\bmilligpu_\w+", expression)) <= known()


def test_promtool_finds_nothing_but_the_label_that_nvidias_exporter_has_too() -> None:
    done = promtool("check", "metrics", stdin=exposition())
    complaints = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    assert [line for line in complaints if "camelCase" not in line] == []
    assert len({line.split()[0] for line in complaints}) > 10, "the tool read nothing"


def test_the_rules_are_valid_and_every_alert_fires_when_it_should() -> None:
    done = promtool("check", "rules", str(RULES))
    assert done.returncode == 0, done.stdout + done.stderr
    done = promtool("test", "rules", str(Path(__file__).with_name("rules_test.yaml")))
    assert done.returncode == 0, done.stdout + done.stderr


def rules() -> list[dict[str, str]]:
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule.get("alert") or rule.get("record"))
def test_every_rule_uses_metrics_that_exist_and_every_alert_is_tested_and_has_a_runbook(
    rule: dict[str, str],
) -> None:
    assert set(re.findall(r"\bmilligpu_\w+", rule["expr"])) <= known()
    if "alert" in rule:
        assert (
            f"alertname: {rule['alert']}\n        exp_alerts"
            in Path(__file__).with_name("rules_test.yaml").read_text()
        )
        assert f"\n### {rule['alert']}\n" in DOCS.read_text()
