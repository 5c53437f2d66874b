"""What programs write to stderr. Logging is global, so each test has a process of its own."""

import subprocess
import sys


def stderr_of(program: str) -> str:
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert run.stdout == ""
    return run.stderr


def test_a_session_of_a_nodes_agent_is_logged_next_to_the_agents_own_lines() -> None:
    text = stderr_of("""
from types import SimpleNamespace
from milligpu.agent import lifecycle
from milligpu.sessions import manager

async def serve(settings):
    lifecycle.log.info("Serving", node=settings.node)
    manager.log.info("session %s: ended", "a1")

lifecycle.serve = serve
lifecycle.main(SimpleNamespace(node="n1"))
""")
    ours, sessions = text.splitlines()
    assert "[info" in ours
    assert ours.endswith("node=n1")
    assert "[info" in sessions
    assert "session a1: ended" in sessions


def test_other_libraries_are_logged_from_warnings_on() -> None:
    text = stderr_of("""
import logging
from milligpu.logs import configure_logs

configure_logs()
logging.getLogger("httpx").info("HTTP Request: GET")
logging.getLogger("asyncio").warning("slow")
logging.getLogger("milligpu.sessions.manager").info("session %s: ended", "a1")
logging.getLogger("milligpu.sessions.manager").debug("detail")
""")
    assert [line.split(maxsplit=2)[2] for line in text.splitlines()] == ["WARNING slow", "INFO session a1: ended"]


def test_an_exception_is_logged_with_its_traceback() -> None:
    text = stderr_of("""
import structlog
from milligpu.logs import configure_logs

configure_logs(structured=True)
try:
    raise ZeroDivisionError("here")
except ZeroDivisionError:
    structlog.get_logger().exception("Request failed", path="/bind")
""")
    assert "Request failed" in text
    assert "path=/bind" in text
    assert "ZeroDivisionError: here" in text
