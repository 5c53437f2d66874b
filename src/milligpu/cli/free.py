"""`milligpu free`: the largest share available now, per GPU model."""

from dataclasses import asdict

import click

from milligpu.cli.output import OutputFormat, format_option, show_data, show_table


@click.command()
@click.option("--kubeconfig", metavar="FILE", help="Kubeconfig of the cluster (default: as kubectl).")
@format_option(OutputFormat.TABLE, OutputFormat.JSON, OutputFormat.YAML)
def command(kubeconfig: str | None, output: OutputFormat) -> None:
    """Show the largest share available now, per GPU model."""
    from milligpu.cluster.capacity import capacity_by_model
    from milligpu.kube import config
    from milligpu.model.units import show_mib, show_milli
    from milligpu.status.state import read_state

    with config.blocking_client(config.find_cluster(kubeconfig)) as client:
        found = capacity_by_model(read_state(client))
    if output is not OutputFormat.TABLE:
        show_data([asdict(room) for room in found], output)
        return
    columns = ["MODEL", "GPUS", "EMPTY", "LARGEST SHARE", "MEMORY", "WHERE", "FREE IN ALL"]
    rows = [
        [
            room.model,
            str(room.gpus),
            str(room.whole),
            show_milli(room.milli),
            show_mib(room.mib),
            _where(room.where),
            show_milli(room.total),
        ]
        for room in found
    ]
    show_table(columns, rows, right=["GPUS", "EMPTY", "LARGEST SHARE", "MEMORY", "FREE IN ALL"])


def _where(place: str) -> str:
    from milligpu.model.gpu import short_uuid

    node, _, uuid = place.rpartition("/")
    return f"{node}/{short_uuid(uuid)}" if uuid else "-"
