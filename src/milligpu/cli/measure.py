"""`milligpu bench`: measurements on a software GPU in modelled time."""

from dataclasses import asdict

import click

from milligpu.cli.output import Format, format_option, show_data, show_table
from milligpu.model.errors import BadRequest


@click.group()
def command() -> None:
    """Measure on this machine; nothing else should run meanwhile."""


@command.command()
@click.option("--case", "names", multiple=True, metavar="NAME", help="Only this one; may be repeated.")
@format_option(Format.TABLE, Format.JSON, Format.YAML)
def enforce(names: tuple[str, ...], output: Format) -> None:
    """How exactly shares are held, and what that costs: real programs on a software GPU in modelled time."""
    from milligpu.bench.enforce import LATE_MAX, cases, measure
    from milligpu.bench.stage import come_first, stage

    known = cases()
    for name in names:
        if name not in known:
            raise BadRequest("--case", name, f"one of {', '.join(known)}")
    if not come_first():
        click.echo("no real-time priority (CAP_SYS_NICE): what else runs here shows in the figures", err=True)
    with stage() as scene:
        results = list(measure(scene, names or known, lambda text: click.echo(f"{text} …", err=True)))
    late = [result.case for result in results if result.late_launches > LATE_MAX]
    if late:
        click.echo(f"this machine was too slow for the modelled card, not exact: {', '.join(late)}", err=True)
    if output is not Format.TABLE:
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
                )
            ),
        ]
        for result in results
    ]
    show_table(columns, rows, right=columns[3:])
