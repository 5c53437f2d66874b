"""A Prometheus that is away or does not understand is an error with its address; a strange key has no line."""

import http.server
import threading
from collections.abc import Iterator

import pytest

from milligpu.history.prometheus import PrometheusHistory
from milligpu.history.samples import Level
from milligpu.model.errors import Unavailable


class Refuses(http.server.BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.send_response(400)
        self.end_headers()
        self.wfile.write(b"bad query")

    def log_message(self, *_: object) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        pass


@pytest.fixture
def refusing() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Refuses)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_a_prometheus_that_refuses_or_is_not_there_is_named_with_its_answer(refusing: str) -> None:
    history = PrometheusHistory(refusing, lambda: 1000.0)
    with pytest.raises(Unavailable, match=f"Prometheus at {refusing} answered 400: bad query"):
        list(history.lines(Level.RAW, 0.0))
    away = PrometheusHistory("http://127.0.0.1:1", lambda: 1000.0)
    with pytest.raises(Unavailable, match="Prometheus at http://127.0.0.1:1 does not answer"):
        away.line(Level.RAW, 0.0, "gpu/GPU-1")


def test_what_is_no_key_has_no_line_and_is_not_asked_for(refusing: str) -> None:
    history = PrometheusHistory(refusing, lambda: 1000.0)
    for key in ("", "gpu", "gpu/a/b", "pod/a/b", "all", "strange/x"):
        assert history.line(Level.RAW, 0.0, key) is None
