"""Options and names that all commands share: one meaning each, and the former spelling for one release."""

import importlib
import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from milligpu.cli.commands import COMMANDS
from milligpu.cli.gpu_uuid import find_uuid
from milligpu.cli.main import run
from milligpu.cli.scope import names_pod, pod_name
from milligpu.model.errors import BadRequest

Capture = pytest.CaptureFixture[str]


def commands(command: click.Command) -> Iterator[click.Command]:
    yield command
    if isinstance(command, click.Group):
        for each in command.commands.values():
            yield from commands(each)


def test_a_short_option_means_the_same_in_all_commands() -> None:
    meanings: defaultdict[str, set[str]] = defaultdict(set)
    for entry in COMMANDS.values():
        for command in commands(importlib.import_module(entry.module).command):
            for option in command.params:
                if isinstance(option, click.Option) and not option.hidden:
                    long = next(each for each in option.opts if each.startswith("--"))
                    for short in (each for each in option.opts if not each.startswith("--")):
                        meanings[short].add(long)
    assert meanings == {
        "-c": {"--container"},
        "-f": {"--filename"},
        "-i": {"--interval"},
        "-m": {"--memory"},
        "-n": {"--namespace"},
        "-o": {"--output"},
        "-p": {"--part"},
    }


@pytest.mark.parametrize("group", [[], ["gpu"], ["measure"], ["scheduler"], ["softgpu"]])
def test_a_group_without_arguments_prints_its_help(group: list[str], capsys: Capture) -> None:
    assert run(group) == 0
    output = capsys.readouterr()
    assert output.out.startswith(" ".join(["Usage: milligpu", *group]))
    assert output.err == ""


def test_bench_still_means_measure(capsys: Capture) -> None:
    assert run(["bench", "enforce", "--case", "no such case"]) == 2
    assert capsys.readouterr().err.startswith(
        "warning: milligpu bench is deprecated: use milligpu measure\nerror: --case"
    )


def test_simulate_policy_still_means_strategy(capsys: Capture) -> None:
    assert run(["simulate", "--generate", "6", "--policy", "random", "-o", "csv"]) == 0
    output = capsys.readouterr()
    assert output.out.splitlines()[1].startswith("random,")
    assert output.err == "warning: simulate --policy is deprecated: use simulate --strategy\n"


@pytest.mark.parametrize("text", ["a", "pod/a", "pods/a", "po/a"])
def test_a_pod_is_named_as_with_kubectl(text: str) -> None:
    assert pod_name(text) == "a"
    assert names_pod(text) == (text != "a")


@pytest.mark.parametrize("text", ["", "pod/", "deployment/a", "team/pod/a"])
def test_another_kind_of_object_is_refused(text: str) -> None:
    with pytest.raises(BadRequest):
        pod_name(text)


UUIDS = ("GPU-c6eb0a11-aaaa", "GPU-c6eb0b22-bbbb", "GPU-d0000000-cccc", "MIG-e1")


@pytest.mark.parametrize(
    ("text", "uuid"),
    [("GPU-d", 2), ("d0", 2), ("D0", 2), ("c6eb0a", 0), ("GPU-c6eb0b", 1), (UUIDS[1], 1), ("MIG-", 3)],
)
def test_a_gpu_is_found_by_the_beginning_of_its_uuid(text: str, uuid: int) -> None:
    assert find_uuid(text, UUIDS) == UUIDS[uuid]


def test_an_ambiguous_beginning_is_refused_with_the_candidates() -> None:
    with pytest.raises(BadRequest, match="GPU-c6eb0a11-aaaa, GPU-c6eb0b22-bbbb$"):
        find_uuid("c6eb", UUIDS)


@pytest.mark.parametrize("text", ["", "GPU-none", "0a11"])
def test_an_unknown_gpu_is_refused_with_those_that_exist(text: str) -> None:
    with pytest.raises(BadRequest, match="MIG-e1"):
        find_uuid(text, UUIDS)


def test_a_software_gpu_is_named_by_the_beginning_of_its_uuid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert run(["softgpu", "up", "--devices", "2"]) == 0
    try:
        capsys.readouterr()
        assert run(["softgpu", "status", "-o", "json"]) == 0
        uuid = json.loads(capsys.readouterr().out)[1]["uuid"]
        assert run(["softgpu", "fault", uuid.removeprefix("GPU-")[:-1], "--temperature", "88"]) == 0
        assert run(["softgpu", "fault", "GPU-", "--temperature", "88"]) == 2
        assert uuid in capsys.readouterr().err
    finally:
        run(["softgpu", "down"])


SEE = "see: milligpu run --help"


@pytest.mark.parametrize(
    ("args", "error", "hint"),
    [
        (["run", "-m", "4096", "--", "true"], "-m: invalid value '4096': must be a size with its unit", "4096Mi?"),
        (["run", "-m", "4", "true"], "-m: invalid value '4': must be a size with its unit", "did you mean 4Gi?"),
        (["resize", "abc", "-m", "4096"], "-m: invalid value '4096': must be a size with its unit", "4096Mi?"),
        (
            ["softgpu", "up", "--memory", "16"],
            "--memory: invalid value '16': must be a size with its unit",
            "16Gi?",
        ),
        (
            ["run", "--parts", "0.3", "--", "true"],
            "no such option: --parts",
            "did you mean --part? " + SEE,
        ),
        (
            ["run", "--prioritty", "3", "true"],
            "no such option: --prioritty",
            "did you mean --priority? " + SEE,
        ),
        (["run", "-x", "true"], "no such option: -x", SEE),
        (
            ["softgpu", "exec", "--modle", "A10", "true"],
            "no such option: --modle",
            "see: milligpu softgpu exec --help",
        ),
        (
            ["run", "-p", "0.5", "--limit", "0.3", "true"],
            "--limit: invalid value '0.3': must be a fraction from 0.5",
            "",
        ),
        (["run", "-p", "0", "true"], "-m: required: with -p 0", ""),
        (["run", "-p", "0", "-m", "1Gi", "true"], "--limit: required: with -p 0", ""),
    ],
)
def test_a_mistyped_option_is_refused_in_its_own_words(
    args: list[str], error: str, hint: str, capsys: Capture
) -> None:
    assert run(args) == 2
    said = capsys.readouterr().err.splitlines()
    assert said[0].startswith(f"error: {error}")
    assert "".join(said[1:]).endswith(hint)


def test_the_options_of_a_program_are_its_own() -> None:
    """What follows the program's name is not read, whatever it looks like."""
    done = subprocess.run(
        [str(Path(sys.executable).parent / "milligpu"), "softgpu", "exec", "echo", "--parts", "0.3", "-m", "4"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "--parts 0.3 -m 4\n"
