"""`milligpu cost`: what GPUs cost, allocated, used and idle, from the dashboard's history."""

import time
from typing import TYPE_CHECKING

import click

from milligpu.cli.history_options import history_path, load_prices
from milligpu.cli.output import OutputFormat, show_data, show_table
from milligpu.cli.scope import is_cluster_scope
from milligpu.model.errors import Unavailable

if TYPE_CHECKING:
    from milligpu.status.cost import CostLine, CostReport

_CSV = "csv"
_DAY = 86400.0


@click.command()
@click.option(
    "--cluster/--machine",
    "cluster",
    default=None,
    help="Show the cluster or this machine (default: as `milligpu top`).",
)
@click.option("--kubeconfig", metavar="FILE", help="Kubeconfig of the cluster (default: as kubectl).")
@click.option("--history", metavar="FILE", help="File of the history (default: in ~/.local/state/milligpu).")
@click.option("--prices", metavar="FILE", help="Prices of GPU models per hour, as TOML.")
@click.option(
    "--days", type=click.FloatRange(0.01, 90), default=30.0, show_default=True, help="How many days to add up."
)
@click.option(
    "--by",
    type=click.Choice(["owner", "queue", "user", "month", "holder"]),
    default="owner",
    show_default=True,
    help="A row per namespace or user (owner), per queue, per person, per calendar month of all GPUs, or per "
    "pod or session and GPU (holder).",
)
@click.option(
    "-o",
    "--output",
    type=click.Choice(["table", _CSV, "json"]),
    default="table",
    show_default=True,
    help="Output format.",
)
def command(  # noqa: PLR0917 - as click calls it
    cluster: bool | None,
    kubeconfig: str | None,
    history: str | None,
    prices: str | None,
    days: float,
    by: str,
    output: str,
) -> None:
    """Show GPU hours and their cost: allocated, used and idle, of each namespace or user, and of nobody.

    The hours are those that `milligpu dashboard` measured. The rows add up to the cost of the GPUs.
    """
    from pathlib import Path

    from milligpu.history.store import HistoryReader
    from milligpu.status.cost import cost_by_month, cost_report, sums_by_month, usage_sums

    wide = is_cluster_scope(cluster, kubeconfig)
    reader = HistoryReader(Path(history) if history else history_path(wide, kubeconfig))
    if not reader.exists():
        scope = "--cluster" if wide else "--machine"
        raise Unavailable(
            f"no history in {reader.path}", hint=f"only a running dashboard measures: milligpu dashboard {scope}"
        )
    since, priced = time.time() - days * _DAY, load_prices(prices)
    report = cost_report(usage_sums(reader.pieces(since)), priced)
    if by == "month":
        rows = cost_by_month(sums_by_month(reader.pieces(since)), priced)
    else:
        groups = {"owner": report.by_owner, "queue": report.by_queue, "user": report.by_user}
        rows = [*(groups[by]() if by in groups else report.holders), report.unallocated]
    if output == "json":
        show_data(_data(report, rows), OutputFormat.JSON)
    elif output == _CSV:
        _show_csv(report, rows)
    else:
        _show_table(report, rows)


def _numbers(line: "CostLine") -> list[float | None]:
    return [line.allocated_hours, line.used_hours, line.idle_hours, line.allocated, line.used, line.idle]


_FIELDS = ("allocated_hours", "used_hours", "idle_hours", "allocated_cost", "used_cost", "idle_cost")


def _data(report: "CostReport", rows: "list[CostLine]") -> dict[str, object]:
    def fields(line: "CostLine") -> dict[str, object]:
        return {"name": line.name, **dict(zip(_FIELDS, _numbers(line), strict=True))}

    return {
        "currency": report.currency or None,
        "since": report.since,
        "until": report.until,
        "rows": [fields(line) for line in rows],
        "total": fields(report.total),
        "models_without_price": list(report.unknown_models),
    }


def _show_csv(report: "CostReport", rows: "list[CostLine]") -> None:
    import csv
    import io

    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(["name", *_FIELDS, "currency"])
    for line in [*rows, report.total]:
        name = line.name or ("total" if line is report.total else "")
        writer.writerow(
            [name, *("unknown" if each is None else f"{each:.6f}" for each in _numbers(line)), report.currency]
        )
    click.echo(out.getvalue(), nl=False)


def _show_table(report: "CostReport", rows: "list[CostLine]") -> None:
    money = f" ({report.currency})" if report.currency else ""
    columns = ["NAME", "GPU HOURS", "USED", "IDLE", f"COST{money}", f"USED COST{money}", f"IDLE COST{money}"]
    rows = [*rows, report.total]
    names = [line.name or ("total" if line is report.total else "-") for line in rows]
    numbers = [["unknown" if each is None else f"{each:.2f}" for each in _numbers(line)] for line in rows]
    shown = [[name, *cells] for name, cells in zip(names, numbers, strict=True)]
    show_table(columns, shown, right=columns[1:])
    if report.currency and report.unknown_models:
        click.echo(f"no price for: {', '.join(report.unknown_models)}", err=True)
