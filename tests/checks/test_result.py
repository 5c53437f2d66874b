"""The engine of all checks: what it reports when a check fails, cannot be made or raises an error."""

import asyncio
import json
from collections.abc import Iterable
from pathlib import Path

import pytest

from milligpu.checks.result import Check, CheckLevel, CheckOutcome, CheckResult, failed, passed, run_checks, skipped
from milligpu.cli.main import run
from milligpu.model.errors import Unavailable


async def _asynchronous() -> Iterable[CheckResult]:
    return [passed("later", "fine")]


def _broken() -> Iterable[CheckResult]:
    yield passed("first", "fine")
    raise Unavailable("no answer", hint="start it")


def _denied() -> Iterable[CheckResult]:
    raise PermissionError(13, "Permission denied")


def test_a_check_that_raises_has_failed_and_the_others_still_run() -> None:
    results = asyncio.run(
        run_checks(
            [
                Check("a", "broken", _broken),
                Check("a", "denied", _denied, fix="become root"),
                Check("b", "later", _asynchronous),
            ]
        )
    )
    assert [(each.group, each.name, str(each.result), each.fix) for each in results] == [
        ("a", "first", "passed", ""),
        ("a", "broken", "failed", "start it"),
        ("a", "denied", "failed", "become root"),
        ("b", "later", "passed", ""),
    ]


def test_only_a_failed_check_of_level_error_is_an_error() -> None:
    assert failed("x", "bad", "fix it").is_error
    assert not failed("x", "bad", "fix it", CheckLevel.WARNING).is_error
    assert not skipped("x", "needs a GPU").is_error
    assert skipped("x", "needs a GPU").result is CheckOutcome.SKIPPED


def test_doctor_reports_failures_with_a_fix_and_exit_code_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--kubelet-dir", str(tmp_path), "--kubeconfig", str(tmp_path / "none"), "--listen", "127.0.0.1:1"]
    options += ["--runtime-socket", str(tmp_path / "none.sock"), "--node", "n"]
    assert run(["doctor", "-o", "json", *options]) == 1
    results = json.loads(capsys.readouterr().out)
    assert all(set(each) == {"group", "name", "level", "result", "message", "fix"} for each in results)
    found = {each["name"]: each for each in results}
    for name in ("container runtime", "device plugins", "pod resources", "API server", "agent"):
        assert (found[name]["result"], found[name]["level"]) == ("failed", "error")
        assert found[name]["fix"]
    assert found["CDI"]["result"] == "skipped"
    assert run(["doctor", *options]) == 1
    assert "fix: start the container runtime" in capsys.readouterr().out
