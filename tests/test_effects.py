"""Every documented annotation, label and option has a test of what it changes; `tests/effects.toml` names it."""

import ast
import importlib
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import click
import pytest

from milligpu.cli.commands import COMMANDS
from milligpu.model import names

ROOT = Path(__file__).parents[1]
EFFECTS: dict[str, dict[str, str]] = tomllib.loads((ROOT / "tests/effects.toml").read_text())
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
OURS = ("tests", "devcluster", "testing", "deploy")
# Names below milligpu.dev that nobody writes: the API version, the images, and what agents tell the scheduler.
OTHER = {"v1alpha1", "milligpu", "milligpu-node", "milligpu-client", "evict"}
OLD = set(names.RENAMED) | {names.OLD_GPU_SETTINGS}
CONSTANTS = [(name, value) for name, value in vars(names).items() if name.isupper() and isinstance(value, str)]


def _commands(path: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        for name, each in command.commands.items():
            yield from _commands(f"{path} {name}", each)


def _options() -> dict[str, tuple[str, ...]]:
    """The spellings of every option; one that several commands have with the same meaning is there once."""
    found: dict[tuple[str, str | None], tuple[str, tuple[str, ...]]] = {}
    for name, entry in COMMANDS.items():
        for path, command in _commands(name, importlib.import_module(entry.module).command):
            for option in command.params:
                if isinstance(option, click.Option) and not option.hidden:
                    long = next(each for each in option.opts if each.startswith("--"))
                    spellings = (*option.opts, *option.secondary_opts)
                    found.setdefault((long, option.help), (f"{path} {long}", spellings))
    return dict(found.values())


OPTIONS = _options()


def _documented() -> set[str]:
    """What the pages name below `milligpu.dev/`."""
    found = {name for page in PAGES for name in re.findall(r"milligpu\.dev/([a-z][a-z0-9-]*\.?)", page.read_text())}
    # The end of a sentence; and `kubectl annotate NAME-`, which removes an annotation.
    found = {name if name == "vgpu." else name.rstrip(".-") for name in found}
    return {f"milligpu.dev/{name}" for name in found - OTHER} - OLD


@cache
def _text(path: Path) -> str:
    """A module with what it imports of the tests' own modules, its fixtures, its golden files and the chart."""
    texts = [path.read_text()]
    for node in ast.walk(ast.parse(texts[0])):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] in OURS:
            file = ROOT / (node.module.replace(".", "/") + ".py")
            texts += [file.read_text()] if file.is_file() else []
    texts += [each.read_text() for folder in path.parents[:2] for each in folder.glob("conftest.py")]
    texts += [each.read_text() for each in sorted((path.parent / "golden").glob("*.yaml"))]
    if path.name == "test_chart.py":
        texts += [each.read_text() for each in sorted((ROOT / "deploy/chart/templates").glob("*.yaml"))]
    return "\n".join(texts)


def _wrong(test: str, spellings: tuple[str, ...]) -> str:
    file, _, name = test.partition("::")
    path = ROOT / file
    if not path.is_file() or f"\ndef {name}(" not in path.read_text():
        return f"{test} does not exist"
    used = any(re.search(rf"(?<![\w-]){re.escape(each)}(?![\w-])", _text(path)) for each in spellings)
    return "" if used else f"{test} does not use {' or '.join(spellings)}"


def test_every_documented_annotation_and_label_has_a_test_of_its_effect() -> None:
    listed = EFFECTS["annotations"].keys() | EFFECTS["labels"].keys()
    wanted = _documented() | names.USER_ANNOTATIONS
    assert sorted(wanted - listed) == []
    assert sorted(listed - wanted - {value for _, value in CONSTANTS}) == []


def test_every_option_has_a_test_of_its_effect() -> None:
    assert EFFECTS["options"].keys() == OPTIONS.keys()


def test_every_option_in_the_docs_exists() -> None:
    known = {each for spellings in OPTIONS.values() for each in spellings}
    tables = {
        (page.name, option)
        for page in PAGES
        if page.name != "benchmarks.md"  # it has options of scripts, too
        for option in re.findall(r"^\| `(--?[a-z-]+)", page.read_text(), re.M)
    }
    assert [each for each in sorted(tables) if each[1] not in known] == []


@pytest.mark.parametrize("name", [*EFFECTS["annotations"], *EFFECTS["labels"]])
def test_the_test_of_an_annotation_or_label_uses_it(name: str) -> None:
    test = (EFFECTS["annotations"] | EFFECTS["labels"])[name]
    constants = [f"names.{constant}" for constant, value in CONSTANTS if value == name]
    assert _wrong(test, (name.rstrip("."), *constants)) == ""


@pytest.mark.parametrize("name", sorted(EFFECTS["options"].keys() & OPTIONS.keys()))
def test_the_test_of_an_option_uses_it(name: str) -> None:
    assert _wrong(EFFECTS["options"][name], OPTIONS[name]) == ""
