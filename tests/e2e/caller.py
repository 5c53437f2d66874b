"""The API server's own interface, for requests that no client library would send."""

import json
from pathlib import Path
from typing import Any

import httpx2
from lightkube import KubeConfig
from lightkube.config import client_adapter
from lightkube.config.client_adapter import ConnectionParams

from devcluster.cluster import Cluster

MERGE = "application/merge-patch+json"


class Caller:
    """Sends requests to the API server as the administrator, or as somebody else with impersonation headers."""

    def __init__(
        self, cluster: Cluster, headers: dict[str, str] | None = None, *, kubeconfig: Path | None = None
    ) -> None:
        """`kubeconfig` is somebody else's."""
        config = KubeConfig.from_file(kubeconfig or cluster.kubeconfig).get()
        assert config is not None
        self._config = config
        self._headers = headers or {}

    def send(self, method: str, path: str, body: Any, kind: str = "application/json") -> httpx2.Response:
        with client_adapter.Client(self._config, ConnectionParams(trust_env=False)) as client:
            headers = {"Content-Type": kind, **self._headers}
            content = None if body is None else json.dumps(body)
            return client.request(method, path, content=content, headers=headers)
