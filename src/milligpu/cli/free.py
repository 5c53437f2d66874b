"""`milligpu free`: the largest share that can be had now, per model."""

from dataclasses import asdict

import click

from milligpu.cli.output import Format, format_option, show_data, show_table


@click.command()
@click.option("--kubeconfig", metavar="FILE", help="Default: as kubectl.")
@format_option(Format.TABLE, Format.JSON, Format.YAML)
def command(kubeconfig: str | None, output: Format) -> None:
    """Show the largest share that can be had now, per model."""
    from milligpu.kube import config, fetch
    from milligpu.model.units import show_mib, show_milli
    from milligpu.scheduler.view import rooms, view

    with config.blocking_client(config.find(kubeconfig)) as client:
        found = rooms(view(fetch.nodes(client), fetch.pods(client)))
    if output is not Format.TABLE:
        show_data([asdict(room) for room in found], output)
        return
    columns = ["MODEL", "GPUS", "EMPTY", "LARGEST SHARE", "MEMORY", "WHERE", "FREE IN ALL"]
    rows = [
        [
            room.model,
            str(room.cards),
            str(room.whole),
            show_milli(room.milli),
            show_mib(room.mib),
            room.where or "-",
            show_milli(room.total),
        ]
        for room in found
    ]
    show_table(columns, rows, right=["GPUS", "EMPTY", "LARGEST SHARE", "MEMORY", "FREE IN ALL"])
