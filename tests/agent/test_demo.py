"""What `make demo` shows."""

import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

from tests.agent.conftest import ROOT


def test_the_demo_trains_three_refuses_a_fourth_and_draws_a_picture(tmp_path: Path) -> None:
    picture = tmp_path / "demo.svg"
    command = [sys.executable, "examples/demo/demo.py", "--seconds", "12", "--plot", str(picture)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=280, env=os.environ, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "InsufficientGPUMemory (best: GPU/0 1024 of 2048)" in done.stderr
    assert "exit code 75" in done.stdout
    rows = dict(re.findall(r"^(large|medium|small) .* points +(\d+) ", done.stdout, re.MULTILINE))
    assert set(rows) == {"large", "medium", "small"}
    assert all(int(steps) > 2 for steps in rows.values())
    lines = ET.parse(picture).getroot().findall("{http://www.w3.org/2000/svg}polyline")
    assert [len(line.attrib["points"].split()) > 1 for line in lines] == [True] * 3
