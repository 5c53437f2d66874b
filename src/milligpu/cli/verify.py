"""`milligpu verify`: check on this machine's GPU that milligpu does what it promises."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from milligpu.cli.exit_codes import ExitCode
from milligpu.cli.output import OutputFormat, format_option, show_table
from milligpu.model.errors import BadRequest

if TYPE_CHECKING:
    from milligpu.verify.suite import TimedResult, VerifyCheck
    from milligpu.wire.verify import VerifyReport


@click.command()
@click.option(
    "--check", "names", multiple=True, metavar="NAME", help="Run only this check; can be repeated (default: all)."
)
@click.option(
    "--python",
    default=sys.executable,
    metavar="PATH",
    help="Python interpreter that has PyTorch and other frameworks (default: the one of milligpu).",
)
@click.option(
    "--html",
    type=click.Path(path_type=Path, dir_okay=False, writable=True),
    metavar="FILE",
    help="Also write the report as a page to send to others; shows its contents first.",
)
@click.option("--yes", is_flag=True, help="Write the page without asking.")
@click.option(
    "--measure-software",
    is_flag=True,
    help="On a software GPU, also run the checks that need a real one. They stay skipped, with their figures.",
)
@click.option(
    "--record",
    type=click.Path(path_type=Path, dir_okay=False, writable=True),
    metavar="FILE",
    help="Instead of the checks, run COMMAND with a share and write which functions of the driver it called, and "
    "with which sizes.",
)
@format_option(OutputFormat.TABLE, OutputFormat.JSON)
@click.argument("argv", nargs=-1, type=click.UNPROCESSED, metavar="[-- COMMAND…]")
def command(
    *,
    names: tuple[str, ...],
    python: str,
    html: Path | None,
    yes: bool,
    measure_software: bool,
    record: Path | None,
    output: OutputFormat,
    argv: tuple[str, ...],
) -> int:
    """Check on this machine's GPU that milligpu does what it promises. It needs no cluster.

    Programs run with shares of the GPU, as `milligpu run` gives them: they allocate up to their limit, launch
    kernels, train and infer. Nothing else should use the GPU meanwhile. Without a GPU, a software GPU is used, and
    checks that need a real one are skipped.

    The exit code is 1 if a check fails, and 3 if all were skipped; warnings do not count. With --record it is that
    of the command.
    """
    if (record is None) == bool(argv):
        raise click.UsageError("--record FILE needs -- COMMAND…" if record else "COMMAND needs --record FILE")
    if record is not None:
        return _record(record, argv)
    from contextlib import ExitStack
    from datetime import UTC, datetime
    from functools import cache

    from milligpu.verify import machine
    from milligpu.verify.report import make_report
    from milligpu.verify.runner import ProgramRunner
    from milligpu.verify.suite import SoftwareRule, all_checks, run_suite

    with ExitStack() as stack:
        gpus = cache(lambda: stack.enter_context(machine.open_gpus(os.environ)))
        checks = _chosen(all_checks(ProgramRunner(python, os.environ), gpus), names)
        described, private = machine.describe(gpus()), machine.private_words(gpus(), os.environ)
        software = described.software_gpu
        if software:
            click.echo("milligpu: this machine has no GPU; using a software GPU", err=True)
        rule = None if not software else SoftwareRule.MEASURE if measure_software else SoftwareRule.SKIP
        progress = _Progress(len(checks))
        results = run_suite(checks, rule, progress.begin, progress.done)
    report = make_report(described, results, private, datetime.now(UTC).date())
    if output is OutputFormat.JSON:
        from milligpu.wire.verify import encode_report

        click.echo(encode_report(report))
    else:
        _show(results, report)
    if html is not None:
        _write_page(html, report, ask=not yes and sys.stdin.isatty())
    if any(timed.result.is_error for timed in results):
        return ExitCode.CHECK_FAILED
    return ExitCode.OK if report.summary.passed else ExitCode.ONLY_SKIPPED


def _record(path: Path, argv: tuple[str, ...]) -> int:
    """Run a command, and write what it called."""
    from datetime import UTC, datetime

    from milligpu import __version__
    from milligpu.verify import machine
    from milligpu.verify.record import record
    from milligpu.verify.runner import ProgramRunner
    from milligpu.wire.recording import FORMAT, Recording, encode_recording

    with machine.open_gpus(os.environ) as gpus:
        described = machine.describe(gpus)
        code, threads = record(ProgramRunner(sys.executable, os.environ), argv)
    day = datetime.now(UTC).date().isoformat()
    path.write_text(encode_recording(Recording(FORMAT, __version__, day, described, threads)))
    click.echo(f"milligpu: wrote the calls of {len(threads)} threads to {path}", err=True)
    return code


def _chosen(checks: "list[VerifyCheck]", names: tuple[str, ...]) -> "list[VerifyCheck]":
    known = [check.name for check in checks]
    for name in names:
        if name not in known:
            raise BadRequest("--check", name, f"one of {', '.join(known)}")
    return [check for check in checks if not names or check.name in names]


class _Progress:
    """One line on stderr for each check: its number and name, then how it ended."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._number = 0

    def begin(self, check: "VerifyCheck") -> None:
        self._number += 1
        width = len(str(self._count))
        click.echo(f"[{self._number:{width}}/{self._count}] {check.name} … ", err=True, nl=False)

    def done(self, timed: "TimedResult") -> None:
        from milligpu.cli.check_table import shown_result

        click.echo(f"{shown_result(timed.result)} ({timed.seconds:.1f} s)", err=True)


def _show(results: "list[TimedResult]", report: "VerifyReport") -> None:
    from milligpu.cli.check_table import CHECK_COLORS, check_rows

    rows = check_rows([timed.result for timed in results])
    group = ""
    for row in rows:
        # The name of a group stands at its first check only.
        row[0], group = ("" if row[0] in ("", group) else row[0]), row[0] or group
    show_table(["GROUP", "CHECK", "RESULT", "MESSAGE"], rows, colors=CHECK_COLORS)
    click.echo(f"\n{_summary(report)}")


def _summary(report: "VerifyReport") -> str:
    counts = report.summary
    where = (
        "a software GPU"
        if report.machine.software_gpu
        else ", ".join(dict.fromkeys(gpu.model for gpu in report.machine.gpus))
    )
    warnings = f", {counts.warnings} warnings" if counts.warnings else ""
    return f"{counts.passed} passed, {counts.failed} failed{warnings}, {counts.skipped} skipped on {where}"


def _write_page(path: Path, report: "VerifyReport", *, ask: bool) -> None:
    """Show all that the page will contain, and write it."""
    from milligpu.verify.html import render_html
    from milligpu.wire.verify import encode_report

    click.echo(f"{path} will contain this and nothing else:\n{encode_report(report)}", err=True)
    if ask and not click.confirm("Write it?", default=True, err=True):
        click.echo("not written", err=True)
        return
    path.write_text(render_html(report), encoding="utf-8")
    click.echo(f"wrote {path}; how to send it: docs/verify.md", err=True)
