"""The pages over HTTP: Starlette routes, templates, server-sent events, and the checks before each."""

import asyncio
import csv
import io
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import msgspec
from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from milligpu import __version__
from milligpu.dashboard import pages
from milligpu.dashboard.access import COOKIE, DashboardAccess, ViewRights, visible, visible_advice
from milligpu.dashboard.charts import chart
from milligpu.dashboard.collector import Collector
from milligpu.dashboard.filters import FILTERS
from milligpu.dashboard.headers import SecurityHeaders
from milligpu.dashboard.metrics import metrics_text
from milligpu.history.samples import Level
from milligpu.model.errors import BadRequest, MilligpuError
from milligpu.status.advice import Advice
from milligpu.status.cost import CostLine
from milligpu.status.picture import Picture
from milligpu.wire.status import ShareUsage

_HERE = Path(__file__).parent
# Tokens have at most a few KiB.
_FORM_MAX = 64 * 1024
_FILTER_MAX = 1000
NAVIGATION = (
    ("/", "Overview"),
    ("/gpus", "GPUs"),
    ("/shares", "Shares"),
    ("/waiting", "Waiting"),
    ("/queues", "Queues"),
    ("/owners", "Cost"),
    ("/health", "Health"),
    ("/settings", "Settings"),
)
RANGES = {"1h": (Level.RAW, 3600.0), "1d": (Level.MINUTES, 86400.0), "90d": (Level.HOURS, 90 * 86400.0)}
Explain = Callable[[str, str], tuple[str, Sequence[str]]]
"""A pod's explanation and events, by namespace and name."""


@dataclass(frozen=True, slots=True)
class Visit:
    """One request of somebody who may see something."""

    rights: ViewRights
    picture: Picture
    advice: Sequence[Advice]


class DashboardApp:
    """The pages of one machine or cluster."""

    def __init__(self, collector: Collector, access: DashboardAccess, *, explain: Explain | None = None) -> None:
        """`explain` looks up what the picture does not contain; None where there are no pods."""
        self._collector = collector
        self._access = access
        self._explain = explain
        self.templates = Environment(
            loader=FileSystemLoader(_HERE / "templates"),
            autoescape=select_autoescape(default=True),
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self.templates.filters.update(FILTERS)

    def asgi(self) -> Starlette:
        """Return the application for a server."""
        page = self._page
        routes = [
            Route("/healthz", _healthz),
            Route("/open", self._open),
            Route("/login", self._log_in, methods=["GET", "POST"]),
            Route("/logout", self._log_out, methods=["POST"]),
            Route("/live", self._live),
            Route("/history.json", self._history),
            Mount("/static", StaticFiles(directory=_HERE / "static")),
            *self._both("/gpus/{uuid}", page("gpu.html", self._gpu, "/gpus")),
            *self._both("/nodes/{node}", page("node.html", self._node, "/gpus")),
            *self._both("/pods/{namespace}/{pod}", page("holder.html", self._pod, "/shares")),
            *self._both("/sessions/{session}", page("holder.html", self._session, "/shares")),
            *self._both(
                "/gpus", page("gpus.html", lambda visit, _: pages.gpus(visit.picture, visit.advice), "/gpus")
            ),
            *self._both("/shares", page("shares.html", self._shares, "/shares")),
            *self._both("/waiting", page("waiting.html", self._waiting, "/waiting")),
            *self._both("/queues", page("queues.html", lambda visit, _: pages.queues(visit.picture), "/queues")),
            *self._both("/owners", page("owners.html", self._owners, "/owners")),
            *self._both("/health", page("health.html", self._health, "/health")),
            *self._both("/settings", page("settings.html", self._settings, "/settings")),
            Route(
                "/shares.csv", self._csv(lambda visit: pages.shares(visit.picture, visit.advice).shares, "shares")
            ),
            Route("/waiting.csv", self._csv(lambda visit: visit.picture.waiting, "waiting")),
            Route("/gpus.csv", self._csv(lambda visit: pages.tiles(visit.picture, visit.advice), "gpus")),
            Route("/queues.csv", self._csv(lambda visit: pages.queues(visit.picture).queues, "queues")),
            Route("/owners.csv", self._csv(self._owner_costs, "owners")),
            Route("/metrics", self._metrics),
            Route("/overview.json", page("overview.html", self._overview, "/")),
            Route("/", page("overview.html", self._overview, "/")),
        ]
        middleware = [Middleware(SecurityHeaders), Middleware(GZipMiddleware, minimum_size=1000)]
        return Starlette(routes=routes, middleware=middleware)

    @staticmethod
    def _both(path: str, endpoint: Callable[[Request], Awaitable[Response]]) -> list[Route]:
        """The JSON twin comes first: a name may contain a dot."""
        return [Route(f"{path}.json", endpoint), Route(path, endpoint)]

    def _visit(self, request: Request) -> Visit | None:
        picture = self._collector.picture or Picture(0.0, "", cluster=False, software=False, gpus=(), shares=())
        spaces = sorted({use.namespace for use in picture.shares} | {each.namespace for each in picture.waiting})
        rights = self._access.rights(request.cookies, request.headers.get("authorization", ""), spaces)
        if rights is None:
            return None
        advice = self._collector.advice
        return Visit(rights, visible(picture, rights), visible_advice(advice, rights))

    async def _entered(self, request: Request) -> Visit | Response:
        """Return the visit, or the answer to somebody without an identity."""
        try:
            visit = await asyncio.to_thread(self._visit, request)
        except MilligpuError as error:
            return PlainTextResponse(f"could not ask for your permissions: {error.message}\n", 503)
        if visit is not None:
            return visit
        if _wants_data(request):
            return PlainTextResponse("no identity: send a Kubernetes token as Authorization: Bearer\n", 401)
        return self._login_page(request, "", 401)

    def _page(
        self, template: str, make: Callable[[Visit, Request], Any], section: str
    ) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            visit = await self._entered(request)
            if isinstance(visit, Response):
                return visit
            data = await asyncio.to_thread(make, visit, request)
            if data is None:
                return self._missing(request, visit)
            if _wants_data(request):
                return Response(msgspec.json.encode(data), media_type="application/json")
            return await asyncio.to_thread(self._render, template, request, visit, section, {"page": data})

        return endpoint

    def _render(
        self, template: str, request: Request, visit: Visit, section: str, context: Mapping[str, Any]
    ) -> Response:
        text = self.templates.get_template(template).render(
            version=__version__,
            picture=visit.picture,
            rights=visit.rights,
            navigation=NAVIGATION,
            section=section,
            path=request.url.path + (f"?{request.url.query}" if request.url.query else ""),
            shown_max=pages.SHOWN_MAX,
            twin="/overview.json" if request.url.path == "/" else f"{request.url.path}.json",
            problem=self._collector.problem,
            currency=self._collector.prices.currency,
            **context,
        )
        return HTMLResponse(text, 200)

    def _missing(self, request: Request, visit: Visit) -> Response:
        if _wants_data(request):
            return PlainTextResponse("nothing of this name that you may see\n", 404)
        answer = self._render("missing.html", request, visit, "", {})
        answer.status_code = 404
        return answer

    def _login_page(self, request: Request, problem: str, status: int) -> Response:
        text = self.templates.get_template("login.html").render(
            problem=problem, tokens=self._access.takes_tokens, path=request.url.path
        )
        return HTMLResponse(text, status)

    async def _open(self, request: Request) -> Response:
        cookie = self._access.open(request.query_params.get("secret", ""))
        if cookie is None:
            return self._login_page(request, "This link was used before, or is not complete.", 401)
        return _with_cookie(request, cookie)

    async def _log_in(self, request: Request) -> Response:
        if request.method == "GET":
            return self._login_page(request, "", 200)
        if not same_origin(request):
            return PlainTextResponse("this form was sent by another site\n", 403)
        form = parse_qs((await request.body())[:_FORM_MAX].decode(errors="replace"))
        token = next(iter(form.get("token", [])), "").strip()
        picture = self._collector.picture
        spaces = sorted({use.namespace for use in picture.shares}) if picture else []
        cookie = await asyncio.to_thread(self._access.log_in, token, spaces)
        if cookie is None:
            return self._login_page(request, "The API server does not know this token.", 401)
        return _with_cookie(request, cookie)

    async def _log_out(self, request: Request) -> Response:
        if not same_origin(request):
            return PlainTextResponse("this form was sent by another site\n", 403)
        self._access.log_out(request.cookies.get(COOKIE, ""))
        answer = RedirectResponse("/", 303)
        answer.delete_cookie(COOKIE)
        return answer

    async def _live(self, request: Request) -> Response:
        visit = await self._entered(request)
        if isinstance(visit, Response):
            return visit

        async def stream() -> AsyncIterator[str]:
            yield "retry: 2000\n\n"
            async for tick in self._collector.changes():
                yield f"event: tick\ndata: {tick}\n\n"

        return StreamingResponse(stream(), media_type="text/event-stream")

    async def _history(self, request: Request) -> Response:
        visit = await self._entered(request)
        if isinstance(visit, Response):
            return visit
        name, keys = request.query_params.get("range", "1h"), request.query_params.getlist("key")
        if name not in RANGES:
            return PlainTextResponse(f"range: invalid value {name!r}: must be one of {', '.join(RANGES)}\n", 400)
        if not keys or not all(_may_read(key, visit) for key in keys):
            return PlainTextResponse("nothing of this name that you may see\n", 404)
        level, seconds = RANGES[name]
        since = visit.picture.at - seconds
        try:
            found = await asyncio.to_thread(chart, self._collector.history, level, since, keys)
        except MilligpuError as error:
            return PlainTextResponse(f"{error.message}\n", 503)
        return Response(msgspec.json.encode(found), media_type="application/json")

    def _csv(self, rows: Callable[[Visit], Sequence[Any]], name: str) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            visit = await self._entered(request)
            if isinstance(visit, Response):
                return visit
            text = await asyncio.to_thread(to_csv, rows(visit))
            headers = {"Content-Disposition": f'attachment; filename="{name}.csv"'}
            return Response(text, media_type="text/csv; charset=utf-8", headers=headers)

        return endpoint

    def _overview(self, visit: Visit, _request: Request) -> pages.OverviewPage:
        costs = self._collector.costs
        return pages.overview(visit.picture, visit.advice, costs)

    def _gpu(self, visit: Visit, request: Request) -> pages.GpuPage | None:
        return pages.gpu(visit.picture, visit.advice, request.path_params["uuid"])

    def _node(self, visit: Visit, request: Request) -> pages.NodePage | None:
        return pages.node(visit.picture, visit.advice, request.path_params["node"])

    def _shares(self, visit: Visit, request: Request) -> pages.SharesPage:
        return pages.shares(visit.picture, visit.advice, request.query_params.get("filter", "")[:_FILTER_MAX])

    def _pod(self, visit: Visit, request: Request) -> pages.HolderPage | None:
        namespace, pod = request.path_params["namespace"], request.path_params["pod"]
        uses = [use for use in visit.picture.shares if (use.namespace, use.pod) == (namespace, pod)]
        waits = any((each.namespace, each.name) == (namespace, pod) for each in visit.picture.waiting)
        if not (uses or waits) or not visit.rights.sees(namespace):
            return None
        text, events = self._explained(namespace, pod)
        if not uses:
            return pages.HolderPage(f"{namespace}/{pod}", "pod", (), "", None, text, events, ())
        return pages.holder(visit.picture, visit.advice, uses, explanation=text, events=events)

    def _explained(self, namespace: str, pod: str) -> tuple[str, Sequence[str]]:
        if self._explain is None:
            return "", ()
        try:
            return self._explain(namespace, pod)
        except BadRequest:
            return "", ()
        except MilligpuError as error:
            return f"not available now: {error.message}", ()

    @staticmethod
    def _session(visit: Visit, request: Request) -> pages.HolderPage | None:
        uses: list[ShareUsage] = [
            use for use in visit.picture.shares if use.session == request.path_params["session"]
        ]
        return pages.holder(visit.picture, visit.advice, uses) if uses else None

    @staticmethod
    def _waiting(visit: Visit, _request: Request) -> pages.WaitingPage:
        return pages.WaitingPage(visit.picture.waiting, visit.picture.cluster)

    def _owners(self, visit: Visit, _request: Request | None) -> pages.OwnersPage:
        allowed = None if visit.rights.everything else visit.rights.namespaces
        return pages.owners(visit.picture, self._collector.costs, self._collector.months, allowed)

    def _owner_costs(self, visit: Visit) -> Sequence[CostLine]:
        return [row.cost for row in self._owners(visit, None).owners if row.cost is not None]

    async def _metrics(self, request: Request) -> Response:
        visit = await self._entered(request)
        if isinstance(visit, Response):
            return visit
        costs = self._collector.costs if visit.rights.everything else None
        text = await asyncio.to_thread(metrics_text, visit.picture, visit.advice, costs)
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")

    @staticmethod
    def _health(visit: Visit, _request: Request) -> pages.HealthPage:
        return pages.health(visit.picture, visit.advice)

    def _settings(self, visit: Visit, _request: Request) -> "SettingsPage":
        collector = self._collector
        return SettingsPage(
            __version__,
            collector.interval_s,
            collector.history.place,
            collector.history.size(),
            collector.prices.currency,
            [PriceRow(model, price) for model, price in sorted(collector.prices.per_hour.items())],
            visit.rights.user,
            visit.rights.everything,
            sorted(visit.rights.namespaces),
        )


@dataclass(frozen=True, slots=True)
class PriceRow:
    """The price of a model."""

    model: str
    per_hour: float


@dataclass(frozen=True, slots=True)
class SettingsPage:
    """How this dashboard runs, and what the reader may see."""

    version: str
    interval_s: float
    history_file: str
    history_bytes: int | None
    """None if a Prometheus has it."""
    currency: str
    prices: Sequence[PriceRow]
    user: str
    everything: bool
    namespaces: Sequence[str]


def _wants_data(request: Request) -> bool:
    return request.url.path.endswith((".json", ".csv")) or request.url.path in {"/live", "/metrics"}


def _with_cookie(request: Request, cookie: str) -> Response:
    answer = RedirectResponse("/", 303)
    secure = request.url.scheme == "https"
    answer.set_cookie(COOKIE, cookie, httponly=True, samesite="strict", secure=secure, path="/")
    return answer


def same_origin(request: Request) -> bool:
    """Whether a form was sent from one of our own pages."""
    origin = request.headers.get("origin")
    if origin is not None:
        return urlsplit(origin).netloc == request.headers.get("host", "")
    return request.headers.get("sec-fetch-site", "same-origin") in {"same-origin", "none"}


def _may_read(key: str, visit: Visit) -> bool:
    kind, _, rest = key.partition("/")
    if kind in {"gpu", "all"}:
        return True
    return visit.rights.sees(rest.partition("/")[0]) if kind == "pod" else visit.rights.everything


def to_csv(rows: Sequence[Any]) -> str:
    """Write the plain columns as CSV; a cell that a spreadsheet would take for a formula begins with a quote."""
    out = io.StringIO()
    writer = csv.writer(out)
    dicts = [msgspec.to_builtins(row) for row in rows]
    names = [name for name, value in dicts[0].items() if not isinstance(value, list | dict)] if dicts else []
    writer.writerow(names)
    writer.writerows([_cell(row[name]) for name in names] for row in dicts)
    return out.getvalue()


def _cell(value: object) -> object:
    return f"'{value}" if isinstance(value, str) and value[:1] in {"=", "+", "-", "@", "\t", "\r"} else value


async def _healthz(_request: Request) -> Response:
    return PlainTextResponse("ok\n")
