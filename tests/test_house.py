"""The house is as ARCHITECTURE.md describes it: its walk, its rooms, and one class for each name."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "milligpu"
ARCHITECTURE = (ROOT / "ARCHITECTURE.md").read_text()

# A file, and perhaps a name in it: `cluster/state.py:ClusterState.put_pod`, `native/lease/choose.c:lease_choose`.
_ENTRY = re.compile(r"`([\w/.-]+\.(?:py|c|h|md|yaml))(?::([\w.]+))?`")


# Directories of the repository; other paths in the documents are below the package.
_OUTSIDE = ("native", "tests", "docs", "examples")


def _section(title: str, text: str = ARCHITECTURE) -> str:
    return text.split(f"\n## {title}\n", 1)[1].split("\n## ", 1)[0]


def _rooms() -> set[str]:
    """The packages, and the modules beside them."""
    there = {path.stem for path in PACKAGE.iterdir() if (path / "__init__.py").exists() or path.suffix == ".py"}
    return there - {"__init__"}


def _modules() -> Iterator[Path]:
    return (path for path in sorted(PACKAGE.rglob("*.py")) if "_generated" not in path.parts)


def _defines(body: list[ast.stmt], name: str) -> bool:
    first, _, rest = name.partition(".")
    for node in body:
        match node:
            case ast.ClassDef(name=found) if found == first:
                return not rest or _defines(node.body, rest)
            case ast.FunctionDef(name=found) | ast.AsyncFunctionDef(name=found) if found == first:
                return not rest
            case ast.Assign(targets=[ast.Name(id=found)]) | ast.AnnAssign(target=ast.Name(id=found)) if (
                found == first
            ):
                return not rest
            case _:
                pass
    return False


def _exists(file: str, name: str) -> bool:
    path = (ROOT if file.split("/", 1)[0] in _OUTSIDE else PACKAGE) / file
    if not path.is_file():
        return False
    text = path.read_text()
    if not name:
        return True
    if path.suffix == ".py":
        return _defines(ast.parse(text).body, name)
    return re.search(rf"^\w[^;\n]*\b{name}\([^;]*?\)\s*\{{", text, re.MULTILINE) is not None


def _missing(text: str) -> list[str]:
    entries: list[tuple[str, str]] = _ENTRY.findall(text)
    return [f"{file}:{name}" for file, name in entries if "NAME" not in file and not _exists(file, name)]


def test_every_name_in_the_walk_exists() -> None:
    walk = _section("One walk")
    assert len(_ENTRY.findall(walk)) > 50
    assert _missing(walk) == []


def test_every_place_where_contributing_says_to_add_things_exists() -> None:
    assert _missing(_section("Where things are added", (ROOT / "CONTRIBUTING.md").read_text())) == []


def test_the_list_of_rooms_names_every_package() -> None:
    listed = re.findall(r"^\| `(\w+)/?` \|", _section("Rooms").split("\nNext to", 1)[0], re.MULTILINE)
    assert sorted(listed) == sorted(_rooms())


def test_the_import_layers_are_those_that_lint_checks() -> None:
    described = _section("Import layers").split("```")[1].split("\n")[1:-1]
    config = (ROOT / ".importlinter").read_text().split("layers =\n", 1)[1].split("\n\n", 1)[0]
    # A layer may also name packages that are not there yet, in parentheses.
    checked = [{name for name in re.findall(r"\w+", line) if name in _rooms()} for line in config.splitlines()]
    assert [set(line.split(" | ")) for line in described] == [line for line in checked if line]


def test_no_public_class_name_occurs_twice() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for path in _modules():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(str(path.relative_to(PACKAGE)))
    assert {name: where for name, where in places.items() if len(where) > 1} == {}
