"""`milligpu class`: the classes of the cluster, and what is free in each."""

from dataclasses import asdict

import click

from milligpu.cli.output import OutputFormat, format_option, show_data, show_table


@click.group()
def command() -> None:
    """Show the GPU classes of the cluster."""


@command.command("list")
@click.option("--kubeconfig", metavar="FILE", help="Kubeconfig of the cluster (default: as kubectl).")
@format_option(OutputFormat.TABLE, OutputFormat.WIDE, OutputFormat.JSON, OutputFormat.YAML, OutputFormat.NAME)
def list_(kubeconfig: str | None, output: OutputFormat) -> None:
    """List the classes with their requirements, their GPUs, and the largest share available now.

    A GPU may be of several classes. Create a class with `kubectl apply`; see docs/requests.md.
    """
    from milligpu.cluster.capacity import ClassCapacity, capacity_by_class
    from milligpu.cluster.read import read_cluster
    from milligpu.kube import config, fetch
    from milligpu.model.units import show_mib, show_milli

    def row(found: ClassCapacity) -> list[str]:
        largest = [show_milli(found.milli), show_mib(found.mib)] if found.milli else ["0", "-"]
        cells = [found.name, found.requirements, found.fallback or "-", "yes" if found.ready else found.reason]
        cells += [str(found.gpus), str(found.whole), *largest, show_milli(found.total)]
        if output is not OutputFormat.WIDE:
            return cells
        return [*cells, found.driver or "-", found.cuda or "-", found.where or "-", found.message or "-"]

    with config.blocking_client(config.find_cluster(kubeconfig)) as client:
        objects = fetch.list_classes(client)
        found = capacity_by_class(read_cluster(fetch.list_nodes(client), fetch.list_pods(client), objects), objects)
    match output:
        case OutputFormat.NAME:
            for each in found:
                click.echo(each.name)
        case OutputFormat.JSON | OutputFormat.YAML:
            show_data([asdict(each) for each in found], output)
        case _:
            columns = ["CLASS", "REQUIREMENTS", "FALLBACK", "READY", "GPUS", "EMPTY", "LARGEST SHARE", "MEMORY"]
            more = ["DRIVER", "CUDA", "WHERE", "MESSAGE"] if output is OutputFormat.WIDE else []
            columns += ["FREE IN ALL", *more]
            right = ["GPUS", "EMPTY", "LARGEST SHARE", "MEMORY", "FREE IN ALL"]
            if found:
                show_table(columns, [row(each) for each in found], right=right)
            else:
                click.echo("no class exists; docs/requests.md shows how to create one", err=True)
