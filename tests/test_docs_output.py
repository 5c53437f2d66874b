"""Commands in the docs that need no cluster print what the docs show."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from milligpu.cli.main import run

ROOT = Path(__file__).parents[1]
# What these print follows from files in examples/ alone.
COMMANDS = ("place", "translate")


def _shown() -> Iterator[tuple[str, str]]:
    """Commands with their output, from the console blocks of README and docs."""
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        for block in re.findall(r"^```console\n(.*?)^```", page.read_text(), re.S | re.M):
            for part in re.split(r"^\$ ", block, flags=re.M)[1:]:
                line, _, output = part.partition("\n")
                words = line.split()
                if words[:1] == ["milligpu"] and words[1] in COMMANDS and output.strip():
                    yield line, output


SHOWN = dict(_shown())


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().splitlines()]


def test_each_of_the_commands_is_shown() -> None:
    assert {line.split()[1] for line in SHOWN} == set(COMMANDS)


@pytest.mark.parametrize("line", SHOWN)
def test_a_command_of_the_docs_prints_what_they_show(
    line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    assert run(shlex.split(line)[1:]) == 0
    assert _lines(capsys.readouterr().out) == _lines(SHOWN[line])
