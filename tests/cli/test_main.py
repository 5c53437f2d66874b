"""The program as a user runs it: a process, its output and its exit code."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from milligpu import __version__
from milligpu.cli.commands import COMMANDS

ROOT = Path(__file__).parents[2]
PROGRAM = Path(sys.executable).parent / "milligpu"


def run(*args: str, program: Path = PROGRAM, stdin: str = "", **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [program, *args],
        input=stdin,
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, **env},
        timeout=60,
        check=False,
    )


def test_the_version_is_the_packages() -> None:
    assert run("--version").stdout == f"milligpu {__version__}\n"


def test_help_lists_every_command_with_an_example_and_imports_none() -> None:
    code = "import sys; from milligpu.cli.main import run; code = run(['--help'])\n"
    code += "heavy = {'rich', 'numpy', 'yaml', 'msgspec', 'grpc'} & set(sys.modules); sys.exit(f'{code} {heavy}')"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.stderr == "0 set()\n"
    for name, entry in COMMANDS.items():
        assert f"  {name} " in result.stdout
        assert entry.example in result.stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_every_commands_help_shows_its_example(name: str) -> None:
    result = run(name, "--help")
    assert result.returncode == 0
    assert f"Example:\n    {COMMANDS[name].example}" in result.stdout


def test_the_kubectl_plugin_calls_itself_by_its_kubectl_name() -> None:
    result = run("--help", program=PROGRAM.with_name("kubectl-milligpu"))
    assert result.stdout.startswith("Usage: kubectl milligpu ")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script_for_each_shell(shell: str) -> None:
    result = run("completion", shell)
    assert result.returncode == 0
    assert "_MILLIGPU_COMPLETE" in result.stdout


def test_completion_really_completes() -> None:
    result = run(_MILLIGPU_COMPLETE="bash_complete", COMP_WORDS="milligpu pla", COMP_CWORD="1")
    assert result.stdout == "plain,place\n"


@pytest.mark.parametrize(
    ("args", "error", "hint"),
    [
        (["plac"], "error: No such command 'plac'. Did you mean 'place'?", "hint: see: milligpu --help"),
        (["--wrong"], "error: No such option '--wrong'.", "hint: see: milligpu --help"),
        (["place"], "error: Missing option '-f' / '--filename'.", "hint: see: milligpu place --help"),
        (
            ["completion", "tcsh"],
            "error: Invalid value for '{bash|zsh|fish}'",
            "hint: see: milligpu completion --help",
        ),
    ],
)
def test_wrong_usage_is_one_line_a_hint_and_exit_2(args: list[str], error: str, hint: str) -> None:
    result = run(*args)
    assert result.returncode == 2
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    assert lines[0].startswith(error)
    assert lines[1:] == [hint]


def test_a_traceback_is_shown_only_with_debug() -> None:
    missing = ("place", "-f", "/nonexistent", "--nodes", "examples/nodes.yaml")
    assert "Traceback" not in run(*missing).stderr
    assert "Traceback" in run("--debug", *missing).stderr
    assert "Traceback" in run(*missing, MILLIGPU_DEBUG="1").stderr


def test_a_reader_that_leaves_early_is_no_error() -> None:
    result = subprocess.run(f"{PROGRAM} --help | true", shell=True, capture_output=True, text=True, check=False)
    assert result.stderr == ""


def test_a_bug_is_one_line_too(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from milligpu.cli import main  # noqa: PLC0415

    def broken(*_args: object, **_options: object) -> None:
        raise ZeroDivisionError("surprise")

    monkeypatch.setattr(main.cli, "main", broken)
    assert main.run(["place"]) == 125
    assert capsys.readouterr().err.splitlines()[0] == "error: ZeroDivisionError: surprise"


PLACE = ("place", "-f", "examples/shares.yaml", "--nodes", "examples/nodes.yaml")


def test_place_shows_where_each_pod_goes_and_why_one_waits() -> None:
    result = run(*PLACE)
    assert (result.returncode, result.stderr) == (0, "")
    rows = {line.split()[0]: line for line in result.stdout.splitlines() if line}
    for pod in ("notebook", "inference", "large-model", "batch", "training"):
        assert pod in rows
    assert "A100" not in rows["batch"]
    assert "0/2 nodes: " in rows["training"]


def test_place_speaks_json_and_yaml() -> None:
    answers = json.loads(run(*PLACE, "-o", "json").stdout)
    placed = {answer["pod"]: answer for answer in answers}
    assert placed["inference"]["containers"]["server"][0]["mib"] == 4096
    assert placed["large-model"]["node"] == "n2"
    assert placed["training"]["placed"] is False
    assert "- namespace: default\n  pod: notebook\n" in run(*PLACE, "-o", "yaml").stdout


def test_no_card_is_overcommitted_by_place() -> None:
    used: dict[str, int] = {}
    for answer in json.loads(run(*PLACE, "-o", "json").stdout):
        for share in (share for shares in answer.get("containers", {}).values() for share in shares):
            used[share["gpu"]] = used.get(share["gpu"], 0) + (1000 if share.get("whole") else share["milli"])
    assert used
    assert max(used.values()) <= 1000


POD = """
apiVersion: v1
kind: Pod
metadata: {name: p}
spec:
  containers: [{name: main, resources: {limits: {LIMITS}}}]
"""


@pytest.mark.parametrize(
    ("stdin", "error"),
    [
        (
            POD.replace("LIMITS", "nvidia.com/vgpu: 30O"),
            "error: - document 1: containers[main].resources.limits[nvidia.com/vgpu]='30O': want 1 to 1000, or",
        ),
        (POD.replace("LIMITS", ""), "error: - document 1: pod default/p asks for no GPU"),
        ("kind: Service", "error: - document 1: kind=Service: want Pod"),
        ("- a\n- b", "error: - document 1: want a Kubernetes object"),
        ("kind: {", "error: -: not YAML: "),
        ("kind: PodList", "error: - document 1: items=None: want a list"),
        ("metadata: {}", "error: - document 1: kind=None: want the kind"),
    ],
)
def test_a_bad_manifest_names_where_what_and_what_is_allowed(stdin: str, error: str) -> None:
    result = run("place", "-f", "-", "--nodes", "examples/nodes.yaml", stdin=stdin)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith(error)
    assert len(result.stderr.splitlines()) <= 2


def test_a_bad_inventory_names_the_node_file_and_field() -> None:
    node = 'kind: Node\nmetadata: {name: n, annotations: {milligpu.dev/inventory: \'{"v":1,"gpus":[{}]}\'}}'
    result = run("place", "-f", "examples/shares.yaml", "--nodes", "-", stdin=node)
    assert result.returncode == 2
    assert "inventory: Object missing required field `uuid`" in result.stderr
