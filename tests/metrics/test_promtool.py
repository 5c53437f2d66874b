"""Prometheus' own tool reads our metrics and rules."""

import re
import subprocess
from pathlib import Path

import pytest
import yaml
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from milligpu.metrics.node import GPU_HELP, SHARE_HELP, GpuSample, ShareSample, families
from milligpu.model.reasons import ViolationKind

ROOT = Path(__file__).parents[2]
RULES = ROOT / "deploy" / "prometheus" / "rules.yaml"
COUNTERS = {"energy_joules", "ecc_corrected", "ecc_uncorrected", "xid_errors"}
SHARE_COUNTERS = {"gpu_seconds", "waiting_seconds", "throttled_seconds", "out_of_memory"}


def promtool(*args: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    command = ["promtool", *args]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=60, check=False)


class Everything(Collector):
    """Every metric that an agent can have, once."""

    def collect(self) -> list[Metric]:
        gauges = {name: 1.0 for name in GPU_HELP if name.removeprefix("milligpu_gpu_") not in COUNTERS}
        counters = {name: 1.0 for name in GPU_HELP if name not in gauges}
        counts = dict.fromkeys(map(str, ViolationKind), 1)
        reasons = frozenset({"power"})
        gpu = GpuSample(0, "GPU-a", "A100", "n1", True, gauges, counters, reasons, counts)
        own = {name: 1.0 for name in SHARE_HELP if name not in SHARE_COUNTERS}
        counted = dict.fromkeys(SHARE_COUNTERS, 1.0)
        owners = (("ns", "pod", "c"), ("abc123",))
        return list(families([gpu], [ShareSample(gpu, owner, own, counted) for owner in owners]))


def exposition() -> str:
    registry = CollectorRegistry()
    registry.register(Everything())
    return generate_latest(registry).decode()


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
    known = set(re.findall(r"^(milligpu_\w+?)(?:\{| )", exposition(), re.M))
    assert set(re.findall(r"\bmilligpu_\w+", rule["expr"])) <= known
    if "alert" in rule:
        assert (
            f"alertname: {rule['alert']}\n        exp_alerts"
            in Path(__file__).with_name("rules_test.yaml").read_text()
        )
        assert f"\n### {rule['alert']}\n" in (ROOT / "docs" / "monitoring.md").read_text()
