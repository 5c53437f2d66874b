"""What `make demo` shows."""

import json
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from tests.sessions.conftest import ROOT

SHARES = {"large": 0.5, "medium": 0.3, "small": 0.2}
# The GPU's time is modeled, so a share is missed only by a training that a busy CPU keeps from launching.
TOLERANCE = 0.08


@pytest.mark.alone
def test_the_demo_gives_three_trainings_their_shares_refuses_a_fourth_and_draws_a_picture(tmp_path: Path) -> None:
    picture = tmp_path / "demo.svg"
    page = tmp_path / "demo.html"
    command = [
        sys.executable,
        "examples/demo/demo.py",
        "--seconds",
        "5",
        "--plot",
        str(picture),
        "--page",
        str(page),
    ]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=280, env=os.environ, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "InsufficientGPUMemory (best: GPU 0 has 1Gi of 2Gi)" in done.stdout
    assert "refused on purpose" in done.stdout
    assert "exit code 75" in done.stdout
    assert not any(line.startswith("error:") for line in (done.stdout + done.stderr).splitlines())
    result = done.stdout.split("# The result:")[1]
    row = r"^(large|medium|small) +([\d.]+) +([\d.]+) +[\d.]+ points +(\d+) "
    rows = {name: numbers for name, *numbers in re.findall(row, result, re.MULTILINE)}
    assert {name: float(share) for name, (share, _, _) in rows.items()} == SHARES
    assert all(int(steps) > 2 for _, _, steps in rows.values())
    measured = {name: float(used) for name, (_, used, _) in rows.items()}
    assert measured["large"] > measured["medium"] > measured["small"]
    assert measured == pytest.approx(SHARES, abs=TOLERANCE)
    lines = ET.parse(picture).getroot().findall("{http://www.w3.org/2000/svg}polyline")
    assert [len(line.attrib["points"].split()) > 1 for line in lines] == [True] * 3
    data: dict[str, Any] = json.loads(page.read_text().partition('id="data">')[2].partition("</script>")[0])
    drawn = [line for key, chart in data.items() if key.startswith("session/") for line in chart["lines"]]
    shares: list[list[float | None]] = [line["fields"]["share"] for line in drawn]
    assert sorted(max(filter(None, each)) for each in shares) == sorted(SHARES.values())
    assert all(any(line["fields"]["used"]) for line in drawn)
