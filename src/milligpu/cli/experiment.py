"""`milligpu experiment`: what sharing a GPU does to density, throughput, latency and cost."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from milligpu.cli.output import OutputFormat, format_option, show_data, show_table
from milligpu.model.errors import BadRequest
from milligpu.model.units import BYTES_PER_MIB, Mib, parse_quantity, parse_whole

if TYPE_CHECKING:
    from milligpu.measure.experiments import ExperimentOptions, ExperimentResult

_TENANTS_MAX = 100


@click.command()
@click.argument("name", metavar="NAME")
@click.option("--model", default="K80", show_default=True, metavar="MODEL", help="Model of the software GPU.")
@click.option(
    "--size", default="228Mi", show_default=True, metavar="SIZE", help="Memory of one model (density, cost)."
)
@click.option(
    "--seconds",
    type=click.FloatRange(0.5, 600),
    default=3.0,
    show_default=True,
    help="Length of each measurement, in seconds.",
)
@click.option(
    "--tenants",
    default="1,2,5,10,20,30,50",
    show_default=True,
    metavar="N,N,…",
    help="Numbers of tenants or models to measure.",
)
@click.option(
    "--cpu-ms",
    type=click.FloatRange(0, 10_000),
    default=50.0,
    show_default=True,
    help="CPU time of a request before and after the GPU, in milliseconds (sequential, parallel, cost).",
)
@click.option(
    "--cluster/--machine",
    "cluster",
    default=False,
    show_default=True,
    help="Run the tenants as pods on a GPU of the cluster, or as processes on a software GPU of this machine.",
)
@click.option("--kubeconfig", metavar="FILE", help="Kubeconfig of the cluster (default: as kubectl).")
@click.option("-n", "--namespace", metavar="NAME", help="Namespace of the pods (default: as kubectl).")
@click.option(
    "--image",
    metavar="IMAGE",
    help="Image of the pods; it needs python3, and tinygrad for batching (default: python:3-slim).",
)
@click.option(
    "--out",
    default="out/experiments",
    show_default=True,
    metavar="FOLDER",
    help="Folder of NAME.json and NAME.svg.",
)
@format_option(OutputFormat.TABLE, OutputFormat.JSON, OutputFormat.YAML)
def command(  # noqa: PLR0917 - as click calls it
    name: str,
    model: str,
    size: str,
    seconds: float,
    tenants: str,
    cpu_ms: float,
    cluster: bool,
    kubeconfig: str | None,
    namespace: str | None,
    image: str | None,
    out: str,
    output: OutputFormat,
) -> None:
    """Run an experiment: density, nbody, sequential, parallel, batching, overhead or cost.

    Each runs real programs on a software GPU in modeled time, prints a table, and writes a picture and the data.
    Nothing else should run on the machine meanwhile. With --cluster they run as pods that have one GPU of the
    cluster for themselves, and are deleted in the end.
    """
    from milligpu.measure.experiments import NAMES, ExperimentOptions
    from milligpu.measure.picture import draw_rows
    from milligpu.softgpu.models import find_model

    if name not in NAMES:
        raise BadRequest("experiment", name, f"one of {', '.join(NAMES)}")
    options = ExperimentOptions(find_model(model).key, _mib(size), seconds, _counts(tenants), cpu_ms)
    if cluster:
        result, where = _on_cluster(name, options, kubeconfig, namespace, image), "the cluster"
    else:
        result, where = _on_machine(name, options), options.model
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    title = f"{name} on {where}"
    (folder / f"{name}.svg").write_text(draw_rows(title, result.rows, result.x, result.y, "cpu limit"))
    show = asdict(result)
    (folder / f"{name}.json").write_text(_json(show))
    if output is not OutputFormat.TABLE:
        show_data(show, output)
        return
    columns = list(dict.fromkeys(key for row in result.rows for key in row))
    table = [["-" if row.get(column) is None else str(row[column]) for column in columns] for row in result.rows]
    show_table([column.upper() for column in columns], table, right=[column.upper() for column in columns])
    for finding in result.findings:
        click.echo(f"\n{finding}")
    click.echo(f"\nPicture: {folder / name}.svg\nData: {folder / name}.json")


def _progress(text: str) -> None:
    click.echo(f"{text} …", err=True)


def _on_machine(name: str, options: "ExperimentOptions") -> "ExperimentResult":
    from milligpu.measure.experiments import Experiments
    from milligpu.measure.testbed import open_testbed, raise_priority

    if not raise_priority():
        click.echo("warning: no real-time priority (CAP_SYS_NICE): other programs affect the figures", err=True)
    with open_testbed(options.model) as testbed:
        return getattr(Experiments(testbed, options, _progress), name)()


def _on_cluster(
    name: str, options: "ExperimentOptions", kubeconfig: str | None, namespace: str | None, image: str | None
) -> "ExperimentResult":
    import signal
    import sys

    from milligpu.kube.config import find_cluster
    from milligpu.measure.cluster_experiments import IMAGE, ClusterExperiments, ClusterPlace

    # As Ctrl-C does: the pods are deleted on the way out.
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    place = ClusterPlace(kubeconfig, namespace or find_cluster(kubeconfig).namespace or "default", image or IMAGE)
    return getattr(ClusterExperiments(place, options, _progress), name)()


def _json(data: object) -> str:
    import json

    return json.dumps(data, indent=1) + "\n"


def _mib(text: str) -> Mib:
    found = int(parse_quantity("--size", text)) // BYTES_PER_MIB
    if found < 1:
        raise BadRequest("--size", text, "at least 1Mi")
    return Mib(found)


def _counts(text: str) -> tuple[int, ...]:
    return tuple(sorted({parse_whole("--tenants", part, 1, _TENANTS_MAX) for part in text.split(",")}))
