"""A real Prometheus that scrapes a cluster, and questions to it."""

import json
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from devcluster.platform import free_port
from devcluster.wait import until

RULES = Path(__file__).parents[4] / "deploy" / "prometheus" / "rules.yaml"
READY_S = 30.0


class Prometheus:
    """A running server."""

    def __init__(self, url: str) -> None:
        self.url = url

    def ask(self, path: str, **parameters: str) -> Any:
        """The data of an answer of its API."""
        text = urllib.parse.urlencode(parameters)
        with urllib.request.urlopen(f"{self.url}/api/v1/{path}?{text}", timeout=10) as answer:
            return json.load(answer)["data"]

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The series that an expression has now."""
        return self.ask("query", query=expression)["result"]

    def ready(self) -> bool:
        """Whether it answers."""
        try:
            with urllib.request.urlopen(f"{self.url}/-/ready", timeout=5) as answer:
                return answer.status == 200
        except (urllib.error.URLError, OSError):
            return False


@contextmanager
def running_prometheus(folder: Path, jobs: Mapping[str, str]) -> Generator[Prometheus]:
    """Scrape each URL every two seconds, with our rules, until the end of the block."""
    config = {
        "global": {"scrape_interval": "2s", "evaluation_interval": "2s"},
        "rule_files": [str(RULES)],
        "scrape_configs": [
            {
                "job_name": name,
                "honor_labels": True,
                "scheme": urllib.parse.urlsplit(url).scheme,
                "tls_config": {"insecure_skip_verify": True},
                "static_configs": [{"targets": [urllib.parse.urlsplit(url).netloc]}],
            }
            for name, url in jobs.items()
        ],
    }
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    address = f"127.0.0.1:{free_port()}"
    command = ["prometheus", f"--config.file={folder / 'prometheus.yml'}", f"--web.listen-address={address}"]
    command.append(f"--storage.tsdb.path={folder / 'data'}")
    with (folder / "prometheus.log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    server = Prometheus(f"http://{address}")
    try:
        until("Prometheus to answer", server.ready, READY_S, last_state=(folder / "prometheus.log").read_text)
        yield server
    finally:
        process.terminate()
        process.wait(30)


def metrics_page(url: str) -> str:
    """What an agent serves to Prometheus."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=30) as answer:
        return answer.read().decode()


def scrape(url: str) -> tuple[float, dict[str, dict[tuple[tuple[str, str], ...], float]]]:
    """Read an agent's metrics directly: when, and the value of each series by name and labels."""
    from prometheus_client.parser import text_string_to_metric_families  # noqa: PLC0415 - only this function

    text = metrics_page(url)
    found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
    return time.monotonic(), found
