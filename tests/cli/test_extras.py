"""What each extra of the package promises to run needs nothing that the extra does not bring."""

import subprocess
import sys

import pytest

# Only what the extra brings can be imported, as on a machine where nothing else was installed.
ALONE = """
import importlib, importlib.metadata as metadata, re, sys
extra, module = sys.argv[1:]
wanted, todo = set(), [("milligpu", extra)]
while todo:
    name, of = todo.pop()
    name = re.sub(r"[-_.]+", "-", name).lower()
    if (name, of) in wanted: continue
    wanted.add((name, of))
    try: lines = metadata.requires(name) or []
    except metadata.PackageNotFoundError: continue  # for other platforms
    for line in lines:
        requirement, _, marker = line.partition(";")
        asked = re.search(r'extra == .(\\w+)', marker)
        if asked and asked[1] != of: continue
        found, extras = re.match(r"([\\w.-]+)(?:\\[(.*?)\\])?", requirement.strip()).groups()
        todo += [(found, each) for each in ["", *(extras or "").split(",")]]
brought = {name for name, _ in wanted}
owners = metadata.packages_distributions()
class Gate:
    def find_spec(self, name, path=None, target=None):
        whose = {re.sub(r"[-_.]+", "-", each).lower() for each in owners.get(name.partition(".")[0], [])}
        if whose and not whose & brought: raise ModuleNotFoundError(f"{name} is not brought by milligpu[{extra}]")
sys.meta_path.insert(0, Gate())
importlib.import_module(module)
"""


@pytest.mark.parametrize(
    ("extra", "module"),
    [
        ("", "milligpu.cli.cluster"),
        ("", "milligpu.kube.fetch"),
        ("node", "milligpu.node.service"),
        ("node", "milligpu.node.commands"),
        ("node", "milligpu.node.doctor.visit"),
        ("scheduler", "milligpu.scheduler.service"),
        ("scheduler", "milligpu.scheduler.admission"),
        ("softgpu", "milligpu.softgpu.daemon"),
    ],
)
def test_what_an_extra_is_for_imports_with_it_alone(extra: str, module: str) -> None:
    run = subprocess.run(
        [sys.executable, "-c", ALONE, extra, module], capture_output=True, text=True, timeout=120, check=False
    )
    assert run.returncode == 0, run.stderr[-600:]


def test_a_missing_dependency_would_be_noticed() -> None:
    run = subprocess.run(
        [sys.executable, "-c", ALONE, "", "milligpu.node.service"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "is not brought by milligpu[]" in run.stderr
