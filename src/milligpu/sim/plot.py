"""One picture: allocation against arrived demand, a line per strategy.

SVG is written by hand, so that it needs nothing; PNG is drawn by matplotlib where that is installed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any, cast

import numpy as np

from milligpu.model.errors import BadRequest, Unavailable
from milligpu.sim.replay import ReplayResult

# Colors that color-blind readers can distinguish (Okabe and Ito), dark enough for a white page.
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#555555", "#999933", "#882255")
_FONTS = "system-ui, Helvetica, Arial, DejaVu Sans, sans-serif"
_WIDTH, _HEIGHT = 860, 480
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 190, 56, 56
_FROM = 70
"""Below this much demand every strategy places everything."""


@dataclass(frozen=True, slots=True)
class PlotLine:
    """One strategy's mean over the seeds, at whole percentages of arrived demand."""

    name: str
    arrived: tuple[int, ...]
    allocated: tuple[float, ...]


def lines_of(results: Sequence[ReplayResult]) -> list[PlotLine]:
    """Average the results of each strategy over the seeds."""
    lines: list[PlotLine] = []
    for result in results:
        arrived = [np.round(np.array(run.arrived)).astype(np.int64) for run in result.runs]
        last = max(int(each.max(initial=0)) for each in arrived)
        marks: list[int] = []
        means: list[float] = []
        for mark in range(min(_FROM, last), last + 1):
            seen = [
                float(np.array(run.allocated)[here].mean())
                for run, percent in zip(result.runs, arrived, strict=True)
                if (here := percent == mark).any()
            ]
            if seen:
                marks.append(mark)
                means.append(float(np.mean(seen)))
        lines.append(PlotLine(str(result.strategy), tuple(marks), tuple(means)))
    return lines


def save_plot(path: Path, results: Sequence[ReplayResult], title: str) -> None:
    """Write the picture; the file's name says which format."""
    lines = lines_of(results)
    if path.suffix == ".svg":
        path.write_text(svg(lines, title), encoding="utf-8")
    elif path.suffix == ".png":
        _png(path, lines, title)
    else:
        raise BadRequest("--plot", str(path), "a file that ends in .svg or .png")


def svg(lines: Sequence[PlotLine], title: str) -> str:
    """The picture as SVG."""
    low_x, high_x = min(line.arrived[0] for line in lines), max(line.arrived[-1] for line in lines)
    low_y = min(low_x, int(min(min(line.allocated) for line in lines)) // 5 * 5)
    high_x, high_y = max(high_x, low_x + 1), 100

    def x(value: float) -> float:
        return _LEFT + (value - low_x) / (high_x - low_x) * (_WIDTH - _LEFT - _RIGHT)

    def y(value: float) -> float:
        return _TOP + (high_y - value) / (high_y - low_y) * (_HEIGHT - _TOP - _BOTTOM)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}"'
        f' height="{_HEIGHT}" font-family="{_FONTS}" font-size="13" fill="#333">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#fff"/>',
        f'<text x="{_LEFT}" y="30" font-size="17" font-weight="600">{escape(title)}</text>',
    ]
    bottom, right = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT
    for tick in range(low_y, high_y + 1, 5):
        parts.append(f'<path d="M{_LEFT} {y(tick):.1f}H{right}" stroke="#e4e4e4"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{y(tick) + 4:.1f}" text-anchor="end">{tick}</text>')
    for tick in range(-(-low_x // 10) * 10, high_x + 1, 10):
        parts.append(f'<path d="M{x(tick):.1f} {bottom}v5" stroke="#888"/>')
        parts.append(f'<text x="{x(tick):.1f}" y="{bottom + 20}" text-anchor="middle">{tick}</text>')
    # No strategy can allocate more than was requested.
    top = min(high_x, high_y)
    parts.append(
        f'<path d="M{x(low_x):.1f} {y(low_x):.1f}L{x(top):.1f} {y(top):.1f}" stroke="#bbb"'
        ' stroke-dasharray="4 4" fill="none"/>'
    )
    labels = _spaced([(y(line.allocated[-1]), at) for at, line in enumerate(lines)])
    for at, line in enumerate(lines):
        colour = _COLOURS[at % len(_COLOURS)]
        points = " ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in zip(line.arrived, line.allocated, strict=True))
        parts.append(
            f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2" stroke-linejoin="round"/>'
        )
        text = f"{escape(line.name)} {line.allocated[-1]:.1f}"
        parts.append(
            f'<text x="{right + 10}" y="{labels[at] + 4:.1f}" fill="{colour}" font-weight="600">{text}</text>'
        )
    parts.append(f'<path d="M{_LEFT} {_TOP}V{bottom}H{right}" stroke="#888" fill="none"/>')
    parts.append(
        f'<text x="{(_LEFT + right) / 2}" y="{_HEIGHT - 14}" text-anchor="middle">'
        "arrived demand, % of the GPUs</text>"
    )
    parts.append(
        f'<text transform="translate(18 {(_TOP + bottom) / 2}) rotate(-90)" text-anchor="middle">'
        "allocated, % of the GPUs</text>"
    )
    return "\n".join([*parts, "</svg>", ""])


def _spaced(wanted: list[tuple[float, int]]) -> dict[int, float]:
    """Heights for the labels, moved apart where they would overlap, and kept on the page."""
    gap = 17.0
    placed: dict[int, float] = {}
    last = -gap
    for height, at in sorted(wanted):
        last = max(height, last + gap)
        placed[at] = last
    over = max(0.0, last - (_HEIGHT - _BOTTOM))
    return {at: height - over for at, height in placed.items()}


def _png(path: Path, lines: Sequence[PlotLine], title: str) -> None:
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415
    except ImportError:
        hint = "pip install 'milligpu[plot]', or write an .svg, which needs nothing"
        raise Unavailable("a PNG needs matplotlib, which is not installed", hint=hint) from None
    figure = cast("Any", Figure)(figsize=(_WIDTH / 100, _HEIGHT / 100), dpi=150, layout="constrained")
    axes = figure.subplots()
    for at, line in enumerate(lines):
        label = f"{line.name} {line.allocated[-1]:.1f}"
        axes.plot(line.arrived, line.allocated, label=label, color=_COLOURS[at % len(_COLOURS)])
    axes.set(title=title, xlabel="arrived demand, % of the GPUs", ylabel="allocated, % of the GPUs")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    figure.savefig(path)
