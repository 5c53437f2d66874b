"""Every page needs an identity, has a JSON twin, and shows people only what they may see."""

import csv
import io
import json
import re
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from milligpu.dashboard.access import COOKIE, DashboardAccess, ViewRights, visible
from milligpu.dashboard.app import NAVIGATION, to_csv
from milligpu.dashboard.metrics import METRICS
from milligpu.model.errors import Unavailable
from milligpu.status.picture import Picture, WaitingRequest
from testing.dashboard import PAGES, MadeUpCluster, RunningDashboard, dashboard

DOCS = Path(__file__).parents[2] / "docs"


class NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


def get(
    served: RunningDashboard, path: str, *, headers: dict[str, str] | None = None, data: bytes | None = None
) -> tuple[int, dict[str, str], str]:
    request = urllib.request.Request(served.url + path, headers=headers or {}, data=data)
    opener = urllib.request.build_opener(NoRedirect)
    try:
        with opener.open(request, timeout=30) as answer:
            return answer.status, dict(answer.headers), answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, dict(error.headers), error.read().decode()


@pytest.fixture(scope="module")
def served() -> Iterator[RunningDashboard]:
    cluster = MadeUpCluster(started=time.time() - 700)
    with dashboard(cluster.picture, past_s=600) as running:
        yield running


@pytest.fixture(scope="module")
def cookie(served: RunningDashboard) -> dict[str, str]:
    status, headers, _ = get(served, f"/open?secret={served.secret}")
    assert status == 303
    assert "HttpOnly" in headers["set-cookie"]
    assert "SameSite=strict" in headers["set-cookie"]
    return {"Cookie": headers["set-cookie"].partition(";")[0]}


FILES = ("/shares.csv", "/history.json?key=all", "/live", "/metrics", "/gpus.json")


@pytest.mark.parametrize("path", [*PAGES.values(), *FILES])
def test_without_an_identity_there_is_no_page(served: RunningDashboard, path: str) -> None:
    status, _, text = get(served, path)
    assert status == 401
    assert "gpu-node" not in text
    assert "vision" not in text


def test_the_secret_works_once(served: RunningDashboard, cookie: dict[str, str]) -> None:
    assert get(served, f"/open?secret={served.secret}")[0] == 401
    assert get(served, "/open?secret=")[0] == 401
    assert get(served, "/", headers=cookie)[0] == 200


@pytest.mark.parametrize(("name", "path"), PAGES.items())
def test_every_page_has_a_json_twin(served: RunningDashboard, cookie: dict[str, str], name: str, path: str) -> None:
    status, headers, text = get(served, path, headers=cookie)
    assert status == 200, text
    assert headers["content-type"].startswith("text/html")
    twin = "/overview.json" if path == "/" else f"{path}.json"
    assert f'href="{twin}"' in text
    status, headers, text = get(served, twin, headers=cookie)
    assert status == 200
    assert headers["content-type"] == "application/json"
    assert json.loads(text)


def test_scripts_and_styles_come_only_from_the_dashboard(served: RunningDashboard, cookie: dict[str, str]) -> None:
    _, headers, text = get(served, "/", headers=cookie)
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "http://" not in text.replace("http://www.w3.org", "")
    assert "https://" not in text
    assert " style=" not in text
    assert "<script>" not in text
    assert headers["cache-control"] == "no-store"


def test_a_long_table_shows_its_first_rows_and_is_filtered_by_the_server() -> None:
    cluster = MadeUpCluster(nodes=100, per_node=8, started=time.time() - 60)
    with dashboard(cluster.picture) as running:
        _, headers, _ = get(running, f"/open?secret={running.secret}")
        mine = {"Cookie": headers["set-cookie"].partition(";")[0]}
        every = json.loads(get(running, "/shares.json", headers=mine)[2])["shares"]
        text = get(running, "/shares", headers=mine)[2]
        assert len(every) > 1000
        assert text.count("<tr data-filter=") == 500
        assert f"500 of {len(every)} are shown" in text
        # A row that is not among the first; what was searched for stays when the page is refreshed.
        text = get(running, "/shares?filter=vision+NODE-100", headers=mine)[2]
        rows = re.findall(r'<tr data-filter="([^"]*)"', text)
        assert rows
        assert all("vision" in row and "gpu-node-100" in row for row in rows)
        assert 'hx-get="/shares?filter=vision+NODE-100"' in text


def test_a_name_that_does_not_exist_is_404(served: RunningDashboard, cookie: dict[str, str]) -> None:
    for path in ("/gpus/GPU-none", "/pods/a/b", "/sessions/x", "/nodes/none", "/pods/a/b.json"):
        assert get(served, path, headers=cookie)[0] == 404


def test_the_history_of_all_gpus_adds_them_up(served: RunningDashboard, cookie: dict[str, str]) -> None:
    _, _, text = get(served, "/history.json?key=all", headers=cookie)
    found = json.loads(text)
    allocated = [each for each in found["lines"][0]["fields"]["allocated"] if each is not None]
    assert allocated[-1] == pytest.approx(8.7, abs=0.01)
    status, _, text = get(served, "/history.json?key=all&range=2y", headers=cookie)
    assert (status, "must be one of 1h, 1d, 90d" in text) == (400, True)


def test_a_request_for_another_host_name_gets_no_page(served: RunningDashboard, cookie: dict[str, str]) -> None:
    assert get(served, "/", headers={**cookie, "Host": "evil.example:80"})[0] == 421


def test_a_form_of_another_site_does_not_log_out(served: RunningDashboard, cookie: dict[str, str]) -> None:
    foreign = {**cookie, "Origin": "http://evil.example"}
    assert get(served, "/logout", headers=foreign, data=b"")[0] == 403
    assert get(served, "/", headers=cookie)[0] == 200


def test_tables_are_csv_and_a_cell_is_no_formula(served: RunningDashboard, cookie: dict[str, str]) -> None:
    _, headers, text = get(served, "/shares.csv", headers=cookie)
    rows = list(csv.DictReader(io.StringIO(text)))
    assert {"name", "share", "used", "verdict"} <= set(rows[0])
    assert headers["content-disposition"] == 'attachment; filename="shares.csv"'
    hostile = WaitingRequest("=cmd|' /C calc'!A0", "+1", "@SUM(1)", "", "-2", 1)
    (row,) = csv.DictReader(io.StringIO(to_csv([hostile])))
    assert row["namespace"].startswith("'=")
    assert row["name"] == "'+1"


def test_verdicts_and_costs_are_metrics_that_prometheus_accepts(
    served: RunningDashboard, cookie: dict[str, str]
) -> None:
    status, headers, text = get(served, "/metrics", headers=cookie)
    assert (status, headers["content-type"].startswith("text/plain; version=0.0.4")) == (200, True)
    assert set(re.findall(r"^# TYPE (\w+) gauge$", text, re.M)) == set(METRICS)
    for gpu in served.collector.picture.gpus if served.collector.picture else ():
        assert len(re.findall(rf'^milligpu_gpu_verdict{{.*UUID="{gpu.uuid}"', text, re.M)) == 1
    idle = r'^milligpu_pod_verdict{namespace="vision",pod="notebook-ana-\d+",verdict="idle"} 1.0$'
    assert re.search(idle, text, re.M)
    found = dict.fromkeys(METRICS, 0.0)
    for name, value in re.findall(r"^(milligpu_\w+cost){[^}]*} (\S+)$", text, re.M):
        found[name] += float(value)
    costs = served.collector.costs
    assert costs is not None
    parts = found["milligpu_owner_cost"] + found["milligpu_unallocated_cost"]
    assert parts == pytest.approx(costs.total.allocated, rel=0.01)
    done = subprocess.run(
        ["promtool", "check", "metrics"], input=text, capture_output=True, text=True, timeout=60, check=False
    )
    said = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    assert [line for line in said if "camelCase" not in line] == []


def test_the_docs_list_every_page_and_every_metric_of_the_dashboard() -> None:
    text = (DOCS / "dashboard.md").read_text()
    listed = set(re.findall(r"`(/[^`]*)`", text.partition("\n## Pages")[2].partition("\n## ")[0]))
    assert {link for link, _ in NAVIGATION} <= listed
    metrics = (DOCS / "monitoring.md").read_text()
    assert set(re.findall(r"^\| `(milligpu_\w+(?:verdict|cost))` \|", metrics, re.M)) == set(METRICS)


def test_the_overview_has_the_formula_of_idle_gpus(served: RunningDashboard, cookie: dict[str, str]) -> None:
    page = json.loads(get(served, "/overview.json", headers=cookie)[2])
    found = page["formula"]
    product = (1 - found["use"]) * found["gpus"] * found["price"] * found["hours"]
    assert page["formula_cost"] == pytest.approx(product)
    assert found["hours"] == 730


def test_queues_are_shown_to_those_who_may_list_them_and_their_users_to_those_who_see_everything() -> None:
    picture = MadeUpCluster().picture(1000.0)
    everything = visible(picture, ViewRights("admin", everything=True)).queues
    some = visible(picture, ViewRights("ana", namespaces=frozenset({"vision"}), queues=True)).queues
    none = visible(picture, ViewRights("ana", namespaces=frozenset({"vision"}))).queues
    assert (len(everything.queues), len(everything.users)) == (2, 2)
    assert (len(some.queues), len(some.users), len(some.of_pods)) == (2, 0, 0)
    assert (len(none.queues), len(none.users), len(none.calendars)) == (0, 0, 0)


def test_pods_of_other_namespaces_have_no_name_and_their_gpus_stay() -> None:
    picture = MadeUpCluster().picture(1000.0)
    seen = visible(picture, ViewRights("ana", namespaces=frozenset({"vision"})))
    assert {use.namespace for use in seen.shares} == {"vision", ""}
    assert len(seen.shares) == len(picture.shares)
    assert {each.namespace for each in seen.waiting} == {"vision"}
    assert sum(use.milli for use in seen.shares) == sum(use.milli for use in picture.shares)
    nothing = visible(picture, ViewRights("nobody"))
    assert {(use.namespace, use.pod, use.container, use.session) for use in nothing.shares} == {("", "", "", "")}


def test_a_person_of_one_namespace_sees_only_its_pods_on_every_page() -> None:
    access = DashboardAccess(owner=ViewRights("ana", namespaces=frozenset({"vision"})))
    cluster = MadeUpCluster(started=time.time() - 700)
    with dashboard(cluster.picture, access=access, past_s=60) as served:
        _, headers, _ = get(served, f"/open?secret={served.secret}")
        mine = {"Cookie": headers["set-cookie"].partition(";")[0]}
        for path in PAGES.values():
            status, _, text = get(served, path, headers=mine)
            assert status == 200
            for foreign in ("speech", "search/", "embedder", "ranker", "finetune", "sweep"):
                assert foreign not in text, (path, foreign)
        assert get(served, "/pods/speech/finetune-7b-5", headers=mine)[0] == 404
        key = "pod/speech/finetune-7b-5/main/GPU-00000005-0000-4000-8000-000000000005"
        assert get(served, f"/history.json?key={key}", headers=mine)[0] == 404
        assert "speech" not in get(served, "/shares.csv", headers=mine)[2]


def test_a_status_that_cannot_be_read_keeps_the_last_one_and_says_so() -> None:
    cluster = MadeUpCluster(started=time.time())
    with dashboard(cluster.picture, interval_s=0.1) as served:
        _, headers, _ = get(served, f"/open?secret={served.secret}")
        mine = {"Cookie": headers["set-cookie"].partition(";")[0]}

        def fail(_at: float) -> Picture:
            raise Unavailable("the API server does not answer")

        served.read[0] = fail
        deadline = time.monotonic() + 30
        while "the API server does not answer" not in get(served, "/", headers=mine)[2]:
            assert time.monotonic() < deadline
        assert "12 GPUs" in get(served, "/gpus", headers=mine)[2]


def test_logins_end(served: RunningDashboard) -> None:
    now = [0.0]
    access = DashboardAccess(owner=ViewRights("me", everything=True), clock=lambda: now[0])
    cookie = access.open(access.secret)
    assert cookie is not None
    assert access.rights({COOKIE: cookie}, "", ()) is not None
    now[0] = 13 * 3600.0
    assert access.rights({COOKIE: cookie}, "", ()) is None
    assert access.rights({}, "Bearer abc", ()) is None


def test_problems_are_shown() -> None:
    cluster = MadeUpCluster(started=time.time())
    with dashboard(lambda at: replace(cluster.picture(at), problems=["n9: its agent is away"])) as served:
        _, headers, _ = get(served, f"/open?secret={served.secret}")
        mine = {"Cookie": headers["set-cookie"].partition(";")[0]}
        assert "n9: its agent is away" in get(served, "/", headers=mine)[2]
