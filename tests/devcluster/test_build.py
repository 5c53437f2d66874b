from pathlib import Path

import pytest

from devcluster import build
from devcluster.errors import DevclusterError


def test_kubernetes_is_new_enough_for_consumable_capacity() -> None:
    major, minor, _ = build.kubernetes_version().removeprefix("v").split(".")

    assert (int(major), int(minor)) >= (1, 36)


def test_a_build_without_go_fails_with_a_hint_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MILLIGPU_CACHE", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(DevclusterError, match=r"go is not installed(.|\n)*hint: install Go"):
        build.binaries(build.TOOLS, lambda _: None)


def test_a_failed_build_shows_the_compilers_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLIGPU_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(build, "SOURCES", tmp_path)
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "go.mod").write_text("module bad\n\ngo 1.26.0\n")
    (tmp_path / "bad" / "main.go").write_text("package main\n\nfunc main() { undefinedThing() }\n")
    lines: list[str] = []

    with pytest.raises(DevclusterError, match="undefined: undefinedThing"):
        build.binaries(build.Module("bad", ("bad",), minutes=1, target="."), lines.append)

    assert lines == ["building bad: once, about 1 minutes on two cores"]


def test_a_build_reports_progress_and_runs_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLIGPU_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(build, "SOURCES", tmp_path)
    monkeypatch.setattr(build, "PROGRESS_EVERY_S", 0.01)
    (tmp_path / "hello").mkdir()
    (tmp_path / "hello" / "go.mod").write_text("module hello\n\ngo 1.26.0\n")
    (tmp_path / "hello" / "main.go").write_text('package main\n\nfunc main() { println("hello") }\n')
    module = build.Module("hello", ("hello",), minutes=1, target=".")
    lines: list[str] = []

    folder = build.binaries(module, lines.append)

    assert (folder / "hello").exists()
    assert any(line.startswith("  hello: 0:0") for line in lines[1:-1])
    assert lines[-1].startswith("built hello in 0:0")
    count = len(lines)
    assert build.binaries(module, lines.append) == folder
    assert len(lines) == count
