"""`docs/proof.md` names tests that run and commands that exist, and the pages link to what is there."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), ROOT / "devcluster" / "README.md"])
PROOF = (ROOT / "docs" / "proof.md").read_text()
ROWS = [tuple(row) for row in re.findall(r"^\| (?!claim |---)(.+?) \| (.+) \|$", PROOF, re.MULTILINE)]

_NOT_RUN = frozenset({"skip", "skipif", "xfail", "importorskip"})


@cache
def _functions(path: Path) -> dict[str, ast.AST]:
    return {
        node.name: node
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


@cache
def _module_marks(path: Path) -> tuple[ast.AST, ...]:
    """What the module says about all its tests: `pytestmark = …`, `pytest.importorskip(…)`."""
    body = ast.parse(path.read_text()).body
    return tuple(node for node in body if isinstance(node, ast.Assign | ast.Expr))


def _may_not_run(*nodes: ast.AST) -> bool:
    return any(
        isinstance(each, ast.Attribute) and each.attr in _NOT_RUN for node in nodes for each in ast.walk(node)
    )


def _wrong(proof: str) -> str:
    """What is wrong with one proof; empty when nothing is."""
    file, _, name = proof.partition("::")
    if name:
        path = ROOT / file
        test = _functions(path).get(name) if path.is_file() else None
        if test is None:
            return f"{proof} does not exist"
        return f"{proof} is skipped" if _may_not_run(test, *_module_marks(path)) else ""
    match proof.split():
        case ["python", script, *_] if script.startswith("bench/") and (ROOT / script).is_file():
            return ""
        case ["python", "-m", module, *_] if (ROOT / module.replace(".", "/") / "__main__.py").is_file():
            return ""
        case ["milligpu", "measure", case, *_] if (ROOT / "src/milligpu/measure" / f"{case}.py").is_file():
            return ""
        case _:
            return f"{proof} is neither a test nor a measurement"


@pytest.mark.parametrize(("claim", "cell"), ROWS, ids=[claim for claim, _ in ROWS])
def test_every_claim_has_a_proof_that_runs(claim: str, cell: str) -> None:
    proofs = re.findall(r"`([^`]+)`", cell)
    assert proofs, f"no proof of: {claim}"
    assert [problem for proof in proofs if (problem := _wrong(proof))] == []


def test_every_page_has_a_claim() -> None:
    sections = re.findall(r"^## \[(.+?)\]", PROOF, re.MULTILINE)
    pages = {f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")} - {"docs/proof.md", "docs/tested.md"}
    assert {"README.md", *pages} - set(sections) == set()


def test_a_test_that_is_skipped_or_missing_is_no_proof() -> None:
    assert _wrong("tests/test_proof.py::test_a_test_that_is_not_there") != ""
    assert _wrong("python bench/nothing.py") != ""
    assert _may_not_run(ast.parse("@pytest.mark.skipif(x)\ndef test_x(): ..."))


def _anchors(path: Path) -> Iterator[str]:
    """The anchors that GitHub gives a page's headings."""
    for heading in re.findall(r"^#+ (.+)$", path.read_text(), re.MULTILINE):
        words = re.sub(r"[^\w\- ]", "", heading.strip().lower())
        yield words.replace(" ", "-")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_of_a_page_leads_somewhere(page: Path) -> None:
    broken: list[str] = []
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        file, _, anchor = link.partition("#")
        target = (page.parent / file).resolve() if file else page
        if link.startswith("https://"):
            continue
        if not target.exists() or (anchor and anchor not in _anchors(target)):
            broken.append(link)
    assert broken == []
