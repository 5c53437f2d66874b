"""The report as one HTML page, without scripts and without anything from elsewhere; light and dark."""

from collections.abc import Sequence
from html import escape
from itertools import groupby

from milligpu.wire.verify import VerifiedCheck, VerifyReport

_TITLES = {
    "driver": ("Driver", "What a CUDA program with a share finds"),
    "memory": ("Memory", "Limits, and charges against the driver's own count"),
    "compute": ("Compute", "Cost of a launch, exactness of shares"),
    "programs": ("Programs", "A small training and an inference each"),
}
_PLURALS = {"warning": "warnings"}
_UNITS = ("percent", "points", "mib", "ns", "ms")
_SHOWN_UNITS = {"percent": " %", "points": " points", "mib": " MiB", "ns": " ns", "ms": " ms"}
_CSS = """
:root { color-scheme: light dark; --page: #f6f7f9; --card: #fff; --text: #1b2330; --dim: #5d6a7c; --line: #e3e7ed;
  --pass: #14804a; --pass-bg: #e3f5ea; --fail: #c0272d; --fail-bg: #fdeaea; --warn: #93650a; --warn-bg: #fdf3da;
  --skip: #5d6a7c; --skip-bg: #eceff3; --accent: #4b9b16; }
@media (prefers-color-scheme: dark) { :root { --page: #0f141b; --card: #171e28; --text: #e4e9f0; --dim: #93a0b2;
  --line: #27313e; --pass: #5fd08f; --pass-bg: #12301f; --fail: #ff8a8a; --fail-bg: #3a1618; --warn: #efc25d;
  --warn-bg: #352a0f; --skip: #93a0b2; --skip-bg: #222b37; --accent: #84d63f; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--text);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
main { max-width: 920px; margin: 0 auto; padding: 40px 20px 56px; }
header { border-left: 4px solid var(--accent); padding-left: 16px; }
h1 { font-size: 28px; line-height: 1.25; margin: 0 0 4px; letter-spacing: -.01em; }
h2 { font-size: 17px; margin: 36px 0 0; }
.dim, dt { color: var(--dim); }
h2 + p { margin: 0 0 12px; font-size: 14px; }
.note { background: var(--warn-bg); color: var(--warn); border-radius: 10px; padding: 12px 16px; margin: 20px 0 0; }
.tiles { display: grid; grid-template-columns: repeat(4, 1fr); gap: 12px; margin: 24px 0 10px; }
.tile, .card { background: var(--card); border: 1px solid var(--line); border-radius: 12px; }
.tile { padding: 14px 18px; }
.tile b { display: block; font-size: 30px; line-height: 1.15; font-variant-numeric: tabular-nums; }
.bar { display: flex; gap: 3px; height: 8px; margin-bottom: 24px; }
.bar span { border-radius: 4px; min-width: 4px; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 6px 24px; margin: 0; padding: 16px 20px; }
dd { margin: 0; }
.check { display: grid; grid-template-columns: 82px 150px 1fr; gap: 4px 14px; padding: 13px 20px;
  align-items: baseline; }
.check + .check { border-top: 1px solid var(--line); }
.check code { font: 600 13.5px ui-monospace, "SF Mono", Menlo, "DejaVu Sans Mono", monospace; }
.badge { font-size: 12px; font-weight: 600; padding: 2px 0; border-radius: 6px; text-align: center; }
.text { overflow-wrap: anywhere; }
.fix { margin: 4px 0 0; font-size: 14px; }
.fix b { font-weight: 600; }
.figures { margin: 6px 0 0; padding: 0; display: flex; flex-wrap: wrap; gap: 6px; list-style: none;
  font-size: 12.5px; }
.figures li { border: 1px solid var(--line); border-radius: 6px; padding: 1px 8px;
  font-variant-numeric: tabular-nums; }
.passed { color: var(--pass); background: var(--pass-bg); }
.failed { color: var(--fail); background: var(--fail-bg); }
.warning { color: var(--warn); background: var(--warn-bg); }
.skipped { color: var(--skip); background: var(--skip-bg); }
.tile.passed, .tile.failed, .tile.warning, .tile.skipped { background: var(--card); }
.tile.zero { color: var(--dim); }
.bar .passed { background: var(--pass); } .bar .failed { background: var(--fail); }
.bar .warning { background: var(--warn); } .bar .skipped { background: var(--skip); opacity: .45; }
footer { margin-top: 36px; font-size: 13.5px; }
@media (max-width: 640px) { .tiles { grid-template-columns: 1fr 1fr; } .check { grid-template-columns: 82px 1fr; }
  .text { grid-column: 1 / -1; } }
@media print { body { background: #fff; } .card { break-inside: avoid; } }
"""


def render_html(report: VerifyReport) -> str:
    """Draw a report, from which everything private was removed before."""
    machine = report.machine
    models = " and ".join(_counted([gpu.model for gpu in machine.gpus])) or "no GPU"
    note = (
        '<p class="note"><b>Software GPU.</b> The checks ran on a driver that executes kernels on the CPU. '
        "Checks that need a real GPU are skipped, and nothing here is a statement about NVIDIA's hardware.</p>"
        if machine.software_gpu
        else ""
    )
    groups = "".join(_group(name, list(found)) for name, found in groupby(report.checks, lambda each: each.group))
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>milligpu verify: {escape(models)}</title>
<style>{_CSS}</style>
</head>
<body>
<main>
<header>
<h1>{escape(_verdict(report))}</h1>
<div class="dim">milligpu {escape(report.milligpu)} on {escape(models)} · {escape(report.date)}</div>
</header>
{note}
{_tiles(report)}
<div class="card"><dl>{_facts(report)}</dl></div>
{groups}
<footer class="dim">{escape(report.format)}. This page has models, versions, results and figures. It has no host
name, user name, path, serial number, UUID or address, and it loads nothing.</footer>
</main>
</body>
</html>
"""


def _verdict(report: VerifyReport) -> str:
    summary = report.summary
    if summary.failed:
        return f"{summary.failed} of {len(report.checks)} checks failed"
    if not summary.passed:
        return "All checks were skipped"
    return "All checks passed" if not summary.skipped else f"{summary.passed} checks passed, none failed"


def _counted(models: Sequence[str]) -> list[str]:
    return [f"{models.count(each)}x {each}" if models.count(each) > 1 else each for each in dict.fromkeys(models)]


def _tiles(report: VerifyReport) -> str:
    summary = report.summary
    counts = {
        "passed": summary.passed,
        "failed": summary.failed,
        "warning": summary.warnings,
        "skipped": summary.skipped,
    }
    tiles = "".join(
        f'<div class="tile {kind if count else "zero"}"><b>{count}</b>{_PLURALS.get(kind, kind)}</div>'
        for kind, count in counts.items()
    )
    bar = "".join(f'<span class="{kind}" style="flex:{count}"></span>' for kind, count in counts.items() if count)
    return f'<div class="tiles">{tiles}</div><div class="bar">{bar}</div>'


def _facts(report: VerifyReport) -> str:
    machine = report.machine
    gpus = _counted(
        [
            f"{gpu.model}, {gpu.memory_mib:,} MiB, compute capability {gpu.compute_capability}"
            for gpu in machine.gpus
        ]
    )
    facts = {
        "GPU": "; ".join(gpus) or "none",
        "Driver": f"{machine.driver}, CUDA {machine.cuda}",
        "System": f"{machine.system}, Linux {machine.kernel}, {machine.architecture}",
        "Python": machine.python,
    }
    return "".join(f"<dt>{name}</dt><dd>{escape(value)}</dd>" for name, value in facts.items())


def _group(name: str, checks: Sequence[VerifiedCheck]) -> str:
    title, about = _TITLES.get(name, (name.capitalize(), ""))
    rows = "".join(map(_check, checks))
    return f'<h2>{escape(title)}</h2><p class="dim">{escape(about)}</p><div class="card">{rows}</div>'


def _check(check: VerifiedCheck) -> str:
    kind = "warning" if check.result == "failed" and check.level == "warning" else check.result
    fix = f'<p class="fix dim"><b>Fix:</b> {escape(check.fix)}</p>' if check.fix else ""
    items = "".join(f"<li>{escape(_figure(name, value))}</li>" for name, value in check.figures.items())
    figures = f'<ul class="figures dim">{items}</ul>' if items else ""
    return (
        f'<div class="check"><span class="badge {escape(kind)}">{escape(kind)}</span>'
        f"<code>{escape(check.name)}</code>"
        f'<div class="text">{escape(check.message)}{fix}{figures}</div></div>'
    )


def _figure(name: str, value: float) -> str:
    """A figure as people read it: `launch_ns` is "launch 2,100 ns"."""
    words = name.split("_")
    unit = _SHOWN_UNITS[words.pop()] if words[-1] in _UNITS else ""
    return f"{' '.join(words)} {value:,g}{unit}" if value < 1e6 else f"{' '.join(words)} {value:,.0f}{unit}"
