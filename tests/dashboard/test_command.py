"""`milligpu dashboard --machine` in front of real sessions on a software GPU, and what the command refuses."""

import http.client
import json
import os
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urljoin, urlsplit

import pytest

from devcluster.certs import Authority

MILLIGPU = str(Path(sys.executable).parent / "milligpu")
PRICES = 'currency = "EUR"\n[gpu]\n"A10" = 3600.0\n'


def environment(tmp_path: Path) -> dict[str, str]:
    # A socket's path must be short, and tmp_path is not.
    runtime = f"/tmp/mg-dash-{os.getpid()}"
    return {**os.environ, "XDG_RUNTIME_DIR": runtime, "XDG_STATE_HOME": str(tmp_path / "state")}


@contextmanager
def running(command: list[str], env: dict[str, str]) -> Generator[subprocess.Popen[str]]:
    process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.terminate()
        process.communicate(timeout=30)


class Browser:
    """Opens the printed address, keeps the cookie, and reads JSON twins."""

    def __init__(self, url: str) -> None:
        self._host = urlsplit(url).netloc
        answer, _ = self._get(url.partition(self._host)[2], {})
        self._cookie = (answer.getheader("set-cookie") or "").partition(";")[0]

    def _get(self, path: str, headers: dict[str, str]) -> tuple[http.client.HTTPResponse, bytes]:
        connection = http.client.HTTPConnection(self._host, timeout=30)
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        body = answer.read()
        connection.close()
        return answer, body

    def json(self, path: str) -> dict[str, object]:
        answer, body = self._get(path, {"Cookie": self._cookie})
        assert answer.status == 200, body
        return json.loads(body)


@pytest.mark.timeout(180)
def test_a_machine_with_sessions_is_shown_with_its_shares_history_and_cost(tmp_path: Path) -> None:
    env = environment(tmp_path)
    prices = tmp_path / "prices.toml"
    prices.write_text(PRICES)
    options = ["--machine", "--listen", "127.0.0.1:0", "--interval", "0.5", "--prices", str(prices)]
    options += ["--history", str(tmp_path / "history.db"), "--save", str(tmp_path / "report" / "page.html")]
    with (
        running(
            [MILLIGPU, "run", "-p", "0.5", "-m", "1Gi", "--", "sh", "-c", "echo ready; exec sleep 600"], env
        ) as held,
        running(
            [MILLIGPU, "run", "-p", "0.3", "-m", "1Gi", "--", "sh", "-c", "echo ready; exec sleep 600"], env
        ) as too,
    ):
        for each in (held, too):
            assert each.stdout is not None
            assert each.stdout.readline() == "ready\n"
        with running([MILLIGPU, "dashboard", *options], env) as served:
            assert served.stderr is not None
            browser = Browser(served.stderr.readline().split()[1])
            shown = browser.json("/overview.json")
            funnel = shown["funnel"]
            assert isinstance(funnel, dict)
            assert funnel["total"] == 1.0
            assert funnel["allocated"] == pytest.approx(0.8)
            deadline = time.monotonic() + 60
            while (found := browser.json("/owners.json"))["total"] is None or _hours(found, "total") < 7 / 3600:
                assert time.monotonic() < deadline
                time.sleep(0.2)
            # Two sources: the shares of the sessions, and what the service says is free of the GPU.
            parts = [_hours({"cost": row["cost"]}, "cost") for row in found["owners"]]  # type: ignore[index, union-attr]
            assert sum(parts) == pytest.approx(0.8 * _hours(found, "total"), rel=0.01)
            assert sum(parts) + _hours(found, "unallocated") == pytest.approx(_hours(found, "total"), rel=1e-4)
            assert found["currency"] == "EUR"
        # It wrote its page when it ended.
        saved = (tmp_path / "report" / "page.html").read_text()
        assert saved.count("<b>Measured use against the share</b>") == 2
        data = json.loads(saved.partition('id="data">')[2].partition("</script>")[0])
        assert len([key for key in data if key.startswith("session/")]) == 2
        history = ["--machine", "--history", str(tmp_path / "history.db")]
        _costs_add_up(env, [*history, "--prices", str(prices), "--days", "1"])
        # A dashboard measured a moment ago: its history is used. Without one, the command measures.
        advised = milligpu(env, "advise", *history, "-o", "json")
        assert {each["verdict"] for each in json.loads(advised.stdout)} == {"idle"}
        assert "measuring" not in advised.stderr
        none = ["--machine", "--history", str(tmp_path / "none.db")]
        advised = milligpu(env, "advise", *none, "--seconds", "5", "--all", "-o", "json")
        assert "measuring for 5 s" in advised.stderr
        assert {each["kind"] for each in json.loads(advised.stdout)} == {"gpu", "session"}
        idle = [each for each in json.loads(advised.stdout) if each["verdict"] == "idle"]
        assert len(idle) == 2
        # The command that helps does: what is shrunk is given back.
        for each in idle:
            done = milligpu(env, *each["command"].split()[1:], "--machine")
            assert "0.05" in done.stdout


@pytest.mark.timeout(120)
def test_with_a_certificate_the_pages_are_served_over_tls(tmp_path: Path) -> None:
    authority = Authority("authority", tmp_path)
    pair = authority.server("dashboard", ["127.0.0.1"], file="server")
    options = ["--machine", "--listen", "127.0.0.1:0", "--history", str(tmp_path / "history.db")]
    options += ["--tls-cert", str(pair.certificate), "--tls-key", str(pair.key)]
    with running([MILLIGPU, "dashboard", *options], environment(tmp_path)) as served:
        assert served.stderr is not None
        url = served.stderr.readline().split()[1]
        assert url.startswith("https://")
        trust = ssl.create_default_context(cafile=str(authority.certificate))
        with urllib.request.urlopen(urljoin(url, "/healthz"), context=trust, timeout=30) as answer:
            assert answer.read() == b"ok\n"


def milligpu(env: dict[str, str], *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([MILLIGPU, *args], env=env, capture_output=True, text=True, timeout=60, check=True)


def _costs_add_up(env: dict[str, str], options: list[str]) -> None:
    found = json.loads(milligpu(env, "cost", *options, "--by", "holder", "-o", "json").stdout)
    assert len(found["rows"]) == 3
    assert found["currency"] == "EUR"
    parts = sum(row["allocated_cost"] for row in found["rows"])
    assert parts == pytest.approx(found["total"]["allocated_cost"], rel=1e-4)
    by_owner = milligpu(env, "cost", *options, "-o", "csv").stdout.splitlines()
    assert by_owner[0].startswith("name,allocated_hours,used_hours,idle_hours,allocated_cost")
    assert [line.partition(",")[0] for line in by_owner[2:]] == ["unallocated", "total"]
    assert "IDLE COST (EUR)" in milligpu(env, "cost", *options).stdout


def test_without_a_history_the_cost_is_not_zero_but_unknown(tmp_path: Path) -> None:
    command = [MILLIGPU, "cost", "--machine", "--history", str(tmp_path / "none.db")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 125
    assert "no history in" in done.stderr
    assert "hint: only a running dashboard measures: milligpu dashboard --machine" in done.stderr


def _hours(page: dict[str, object], name: str) -> float:
    line = page[name]
    return float(line["allocated_hours"]) if isinstance(line, dict) else 0.0  # pyright: ignore[reportUnknownArgumentType]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--machine", "--listen", "7080"], "--listen: invalid value '7080': must be ADDRESS:PORT"),
        (["--machine", "--listen", "0.0.0.0:0"], "a loopback address, or use --tokens"),
        (["--machine", "--tokens"], "--tokens: invalid value '--machine'"),
        (["--cluster", "--prometheus", "prometheus:9090"], "an address such as http://prometheus:9090"),
        (["--machine", "--act"], "--act: invalid value '--machine'"),
        (["--cluster", "--tokens", "--listen", "0.0.0.0:0"], "--tls-cert: required"),
        (["--machine", "--tls-cert", "x"], "--tls-key: required: both or neither"),
        (["--machine", "--prices", "/none"], "--prices: invalid value '/none'"),
    ],
)
def test_options_that_do_not_fit_are_refused(tmp_path: Path, options: list[str], message: str) -> None:
    done = subprocess.run(
        [MILLIGPU, "dashboard", *options],
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert message in done.stderr
