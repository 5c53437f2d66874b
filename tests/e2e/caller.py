"""The API server's own interface, for requests that no client library would send."""

import json
from typing import Any

import httpx2
from lightkube import KubeConfig
from lightkube.config import client_adapter
from lightkube.config.client_adapter import ConnectionParams

from devcluster.cluster import Cluster

MERGE = "application/merge-patch+json"


class Caller:
    """Sends requests to the API server as the administrator, or as somebody else with impersonation headers."""

    def __init__(self, cluster: Cluster, headers: dict[str, str] | None = None) -> None:
        config = KubeConfig.from_file(cluster.kubeconfig).get()
        assert config is not None
        self._client: httpx2.Client = client_adapter.Client(config, ConnectionParams(trust_env=False))
        self._headers = headers or {}

    def send(self, method: str, path: str, body: Any, kind: str = "application/json") -> httpx2.Response:
        with self._client as client:
            headers = {"Content-Type": kind, **self._headers}
            return client.request(method, path, content=json.dumps(body), headers=headers)
