"""`milligpu measure`: measurements on a software GPU in modeled time."""

from dataclasses import asdict

import click

from milligpu.cli.output import OutputFormat, format_option, show_data, show_table
from milligpu.model.errors import BadRequest


@click.group()
def command() -> None:
    """Measure how exactly shares are enforced, and what that costs, on a software GPU of this machine."""


@command.command()
@click.option(
    "--case", "names", multiple=True, metavar="NAME", help="Measure only this case; can be repeated (default: all)."
)
@format_option(OutputFormat.TABLE, OutputFormat.JSON, OutputFormat.YAML)
def enforce(names: tuple[str, ...], output: OutputFormat) -> None:
    """Measure how exactly shares are enforced, and what that costs.

    Real programs run on a software GPU in modeled time. Nothing else should run on the machine meanwhile.
    """
    from milligpu.measure.enforce import LATE_MAX, cases, measure
    from milligpu.measure.testbed import open_testbed, raise_priority

    known = cases()
    for name in names:
        if name not in known:
            raise BadRequest("--case", name, f"one of {', '.join(known)}")
    if not raise_priority():
        click.echo(
            "warning: no real-time priority (CAP_SYS_NICE): other programs on this machine affect the figures",
            err=True,
        )
    with open_testbed() as testbed:
        results = list(measure(testbed, names or known, lambda text: click.echo(f"{text} …", err=True)))
    late = [result.case for result in results if result.late_launches > LATE_MAX]
    if late:
        click.echo(
            f"warning: not exact, because this machine was too slow for the modeled GPU: {', '.join(late)}",
            err=True,
        )
    if output is not OutputFormat.TABLE:
        show_data([asdict(result) for result in results], output)
        return
    columns = [
        "CASE",
        "WANTED %",
        "MEASURED %",
        "ERROR",
        "OVERHEAD %",
        "IDLE %",
        "P99 ALONE",
        "P99 BESIDE",
        "ARBITER CPU %",
        "LAUNCH +NS",
        "ON ONE CORE",
        "TIMES IDEAL",
    ]
    rows = [
        [
            result.case,
            " ".join(f"{each:g}" for each in result.wanted),
            " ".join(f"{each:.1f}" for each in result.measured),
            *(
                "-" if value is None else f"{value:.2f}"
                for value in (
                    result.max_error_points,
                    result.overhead_percent,
                    result.idle_percent,
                    result.p99_ms_alone,
                    result.p99_ms_beside,
                    result.arbiter_cpu_percent,
                    result.launch_ns_over_bare,
                    result.launch_ns_over_bare_one_core,
                    result.times_ideal,
                )
            ),
        ]
        for result in results
    ]
    show_table(columns, rows, right=columns[3:])
