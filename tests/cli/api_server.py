"""An API server of a test's own: it answers from a table and keeps what is written to it."""

import json
import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

KUBECONFIG = """
apiVersion: v1
kind: Config
clusters: [{{name: c, cluster: {{server: "{url}"}}}}]
users: [{{name: u, user: {{token: t}}}}]
contexts: [{{name: x, context: {{cluster: c, user: u, namespace: team-a}}}}]
current-context: x
"""


@dataclass
class ApiServer:
    """Objects by path; a path without one is answered with 404."""

    objects: dict[str, Any] = field(default_factory=dict[str, Any])
    patches: dict[str, Any] = field(default_factory=dict[str, Any])
    dry_runs: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    """The pods that were to be created without effect."""

    def put_list(self, path: str, *items: dict[str, Any]) -> None:
        self.objects[path] = {"kind": "List", "apiVersion": "v1", "metadata": {}, "items": list(items)}


@contextmanager
def serve(folder: Path) -> Generator[tuple[ApiServer, Path]]:
    """The server, and a kubeconfig whose context has the namespace team-a."""
    api = ApiServer()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = api.objects.get(urlsplit(self.path).path)
            self._answer(200, found) if found is not None else self._answer(404, _status(404, "not found"))

        def do_PATCH(self) -> None:
            path = urlsplit(self.path).path
            api.patches[path] = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self._answer(200, {})

        def do_POST(self) -> None:
            """Answer a dry run with the pod as an API server would show it."""
            pod = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if "dryRun=All" not in self.path:
                self._answer(405, _status(405, "only dry runs"))
                return
            api.dry_runs.append(pod)
            name = pod["metadata"].get("name") or f"{pod['metadata']['generateName']}{len(api.dry_runs)}"
            space = urlsplit(self.path).path.split("/")[4]
            pod["metadata"] |= {"name": name, "namespace": space, "uid": f"dry-{len(api.dry_runs)}"}
            self._answer(201, pod | {"status": {"phase": "Pending"}})

        def _answer(self, status: int, body: Any) -> None:
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    kubeconfig = folder / "kubeconfig"
    kubeconfig.write_text(KUBECONFIG.format(url=f"http://127.0.0.1:{server.server_port}"))
    try:
        yield api, kubeconfig
    finally:
        server.shutdown()
        server.server_close()


def _status(code: int, message: str) -> dict[str, Any]:
    return {"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message, "code": code}
