"""`milligpu scheduler`: the service, and the files that a cluster needs for it."""

import click

from milligpu.cli.output import Format, format_option, show_data


@click.group()
def command() -> None:
    """Serve kube-scheduler, and write what a cluster needs for it."""


@command.command()
@click.option("--kubeconfig", metavar="FILE", help="Default: the pod's service account, else as kubectl.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Where kube-scheduler reaches the service.")
@click.option("--port", type=click.IntRange(1, 65535), default=8888, show_default=True)
def serve(kubeconfig: str | None, host: str, port: int) -> None:
    """Answer kube-scheduler's questions, until SIGTERM."""
    from milligpu.scheduler import service  # noqa: PLC0415 - the web server is not for the other commands

    service.main(service.Settings(kubeconfig=kubeconfig, host=host, port=port))


@command.command()
@click.option("--url", default="http://127.0.0.1:8888", show_default=True, help="Where the service is.")
@click.option(
    "--scheduler-name", metavar="NAME", help="For a second scheduler of this name; without, for the default one."
)
@format_option(Format.YAML, Format.JSON)
def config(url: str, scheduler_name: str | None, output: Format) -> None:
    """Print the KubeSchedulerConfiguration that makes kube-scheduler ask the service."""
    from milligpu.scheduler import config as configs  # noqa: PLC0415

    if scheduler_name is None:
        show_data(configs.in_default_scheduler(url), output)
    else:
        show_data(configs.second_scheduler(url, scheduler_name), output)
