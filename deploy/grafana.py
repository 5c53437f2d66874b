"""Grafana dashboards over the agents' metrics: `make chart` writes them into the chart.

They are made with Grafana's own SDK, so that a field that Grafana does not know fails here.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grafana_foundation_sdk.builders import common, dashboard, prometheus, stat, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common as common_models
from grafana_foundation_sdk.models import dashboard as models

FOLDER = Path(__file__).parent / "chart" / "files" / "dashboards"
_SOURCE = models.DataSourceRef(type_val="prometheus", uid="${datasource}")
_COLUMNS = 24
_STAT_HEIGHT, _GRAPH_HEIGHT = 4, 8
_GPU = 'Hostname=~"$node",UUID=~"$gpu"'
_POD = 'namespace=~"$namespace",pod=~"$pod"'
_RATE = "[$__rate_interval]"


@dataclass(frozen=True, slots=True)
class Query:
    """One PromQL expression and the name of each series that it returns."""

    expression: str
    legend: str = ""


@dataclass(frozen=True, slots=True)
class Graph:
    """One panel: a single number, or lines over time."""

    title: str
    unit: str
    queries: Sequence[Query]
    help: str = ""
    stacked: bool = False
    single: bool = False


@dataclass(frozen=True, slots=True)
class Board:
    """One dashboard: rows of panels, and the labels by which a reader can choose."""

    name: str
    title: str
    rows: Sequence[tuple[str, Sequence[Graph]]]
    choices: Sequence[tuple[str, str]] = ()
    """Name of a variable, and the query that lists its values."""
    inputs: Sequence[tuple[str, str, str]] = ()
    """Name, label and first value of what a reader types."""


def number(title: str, unit: str, expression: str, about: str = "") -> Graph:
    """A panel with one number."""
    return Graph(title, unit, (Query(expression),), about, single=True)


def lines(title: str, unit: str, *queries: tuple[str, str], about: str = "", stacked: bool = False) -> Graph:
    """A panel with lines over time; each query is an expression and a legend."""
    return Graph(title, unit, tuple(Query(*each) for each in queries), about, stacked)


_NODES = ("node", "label_values(milligpu_gpu_healthy, Hostname)")
_GPUS = ("gpu", 'label_values(milligpu_gpu_healthy{Hostname=~"$node"}, UUID)')
_NAMESPACES = ("namespace", "label_values(milligpu_container_share_ratio, namespace)")
_PODS = ("pod", 'label_values(milligpu_container_share_ratio{namespace=~"$namespace"}, pod)')
_EACH_GPU = "{{Hostname}} {{gpu}}"
_EACH_POD = "{{namespace}}/{{pod}} {{container}}"

CLUSTER = Board(
    "cluster",
    "milligpu: cluster",
    (
        (
            "GPUs",
            (
                number("GPUs", "short", "sum(milligpu_gpu_capacity_ratio)"),
                number(
                    "Allocated",
                    "percentunit",
                    "1 - sum(milligpu_gpu_unallocated_ratio) / sum(milligpu_gpu_capacity_ratio)",
                    "Compute that containers and sessions hold.",
                ),
                number(
                    "Used",
                    "percentunit",
                    f"1 - sum(rate(milligpu_gpu_idle_seconds_total{_RATE}))"
                    f" / sum(rate(milligpu_gpu_shared_seconds_total{_RATE}))",
                    "GPU time that holders were charged, of GPUs that are shared.",
                ),
                number("Unhealthy", "short", "sum(1 - milligpu_gpu_healthy)"),
                number("Power", "watt", "sum(milligpu_gpu_power_watts)"),
                number("Average temperature", "celsius", "avg(milligpu_gpu_temperature_celsius)"),
            ),
        ),
        (
            "Use",
            (
                lines(
                    "Compute held and used",
                    "short",
                    ("sum(milligpu_gpu_capacity_ratio)", "total"),
                    ("sum(milligpu_gpu_capacity_ratio - milligpu_gpu_unallocated_ratio)", "held"),
                    (f"sum(rate(milligpu_container_gpu_seconds_total{_RATE}))", "used by containers"),
                    about="In GPUs.",
                ),
                lines(
                    "Memory held and used",
                    "bytes",
                    ("sum(milligpu_gpu_memory_total_bytes)", "total"),
                    ("sum(milligpu_gpu_memory_total_bytes - milligpu_gpu_unallocated_memory_bytes)", "held"),
                    ("sum(milligpu_gpu_memory_used_bytes)", "used"),
                ),
                lines(
                    "Used by namespace",
                    "short",
                    (f"sum by (namespace) (rate(milligpu_container_gpu_seconds_total{_RATE}))", "{{namespace}}"),
                    stacked=True,
                    about="In GPUs.",
                ),
                lines(
                    "Pods by stage",
                    "short",
                    ("sum by (stage) (milligpu_scheduler_pods)", "{{stage}}"),
                    about="Pods that request GPUs, as the scheduler service sees them.",
                ),
            ),
        ),
    ),
)

GPU = Board(
    "gpu",
    "milligpu: node and GPU",
    (
        (
            "Load",
            (
                lines("Utilization", "percentunit", (f"milligpu_gpu_utilization_ratio{{{_GPU}}}", _EACH_GPU)),
                lines("Memory in use", "bytes", (f"milligpu_gpu_memory_used_bytes{{{_GPU}}}", _EACH_GPU)),
                lines(
                    "Compute that nobody holds",
                    "short",
                    (f"milligpu_gpu_unallocated_ratio{{{_GPU}}}", _EACH_GPU),
                    about="In GPUs.",
                ),
                lines(
                    "Encoder and decoder",
                    "percentunit",
                    (f"milligpu_gpu_encoder_utilization_ratio{{{_GPU}}}", f"{_EACH_GPU} encoder"),
                    (f"milligpu_gpu_decoder_utilization_ratio{{{_GPU}}}", f"{_EACH_GPU} decoder"),
                ),
            ),
        ),
        (
            "Power, heat and clocks",
            (
                lines(
                    "Power",
                    "watt",
                    (f"milligpu_gpu_power_watts{{{_GPU}}}", _EACH_GPU),
                    (f"milligpu_gpu_power_limit_watts{{{_GPU}}}", f"{_EACH_GPU} limit"),
                ),
                lines("Temperature", "celsius", (f"milligpu_gpu_temperature_celsius{{{_GPU}}}", _EACH_GPU)),
                lines("Clock", "hertz", (f"milligpu_gpu_clock_hertz{{{_GPU}}}", _EACH_GPU)),
                lines(
                    "Time lost to reduced clocks",
                    "percentunit",
                    (
                        f"rate(milligpu_gpu_throttled_seconds_total{{{_GPU}}}{_RATE})",
                        f"{_EACH_GPU} {{{{reason}}}}, from {{{{source}}}}",
                    ),
                ),
            ),
        ),
        (
            "Traffic",
            (
                lines(
                    "PCIe",
                    "Bps",
                    (f"milligpu_gpu_pcie_sent_bytes_per_second{{{_GPU}}}", f"{_EACH_GPU} sent"),
                    (f"milligpu_gpu_pcie_received_bytes_per_second{{{_GPU}}}", f"{_EACH_GPU} received"),
                ),
                lines(
                    "NVLink",
                    "Bps",
                    (f"rate(milligpu_gpu_nvlink_sent_bytes_total{{{_GPU}}}{_RATE})", f"{_EACH_GPU} sent"),
                    (f"rate(milligpu_gpu_nvlink_received_bytes_total{{{_GPU}}}{_RATE})", f"{_EACH_GPU} received"),
                    about="Of all links of a GPU together.",
                ),
            ),
        ),
        (
            "Errors",
            (
                lines(
                    "Driver errors (XIDs)",
                    "short",
                    (f"increase(milligpu_gpu_xid_errors_total{{{_GPU}}}{_RATE})", _EACH_GPU),
                ),
                lines(
                    "Memory errors",
                    "short",
                    (f"milligpu_gpu_ecc_uncorrected_total{{{_GPU}}}", f"{_EACH_GPU} uncorrected"),
                    (f"milligpu_gpu_ecc_corrected_total{{{_GPU}}}", f"{_EACH_GPU} corrected"),
                    (f"milligpu_gpu_remapped_rows_uncorrected_total{{{_GPU}}}", f"{_EACH_GPU} rows replaced"),
                ),
                lines("PCIe replays", "short", (f"milligpu_gpu_pcie_replays_total{{{_GPU}}}", _EACH_GPU)),
                lines("Healthy", "bool", (f"milligpu_gpu_healthy{{{_GPU}}}", _EACH_GPU)),
            ),
        ),
    ),
    (_NODES, _GPUS),
)

POD = Board(
    "pod",
    "milligpu: pod",
    (
        (
            "Compute",
            (
                lines(
                    "Use against share and limit",
                    "short",
                    (f"rate(milligpu_container_gpu_seconds_total{{{_POD}}}{_RATE})", f"{_EACH_POD} used"),
                    (f"milligpu_container_share_ratio{{{_POD}}}", f"{_EACH_POD} share"),
                    (f"milligpu_container_limit_ratio{{{_POD}}}", f"{_EACH_POD} limit"),
                    about="In GPUs.",
                ),
                lines(
                    "Waiting for the GPU",
                    "percentunit",
                    (f"rate(milligpu_container_waiting_seconds_total{{{_POD}}}{_RATE})", _EACH_POD),
                    (
                        f"rate(milligpu_container_throttled_seconds_total{{{_POD}}}{_RATE})",
                        f"{_EACH_POD} at its own limit",
                    ),
                    about="Fraction of the time.",
                ),
            ),
        ),
        (
            "Memory",
            (
                lines(
                    "Memory",
                    "bytes",
                    (f"milligpu_container_memory_used_bytes{{{_POD}}}", f"{_EACH_POD} used"),
                    (f"milligpu_container_memory_peak_bytes{{{_POD}}}", f"{_EACH_POD} peak"),
                    (f"milligpu_container_memory_limit_bytes{{{_POD}}}", f"{_EACH_POD} limit"),
                ),
                lines(
                    "Refused allocations",
                    "short",
                    (f"increase(milligpu_container_out_of_memory_total{{{_POD}}}{_RATE})", _EACH_POD),
                ),
            ),
        ),
        (
            "Energy",
            (
                lines("Power", "watt", (f"milligpu_container_power_watts{{{_POD}}}", _EACH_POD), stacked=True),
                lines("Energy", "joule", (f"milligpu_container_energy_joules_total{{{_POD}}}", _EACH_POD)),
            ),
        ),
    ),
    (_NAMESPACES, _PODS),
)

COST = Board(
    "cost",
    "milligpu: cost",
    (
        (
            "Per hour",
            (
                number("GPUs", "none", "sum(milligpu_gpu_capacity_ratio) * $price"),
                number(
                    "Held",
                    "none",
                    "sum(milligpu_gpu_capacity_ratio - milligpu_gpu_unallocated_ratio) * $price",
                ),
                number("Nobody holds", "none", "sum(milligpu_gpu_unallocated_ratio) * $price"),
                number(
                    "Held and idle",
                    "none",
                    "sum(milligpu_container_share_ratio) * $price"
                    f" - sum(rate(milligpu_container_gpu_seconds_total{_RATE})) * $price",
                    "What containers hold and do not use.",
                ),
            ),
        ),
        (
            "Namespaces",
            (
                lines(
                    "Cost per hour",
                    "none",
                    ("sum by (namespace) (milligpu_container_share_ratio) * $price", "{{namespace}}"),
                    ("sum(milligpu_gpu_unallocated_ratio) * $price", "nobody"),
                    stacked=True,
                ),
                lines(
                    "Idle cost per hour",
                    "none",
                    (
                        "sum by (namespace) (milligpu_container_share_ratio"
                        f" - rate(milligpu_container_gpu_seconds_total{_RATE})) * $price",
                        "{{namespace}}",
                    ),
                    about="Negative where a namespace uses idle time of others, which costs it nothing.",
                ),
                lines(
                    "Energy",
                    "watt",
                    (f"sum by (namespace) (rate(milligpu_container_energy_joules_total{_RATE}))", "{{namespace}}"),
                    (f"sum(rate(milligpu_gpu_unallocated_energy_joules_total{_RATE}))", "nobody"),
                    stacked=True,
                ),
            ),
        ),
    ),
    inputs=(("price", "Price of a GPU hour", "2.00"),),
)

BOARDS = (CLUSTER, GPU, POD, COST)


def expressions(board: Board) -> list[str]:
    """Every PromQL expression of a dashboard."""
    return [query.expression for _, graphs in board.rows for graph in graphs for query in graph.queries]


def build(board: Board) -> dict[str, Any]:
    """Make a dashboard as Grafana imports it."""
    made = (
        dashboard.Dashboard(board.title)
        .uid(f"milligpu-{board.name}")
        .tags(["milligpu"])
        .refresh("30s")
        .time("now-6h", "now")
        .timezone("browser")
        .tooltip(models.DashboardCursorSync.CROSSHAIR)
        .with_variable(dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus"))
        .link(
            dashboard.DashboardLink("milligpu")
            .type(models.DashboardLinkType.DASHBOARDS)
            .tags(["milligpu"])
            .as_dropdown(True)
        )
    )
    for name, query in board.choices:
        made = made.with_variable(_choice(name, query))
    for name, label, value in board.inputs:
        made = made.with_variable(dashboard.TextBoxVariable(name).label(label).default_value(value))
    for title, graphs in board.rows:
        made = made.with_row(dashboard.Row(title))
        for graph in graphs:
            made = made.with_panel(_panel(graph, len(graphs)))
    return json.loads(JSONEncoder(sort_keys=True).encode(made.build()))


def _choice(name: str, query: str) -> dashboard.QueryVariable:
    return (
        dashboard.QueryVariable(name)
        .label(name.capitalize() if name != "gpu" else "GPU")
        .datasource(_SOURCE)
        .query(query)
        .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .include_all(True)
        .multi(True)
        .current(models.VariableOption(selected=True, text="All", value="$__all"))
    )


def _panel(graph: Graph, among: int) -> stat.Panel | timeseries.Panel:
    width = max(_COLUMNS // among, 4 if graph.single else 6)
    panel: Any = _single() if graph.single else _graph(stacked=graph.stacked)
    panel = panel.title(graph.title).unit(graph.unit).datasource(_SOURCE).span(width)
    panel = panel.height(_STAT_HEIGHT if graph.single else _GRAPH_HEIGHT)
    if graph.help:
        panel = panel.description(graph.help)
    for place, query in enumerate(graph.queries):
        target = prometheus.Dataquery().expr(query.expression).ref_id(chr(ord("A") + place)).range()
        panel = panel.with_target(target.legend_format(query.legend) if query.legend else target)
    return panel


def _single() -> stat.Panel:
    return (
        stat.Panel()
        .graph_mode(common_models.BigValueGraphMode.AREA)
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
        .color_scheme(dashboard.FieldColor().mode(models.FieldColorModeId.FIXED).fixed_color("green"))
    )


def _graph(*, stacked: bool) -> timeseries.Panel:
    panel = timeseries.Panel().fill_opacity(20 if stacked else 5).line_width(1.5)
    panel = panel.show_points(common_models.VisibilityMode.NEVER).axis_soft_min(0)
    panel = panel.legend(
        common.VizLegendOptions()
        .show_legend(True)
        .placement(common_models.LegendPlacement.BOTTOM)
        .display_mode(common_models.LegendDisplayMode.LIST)
    )
    if stacked:
        panel = panel.stacking(common.StackingConfig().mode(common_models.StackingMode.NORMAL))
    return panel


def files() -> dict[Path, str]:
    """The dashboards as files of the chart."""
    return {FOLDER / f"{board.name}.json": json.dumps(build(board), indent=1) + "\n" for board in BOARDS}
