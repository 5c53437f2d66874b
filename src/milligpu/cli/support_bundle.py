"""`milligpu support-bundle`: an archive for somebody who helps with a cluster."""

from pathlib import Path

import click


@click.command()
@click.option(
    "-n", "--namespace", default="milligpu", show_default=True, metavar="NAME", help="Namespace of milligpu."
)
@click.option("--kubeconfig", metavar="FILE", help="Kubeconfig of the cluster (default: as kubectl).")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False), default=Path("milligpu-support.tar.gz"))
def command(namespace: str, kubeconfig: str | None, file: Path) -> None:
    """Write FILE (default: milligpu-support.tar.gz) with logs, objects, versions, checks and the cluster's status.

    Secrets, tokens, environment values and names of people, pods and namespaces are redacted: see docs/install.md.
    Look into the archive before you send it.
    """
    import asyncio
    from dataclasses import asdict

    from milligpu.checks.before_install import check_cluster
    from milligpu.installation.support_bundle import collect, write_bundle
    from milligpu.status.cluster import read_cluster_status

    def checks() -> list[dict[str, str]]:
        results = asyncio.run(check_cluster(kubeconfig, namespace))
        return [{key: str(value) for key, value in asdict(each).items()} for each in results]

    files = collect(
        kubeconfig,
        namespace,
        {"checks.json": checks, "status.json": lambda: read_cluster_status(kubeconfig).as_data()},
    )
    write_bundle(file, files)
    click.echo(f"{file}: {len(files)} files")
    if "errors.txt" in files:
        click.echo("warning: some things could not be read: see errors.txt in the archive", err=True)
