"""Requests to the API server, and what a failure means: refused, never sent, or outcome unknown."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from types import TracebackType
from urllib.parse import quote, urlsplit

import aiohttp
import msgspec
from lightkube.config.client_adapter import verify_cluster
from lightkube.config.kubeconfig import SingleConfig

from milligpu import __version__
from milligpu.kube.connections import ConnectionLost, HttpConnections
from milligpu.kube.token import BearerToken
from milligpu.model.errors import Unavailable

# Shorter than the 5 s after which kube-scheduler gives up on an extender.
TIMEOUT_S = 4.0
# As many as there are requests in flight at most (binds, nominations, events, watches).
_CONNECTIONS = 128
_CHUNK = 1 << 20
# The characters of our paths; anything else is escaped, so that no name can end the request line.
_SAFE = "/?&=%,:;+~"

_BAD, _UNAUTHORIZED = 400, 401

# Audit logs name it, and so does an object, for each field, as who wrote it.
_USER_AGENT = f"milligpu/{__version__}"
JSON_PATCH = "application/json-patch+json"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
JSON = "application/json"
METADATA_ONLY = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"
"""Accepted where the answer is not read, so that the API server need not encode the whole object."""


class ApiRefused(Unavailable):
    """The API server refused the request: nothing was changed."""

    def __init__(self, what: str, status: int, message: str, retry_after_s: float = 0.0) -> None:
        """`retry_after_s` is how long the API server asks the client to wait before it retries."""
        super().__init__(f"{what}: {status} {message}")
        self.status = status
        self.retry_after_s = retry_after_s


class ApiNotSent(Unavailable):
    """The API server was not reached: nothing was changed."""


class ApiUnanswered(Unavailable):
    """The request was sent and no answer came: it may have been carried out, or still be carried out."""


class _Status(msgspec.Struct):
    message: str = ""


class ApiClient:
    """Requests to one API server; use it in an `async with`."""

    def __init__(self, config: SingleConfig, *, clock: Callable[[], float] = time.monotonic) -> None:
        assert config.user is not None
        self._base = config.cluster.server.rstrip("/")
        self._ssl = verify_cluster(config.cluster, config.user, config.abs_file, trust_env=False)
        self._token = BearerToken(config.user, clock)
        self._url = urlsplit(self._base)
        self._host = self._url.netloc.rpartition("@")[2]
        self._session: aiohttp.ClientSession | None = None
        self._pool: HttpConnections | None = None

    async def __aenter__(self) -> "ApiClient":
        secure = self._url.scheme == "https"
        port = self._url.port or (443 if secure else 80)
        self._pool = HttpConnections(self._url.hostname or "", port, self._ssl if secure else None, _CONNECTIONS)
        # Streams are few and long, so a general client's cost does not matter.
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=self._ssl), trust_env=False)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pool is not None:
            self._pool.close()
            self._pool = None
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def get(self, path: str, *, timeout_s: float = TIMEOUT_S) -> bytes:
        """Return an object or a list, as JSON."""
        return await self.send("GET", path, timeout_s=timeout_s)

    async def send(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        kind: str = JSON,
        accept: str = JSON,
        timeout_s: float = TIMEOUT_S,
    ) -> bytes:
        """Send one request and return the body of a good answer."""
        if self._pool is None:
            raise ApiNotSent("the connection to the API server is closed")
        what = f"{method} {path}"
        text = b"" if body is None else msgspec.json.encode(body)

        def request(token: str) -> bytes:
            return self._request(method, path, text, _headers(token, kind, accept))

        token = self._token.read()
        try:
            async with asyncio.timeout(timeout_s):
                answer = await self._pool.ask(request(token))
                if answer.status == _UNAUTHORIZED and self._token.refresh(token):
                    answer = await self._pool.ask(request(self._token.read()))
        except (ConnectionLost, TimeoutError) as error:
            raise ApiUnanswered(f"{what}: {type(error).__name__} {error}".rstrip()) from None
        except OSError as error:
            raise ApiNotSent(f"{what}: {error}") from None
        if answer.status >= _BAD:
            raise ApiRefused(what, answer.status, error_message(answer.body), retry_after(answer.retry_after))
        return answer.body

    def _request(self, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> bytes:
        lines = [f"{method} {self._url.path}{quote(path, safe=_SAFE)} HTTP/1.1", f"Host: {self._host}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        return "\r\n".join((*lines, f"Content-Length: {len(body)}", "", "")).encode() + body

    async def lines(self, path: str, silence_s: float) -> AsyncIterator[list[bytes]]:
        """Yield the lines of a stream, in batches as they arrive; `silence_s` without data is an error."""
        rest = b""
        token = self._token.read()
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=TIMEOUT_S, sock_read=silence_s)
        try:
            async with self._open().get(
                self._base + path, headers=_headers(token, JSON), timeout=timeout, read_bufsize=_CHUNK
            ) as answer:
                if answer.status == _UNAUTHORIZED:
                    self._token.refresh(token)  # for the next try
                if answer.status >= _BAD:
                    after_s = retry_after(answer.headers.get("Retry-After", ""))
                    raise ApiRefused(f"GET {path}", answer.status, error_message(await answer.read()), after_s)
                async for chunk in answer.content.iter_any():
                    *whole, rest = (rest + chunk).split(b"\n")
                    if whole:
                        yield whole
        except (aiohttp.ClientError, TimeoutError) as error:
            raise ApiUnanswered(f"GET {path}: {type(error).__name__} {error}".rstrip()) from None

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            raise Unavailable("the connection to the API server is closed")
        return self._session


def _headers(token: str, kind: str, accept: str = JSON) -> Mapping[str, str]:
    headers = {"Content-Type": kind, "Accept": accept, "User-Agent": _USER_AGENT}
    return {**headers, "Authorization": f"Bearer {token}"} if token else headers


def retry_after(text: str) -> float:
    """Read the header `Retry-After` in seconds; the API server sends no dates."""
    return float(text) if text.isascii() and text.isdigit() else 0.0


def error_message(text: bytes) -> str:
    """Return the message of a Kubernetes Status, or the start of whatever else the server sent."""
    try:
        return msgspec.json.decode(text, type=_Status).message or text[:200].decode(errors="replace")
    except msgspec.DecodeError:
        return text[:200].decode(errors="replace")
