"""A small chart as SVG: lines over numbers, one panel per column. Pure."""

from collections.abc import Mapping, Sequence
from html import escape

_WIDTH, _PANEL, _LEFT, _RIGHT, _TOP, _GAP = 760, 240, 72, 150, 54, 56
_COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7")
_TICKS = 4


def draw_rows(
    title: str, rows: Sequence[Mapping[str, object]], x: str, columns: Sequence[str], by: str = ""
) -> str:
    """Draw columns of a table over column `x`; `by` names the column whose values are lines of their own."""
    height = _TOP + len(columns) * (_PANEL + _GAP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}"'
        f' height="{height}" font-family="system-ui, Helvetica, Arial, sans-serif" font-size="13" fill="#333">',
        f'<rect width="{_WIDTH}" height="{height}" fill="#fff"/>',
        f'<text x="{_LEFT}" y="28" font-size="17" font-weight="600">{escape(title)}</text>',
    ]
    for number, column in enumerate(columns):
        parts += _panel(rows, x, column, by, _TOP + number * (_PANEL + _GAP))
    return "\n".join([*parts, "</svg>", ""])


def _panel(rows: Sequence[Mapping[str, object]], x: str, column: str, by: str, top: int) -> list[str]:
    lines: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        if isinstance(row.get(column), int | float) and isinstance(row.get(x), int | float):
            lines.setdefault(str(row.get(by, "")), []).append((float(str(row[x])), float(str(row[column]))))
    points = [point for line in lines.values() for point in line]
    if not points:
        return []
    right = max(at for at, _ in points) or 1.0
    most = max(value for _, value in points) or 1.0

    def place(at: float, value: float) -> tuple[float, float]:
        return _LEFT + at / right * (_WIDTH - _LEFT - _RIGHT), top + _PANEL - value / most * (_PANEL - 20)

    parts = [f'<text x="{_LEFT}" y="{top + 4}" font-weight="600">{escape(column)}</text>']
    for tick in range(_TICKS + 1):
        _, y = place(0, most * tick / _TICKS)
        parts.append(f'<path d="M{_LEFT} {y:.1f}H{_WIDTH - _RIGHT}" stroke="#e4e4e4"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{most * tick / _TICKS:.3g}</text>')
    for color, (name, line) in zip(_COLORS * len(lines), lines.items(), strict=False):
        path = " ".join(f"{a:.1f},{b:.1f}" for a, b in (place(*point) for point in sorted(line)))
        parts.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"/>')
        parts += [f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3" fill="{color}"/>' for a, b in (place(*p) for p in line)]
        if name:
            a, b = place(*max(line))
            parts.append(f'<text x="{a + 10:.1f}" y="{b + 4:.1f}" fill="{color}">{escape(name)}</text>')
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    for at in sorted({at for at, _ in points}):
        parts.append(f'<text x="{place(at, 0)[0]:.1f}" y="{top + _PANEL + 16}" text-anchor="middle">{at:g}</text>')
    parts.append(f'<text x="{middle}" y="{top + _PANEL + 34}" text-anchor="middle">{escape(x)}</text>')
    return parts
