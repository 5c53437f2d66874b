"""Refuses requests that were sent to another name: a site whose name resolves to this machine gets no answer."""

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send


class KnownHosts:
    """ASGI middleware for a service on a loopback address."""

    def __init__(self, app: ASGIApp, port: int) -> None:
        self._app = app
        self._hosts = {f"{name}:{port}" for name in ("127.0.0.1", "localhost", "[::1]")}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve requests for this machine."""
        if scope["type"] == "http" and Headers(scope=scope).get("host", "") not in self._hosts:
            await PlainTextResponse("this name is not the dashboard's\n", 421)(scope, receive, send)
            return
        await self._app(scope, receive, send)
