"""One page of what was measured, with its data inside: a file that opens anywhere, without a server."""

import base64
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from jinja2 import Environment
from markupsafe import Markup

from milligpu import __version__
from milligpu.dashboard import pages
from milligpu.dashboard.charts import ALL, chart
from milligpu.dashboard.collector import Collector
from milligpu.history.samples import Level
from milligpu.status.picture import Picture, gpu_key, share_key

_STATIC = Path(__file__).parent / "static"
_STYLES = ("vendor/uPlot-1.6.32.min.css", "style.css")
_FONT = "vendor/inter-5.3.0.woff2"
_SCRIPTS = ("vendor/uPlot-1.6.32.min.js", "app.js")
_SINCE_S = 3600.0
# Each holder has charts of its own: a page with more of them than this is of no use to anybody.
_HOLDERS_MAX = 50


def report(collector: Collector, templates: Environment) -> str:
    """Make the page of the latest picture and the hour before it; nobody's permissions are asked."""
    picture = collector.picture or Picture(0.0, "", cluster=False, software=False, gpus=(), shares=())
    shares = picture.shares[:_HOLDERS_MAX]
    keys = [ALL, *(gpu_key(gpu.uuid) for gpu in picture.gpus), *map(share_key, shares)]
    read = partial(chart, collector.history, Level.RAW, picture.at - _SINCE_S)
    rows = {row.key: replace(row, link="") for row in pages.shares(picture, collector.advice).shares}
    return templates.get_template("report.html").render(
        version=__version__,
        picture=picture,
        page=pages.overview(picture, collector.advice, collector.costs),
        tiles=[_unlinked(tile) for tile in pages.tiles(picture, collector.advice)],
        holders=[rows[key] for use in shares if (key := share_key(use)) in rows],
        advice={each.link: each for each in collector.advice},
        data=_json({key: read([key]) for key in keys}),
        styles=Markup(_styles()),
        theme=Markup((_STATIC / "theme.js").read_text()),
        scripts=[Markup((_STATIC / name).read_text()) for name in _SCRIPTS],
    )


def _unlinked(tile: pages.GpuTile) -> pages.GpuTile:
    """A tile of which no part leads to another page: there is none."""
    return replace(tile, shares=[replace(share, link="") for share in tile.shares])


def _styles() -> str:
    font = base64.b64encode((_STATIC / _FONT).read_bytes()).decode()
    text = "\n".join((_STATIC / name).read_text() for name in _STYLES)
    return text.replace(_FONT, f"data:font/woff2;base64,{font}")


def _json(data: Any) -> Markup:
    """JSON inside HTML: a name that contains a tag must not end the script."""
    text = msgspec.json.encode(data).decode()
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))
