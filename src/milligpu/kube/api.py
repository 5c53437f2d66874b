"""Requests to the API server, and what their failure means: refused, never sent, or nobody knows."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from types import TracebackType
from urllib.parse import quote, urlsplit

import aiohttp
import msgspec
from lightkube.config.client_adapter import verify_cluster
from lightkube.config.kubeconfig import SingleConfig
from lightkube.config.models import User

from milligpu.kube.pool import Lost, Pool
from milligpu.model.errors import Unavailable

# A kubelet writes a new token long before the old one ends; reading it once a minute is what client-go does.
_TOKEN_AGE_S = 60.0
# The API server answers within its own 60 s; ours is shorter than kube-scheduler's patience with an extender.
TIMEOUT_S = 4.0
# More connections than requests ever in flight (binds, nominations, events, watches) would be idle ones.
_CONNECTIONS = 128
_CHUNK = 1 << 20
# What a path of ours consists of; anything else is escaped, so that no name can end the line.
_SAFE = "/?&=%,:;+~"

_BAD = 400

JSON_PATCH = "application/json-patch+json"
MERGE_PATCH = "application/merge-patch+json"
JSON = "application/json"
METADATA_ONLY = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"
"""What to accept where nobody reads the answer: the API server need not write out the whole object."""


class Refused(Unavailable):
    """The API server answered, and the answer was no: nothing was changed."""

    def __init__(self, what: str, status: int, message: str) -> None:
        super().__init__(f"{what}: {status} {message}")
        self.status = status


class NotSent(Unavailable):
    """The API server was not reached: nothing was changed."""


class Unanswered(Unavailable):
    """The request was sent and no answer came: it may have been carried out, or be carried out yet."""


class _Status(msgspec.Struct):
    message: str = ""


class Api:
    """One API server. Use it in an `async with`."""

    def __init__(self, config: SingleConfig, *, clock: Callable[[], float] = time.monotonic) -> None:
        assert config.user is not None
        self._base = config.cluster.server.rstrip("/")
        self._ssl = verify_cluster(config.cluster, config.user, config.abs_file, trust_env=False)
        self._token = _Token(config.user, clock)
        self._url = urlsplit(self._base)
        self._host = self._url.netloc.rpartition("@")[2]
        self._session: aiohttp.ClientSession | None = None
        self._pool: Pool | None = None

    async def __aenter__(self) -> "Api":
        secure = self._url.scheme == "https"
        port = self._url.port or (443 if secure else 80)
        self._pool = Pool(self._url.hostname or "", port, self._ssl if secure else None, _CONNECTIONS)
        # Streams are few and long: there a general client costs nothing.
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
        """Read an object or a list."""
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
            raise NotSent("the connection to the API server is closed")
        what = f"{method} {path}"
        request = self._request(
            method, path, b"" if body is None else msgspec.json.encode(body), self._headers(kind, accept)
        )
        try:
            async with asyncio.timeout(timeout_s):
                answer = await self._pool.ask(request)
        except (Lost, TimeoutError) as error:
            raise Unanswered(f"{what}: {type(error).__name__} {error}".rstrip()) from None
        except OSError as error:
            raise NotSent(f"{what}: {error}") from None
        if answer.status >= _BAD:
            raise Refused(what, answer.status, _message(answer.body))
        return answer.body

    def _request(self, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> bytes:
        lines = [f"{method} {self._url.path}{quote(path, safe=_SAFE)} HTTP/1.1", f"Host: {self._host}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        return "\r\n".join((*lines, f"Content-Length: {len(body)}", "", "")).encode() + body

    async def lines(self, path: str, silence_s: float) -> AsyncIterator[list[bytes]]:
        """The lines of a stream as they come, those that came together at once; silence is an error."""
        rest = b""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=TIMEOUT_S, sock_read=silence_s)
        try:
            async with self._open().get(
                self._base + path, headers=self._headers(JSON), timeout=timeout, read_bufsize=_CHUNK
            ) as answer:
                if answer.status >= _BAD:
                    raise Refused(f"GET {path}", answer.status, _message(await answer.read()))
                async for chunk in answer.content.iter_any():
                    *whole, rest = (rest + chunk).split(b"\n")
                    if whole:
                        yield whole
        except (aiohttp.ClientError, TimeoutError) as error:
            raise Unanswered(f"GET {path}: {type(error).__name__} {error}".rstrip()) from None

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            raise Unavailable("the connection to the API server is closed")
        return self._session

    def _headers(self, kind: str, accept: str = JSON) -> Mapping[str, str]:
        token = self._token.read()
        headers = {"Content-Type": kind, "Accept": accept}
        return {**headers, "Authorization": f"Bearer {token}"} if token else headers


class _Token:
    """The bearer token, read again now and then where it is a file."""

    def __init__(self, user: User, clock: Callable[[], float]) -> None:
        if user.exec is not None or user.password is not None:
            raise Unavailable(
                "this kubeconfig's way to log in is not for services",
                hint="use a service account's token or a client certificate",
            )
        self._file = None if user.token_file is None else Path(user.token_file)
        self._text = user.token or ""
        self._clock = clock
        self._read_at = -_TOKEN_AGE_S

    def read(self) -> str:
        if self._file is not None and self._clock() - self._read_at >= _TOKEN_AGE_S:
            self._text = self._file.read_text().strip()
            self._read_at = self._clock()
        return self._text


def _message(text: bytes) -> str:
    try:
        return msgspec.json.decode(text, type=_Status).message or text[:200].decode(errors="replace")
    except msgspec.DecodeError:
        return text[:200].decode(errors="replace")
