"""The threat model names only tests that exist."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_test_that_the_threat_model_names_exists() -> None:
    text = (ROOT / "docs/threat-model.md").read_text()
    named = set(re.findall(r"::(test_\w+)", text))
    files = set(re.findall(r"\b(test_\w+\.py)\b", text))
    paths = list((ROOT / "tests").rglob("test_*.py"))
    there = {name for path in paths for name in re.findall(r"def (test_\w+)", path.read_text())}
    assert len(named) > 20
    assert named - there == set()
    assert files - {path.name for path in paths} == set()
