"""How fast the dashboard's pages appear with 5,000 GPUs: answer of the server, and first paint in Chromium.

    python bench/dashboard.py [--nodes 625]

Needs Debian's package chromium. Figures: docs/benchmarks.md.
"""

import argparse
import sys
import time
from pathlib import Path
from statistics import median

from playwright.sync_api import sync_playwright

sys.path.insert(0, str(Path(__file__).parents[1]))

from testing.dashboard import MadeUpCluster, dashboard

_PER_NODE = 8
_PAGES = ("/", "/gpus", "/shares")
_PAINT = """() => new Promise((done) => new PerformanceObserver((found) => {
    const paint = found.getEntriesByName("first-contentful-paint")[0];
    if (paint) done(paint.startTime);
}).observe({ type: "paint", buffered: true }))"""
_ANSWER = "performance.getEntriesByType('navigation')[0].responseEnd"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, default=625, help="with 8 GPUs each")
    parser.add_argument("--times", type=int, default=5)
    options = parser.parse_args()
    cluster = MadeUpCluster(nodes=options.nodes, per_node=_PER_NODE, started=time.time() - 60)
    with (
        dashboard(cluster.picture, interval_s=60.0) as served,
        sync_playwright() as playwright,
        playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"]) as browser,
    ):
        page = browser.new_context(viewport={"width": 1280, "height": 800}).new_page()
        page.goto(served.opened)
        print(f"{options.nodes * _PER_NODE} GPUs, median of {options.times}, in ms")
        for path in _PAGES:
            found: list[tuple[float, float]] = []
            for _ in range(options.times):
                page.goto(served.url + path)
                found.append((page.evaluate(_ANSWER), page.evaluate(_PAINT)))
            answer, paint = (median(each) for each in zip(*found, strict=True))
            print(f"{path:8} answered {answer:5.0f}  first paint {paint:5.0f}")


if __name__ == "__main__":
    main()
