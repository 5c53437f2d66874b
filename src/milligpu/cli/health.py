"""`milligpu health`: the health of GPU servers and of this machine, in the form of the Bitfusion guide."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from milligpu.cli.exit_codes import ExitCode
from milligpu.cli.output import OutputFormat, format_option, show_data
from milligpu.cli.remote_options import pool_access, remote_options
from milligpu.model.errors import BadRequest

if TYPE_CHECKING:
    from milligpu.checks.health import HealthReport

_RULE = "====="


@click.command()
@remote_options
@click.option("--local", is_flag=True, help="Check this machine only; needs no token.")
@format_option(OutputFormat.TABLE, OutputFormat.JSON, OutputFormat.YAML)
def command(*, servers: str | None, token_file: Path | None, plain: bool, local: bool, output: OutputFormat) -> int:
    """Report the health of every GPU server of the pool and of this machine.

    Each line is PASS, INFO, SKIPPED, MARGINAL (it works, but not as well as it could) or FATAL. Each MARGINAL or
    FATAL line suggests a fix. The exit code is 1 if a line is FATAL.
    """
    return show_health(servers, token_file, output, plain=plain, local=local)


def show_health(
    servers: str | None, token_file: Path | None, output: OutputFormat, *, plain: bool, local: bool
) -> int:
    """Make the reports and print them."""
    from milligpu.checks.health import HealthReport, HealthWord, local_report, server_report

    if local and (servers is not None or token_file is not None):
        raise BadRequest("--local", "with --servers or --token", "used alone: it asks no server")
    reports: list[HealthReport] = []
    if not local:
        access = pool_access(servers, token_file)
        reports = [server_report(server, access, plain=plain) for server in access.servers]
    reports.append(local_report())
    if output is OutputFormat.TABLE:
        click.echo("\n".join(line for each in reports for line in report_lines(each)))
    else:
        show_data([_data(each) for each in reports], output)
    fatal = any(each.totals[HealthWord.FATAL] for each in reports)
    return ExitCode.CHECK_FAILED if fatal else ExitCode.OK


def report_lines(report: "HealthReport") -> Iterable[str]:
    """A report as text, with the guide's headings, words and totals."""
    from milligpu.checks.health import LOCALHOST, health_word
    from milligpu.checks.health_host import GROUPS

    whose = report.machine if report.machine == LOCALHOST else f"server: {report.machine}"
    yield f"Health report for {whose}"
    yield _RULE
    others = [each.group for each in report.results if each.group not in GROUPS]
    for group in (*GROUPS, *dict.fromkeys(others)):
        yield from ("", f"{group} checks:", _RULE)
        for each in report.of_group(group):
            text = f"{each.name}: {each.message}" if each.message else each.name
            yield f"[{health_word(each):<7}] Check {text}"
            if each.fix:
                yield f"          fix: {each.fix}"
    yield ""
    yield from (f"{word}: {count}" for word, count in report.totals.items())
    yield ""


def _data(report: "HealthReport") -> dict[str, object]:
    from milligpu.checks.health import health_word

    return {
        "machine": report.machine,
        "results": [
            {
                "group": each.group,
                "check": each.name,
                "result": str(health_word(each)),
                "message": each.message,
                "fix": each.fix,
                "figures": dict(each.figures),
            }
            for each in report.results
        ],
        "totals": {str(word): count for word, count in report.totals.items()},
    }
