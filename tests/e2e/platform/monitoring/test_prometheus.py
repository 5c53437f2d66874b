"""A real Prometheus scrapes the real node: parts add up, rules work, and every query of every board has data."""

import json
import re
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from deploy.grafana import BOARDS, Board, expressions
from devcluster.fixtures import new_namespace
from devcluster.platform import Platform
from devcluster.wait import until
from milligpu.history.prometheus import PrometheusHistory
from milligpu.history.samples import HistoryLine, Level
from milligpu.model import names
from tests.e2e.busy import start_busy, wait_busy
from tests.e2e.platform.monitoring.prometheus import Prometheus, metrics_page, running_prometheus, scrape
from tests.e2e.platform.pods import wait_running

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

WINDOW_S = 5.0
"""Over which time and energy are compared. Each scrape divides them anew, so a longer one shows nothing more."""
DATA_S = 60.0
MILLIGPU = str(Path(sys.executable).parent / "milligpu")
Series = dict[tuple[tuple[str, str], ...], float]


@pytest.fixture(scope="module")
def watched(platform: Platform, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Prometheus]]:
    """Two busy pods of different shares on one GPU, and Prometheus: the namespace and the server."""
    jobs = {"milligpu-agent": platform.nodes[0].url, "milligpu-scheduler": platform.service.url}
    with new_namespace(platform.cluster) as namespace:
        together = {names.AFFINITY: namespace, names.EXCLUSION: namespace}
        pods: dict[str, dict[str, Any]] = {
            "large": {"annotations": together, "limits": {names.VGPU: 500}},
            "small": {"annotations": together, "limits": {names.VGPU: 200}},
        }
        start_busy(platform.cluster, namespace, pods)
        wait_running(platform.cluster, namespace, len(pods))
        wait_busy(platform.nodes[0], namespace, len(pods))
        with running_prometheus(tmp_path_factory.mktemp("prometheus"), jobs) as server:
            yield namespace, server


def by_gpu(found: dict[str, Series], name: str) -> dict[str, float]:
    """The sum of a metric over all holders of each GPU."""
    sums: dict[str, float] = {}
    for labels, value in found.get(name, {}).items():
        uuid = dict(labels)["UUID"]
        sums[uuid] = sums.get(uuid, 0.0) + value
    return sums


def held(found: dict[str, Series], name: str) -> dict[str, float]:
    """The same over containers and sessions."""
    parts = [by_gpu(found, f"milligpu_{holder}_{name}") for holder in ("container", "session")]
    return {uuid: sum(part.get(uuid, 0.0) for part in parts) for uuid in {uuid for part in parts for uuid in part}}


def test_pods_and_sessions_and_the_unallocated_rest_are_the_gpu(
    platform: Platform, watched: tuple[str, Prometheus]
) -> None:
    _, before = scrape(platform.nodes[0].url)
    start = by_gpu(before, "milligpu_gpu_shared_seconds_total")

    def later() -> dict[str, Series] | None:
        _, found = scrape(platform.nodes[0].url)
        now = by_gpu(found, "milligpu_gpu_shared_seconds_total")
        busy = held(found, "gpu_seconds_total")
        return found if all(now[gpu] - start[gpu] >= WINDOW_S for gpu in busy) else None

    after = until("some seconds of GPU time to pass", later, 60)
    gpus = held(after, "gpu_seconds_total")
    assert gpus
    for found in (before, after):
        memory, total = (
            by_gpu(found, "milligpu_gpu_unallocated_memory_bytes"),
            by_gpu(found, "milligpu_gpu_memory_total_bytes"),
        )
        ratio, capacity = (
            by_gpu(found, "milligpu_gpu_unallocated_ratio"),
            by_gpu(found, "milligpu_gpu_capacity_ratio"),
        )
        for gpu in total:
            assert held(found, "memory_limit_bytes").get(gpu, 0) + memory[gpu] == total[gpu]
            assert held(found, "share_ratio").get(gpu, 0) + ratio[gpu] == pytest.approx(capacity[gpu])

    def grown(of: Any, name: str) -> dict[str, float]:
        return {gpu: of(after, name)[gpu] - of(before, name).get(gpu, 0.0) for gpu in gpus}

    passed, idle = (
        grown(by_gpu, "milligpu_gpu_shared_seconds_total"),
        grown(by_gpu, "milligpu_gpu_idle_seconds_total"),
    )
    charged = grown(held, "gpu_seconds_total")
    energy = grown(by_gpu, "milligpu_gpu_energy_joules_total")
    nobody = grown(by_gpu, "milligpu_gpu_unallocated_energy_joules_total")
    holders = grown(held, "energy_joules_total")
    for gpu in gpus:
        assert charged[gpu] + idle[gpu] == pytest.approx(passed[gpu], rel=0.01)
        assert holders[gpu] + nobody[gpu] == pytest.approx(energy[gpu], rel=0.01)
        assert holders[gpu] > 0


def test_promtool_finds_nothing_but_the_label_that_nvidias_exporter_has_too(
    platform: Platform, watched: tuple[str, Prometheus]
) -> None:
    text = metrics_page(platform.nodes[0].url)
    done = subprocess.run(
        ["promtool", "check", "metrics"], input=text, capture_output=True, text=True, timeout=60, check=False
    )
    complaints = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    assert [line for line in complaints if "camelCase" not in line] == []
    assert complaints, "the tool read nothing"


def test_every_rule_is_evaluated_and_every_recorded_series_has_data(watched: tuple[str, Prometheus]) -> None:
    server = watched[1]
    rules = [rule for group in server.ask("rules")["groups"] for rule in group["rules"]]
    recorded = [rule["name"] for rule in rules if rule["type"] == "recording"]
    assert recorded
    until("every rule to be evaluated", lambda: healthy(server), DATA_S)
    for name in recorded:
        until(f"{name} to have data", lambda name=name: server.query(name), DATA_S)


def healthy(server: Prometheus) -> bool:
    rules = [rule for group in server.ask("rules")["groups"] for rule in group["rules"]]
    assert [rule["lastError"] for rule in rules if rule.get("lastError")] == []
    return all(rule["health"] == "ok" for rule in rules)


def filled(expression: str) -> str:
    """A query as Grafana sends it: everything is chosen."""
    text = expression.replace("$__rate_interval", "1m").replace("$price", "2.00")
    return re.sub(r"\$(node|gpu|namespace|pod)", ".*", text)


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.name)
def test_every_query_of_a_dashboard_returns_data(board: Board, watched: tuple[str, Prometheus]) -> None:
    server = watched[1]
    for expression in map(filled, expressions(board)):
        until(f"data for {expression}", lambda text=expression: server.query(text), DATA_S)


def test_a_dashboard_with_prometheus_shows_what_it_has_and_keeps_no_file(
    platform: Platform, watched: tuple[str, Prometheus], tmp_path: Path
) -> None:
    namespace, server = watched
    history, begin = PrometheusHistory(server.url, time.time), time.time()

    def measured() -> list[HistoryLine] | None:
        lines = list(history.lines(Level.RAW, begin - 120, prefix=f"pod/{namespace}/"))
        return lines if len(lines) == 2 and not any(np.isnan(each.values("used")).all() for each in lines) else None

    lines = {line.key.split("/")[2]: line for line in until("the use of both pods", measured, DATA_S)}
    assert lines["large"].values("share")[-1] == pytest.approx(0.5)
    assert lines["small"].values("limit")[-1] >= 0.2
    gpu = lines["large"].key.rpartition("/")[2]
    whole = history.line(Level.RAW, begin - 120, f"gpu/{gpu}")
    assert whole is not None
    assert whole.values("allocated")[-1] == pytest.approx(0.7)
    assert whole.labels["model"]
    assert history.line(Level.RAW, begin - 120, "gpu/none") is None
    file = tmp_path / "history.db"
    options = ["--listen", "127.0.0.1:0", "--interval", "1", "--history", str(file), "--prometheus", server.url]
    command = [MILLIGPU, "dashboard", "--cluster", "--kubeconfig", str(platform.cluster.kubeconfig), *options]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        url = process.stderr.readline().split()[-1]
        opener.open(url, timeout=60).close()
        base = url.partition("/open")[0]

        def drawn() -> bool:
            query = urllib.parse.urlencode({"key": lines["large"].key})
            with opener.open(f"{base}/history.json?{query}", timeout=60) as answer:
                found = json.load(answer)["lines"]
            return bool(found) and any(found[0]["fields"]["used"])

        until("the chart of a pod", drawn, DATA_S)
        with opener.open(f"{base}/settings.json", timeout=60) as answer:
            assert json.load(answer)["history_file"] == server.url
    finally:
        process.terminate()
        process.communicate(timeout=30)
    assert not file.exists()


def test_nothing_of_a_deleted_pod_stays(platform: Platform, watched: tuple[str, Prometheus]) -> None:
    namespace, _ = watched
    platform.cluster.kubectl("delete", "pod", "small", "-n", namespace, "--grace-period=0", "--force")

    def gone() -> bool:
        _, found = scrape(platform.nodes[0].url)
        labels = [dict(labels) for series in found.values() for labels in series]
        mine = {each["pod"] for each in labels if each.get("namespace") == namespace}
        return mine == {"large"}

    until("the deleted pod to leave every metric", gone, 60)
