"""`milligpu dashboard`: pages about this machine's GPUs or the cluster's."""

import os
from pathlib import Path

import click

from milligpu.cli.scope import is_cluster_scope
from milligpu.model.errors import BadRequest, Unavailable


@click.command()
@click.option(
    "--cluster/--machine",
    "cluster",
    default=None,
    help="Show the cluster or this machine (default: as `milligpu top`).",
)
@click.option("--kubeconfig", metavar="FILE", help="Kubeconfig of the cluster (default: as kubectl).")
@click.option(
    "--listen",
    default="127.0.0.1:7080",
    show_default=True,
    metavar="ADDRESS:PORT",
    help="Address to serve; with port 0, any free port.",
)
@click.option(
    "--tokens",
    is_flag=True,
    help="Serve many people: each logs in with a Kubernetes token and sees what that token may see.",
)
@click.option("--tls-cert", metavar="FILE", help="Certificate of the service; required with --tokens on a network.")
@click.option("--tls-key", metavar="FILE", help="Private key of the certificate.")
@click.option(
    "-i",
    "--interval",
    type=click.FloatRange(0.5, 300),
    default=None,
    metavar="SECONDS",
    help="Time between measurements (default: 2 for a machine, 10 for a cluster).",
)
@click.option("--history", metavar="FILE", help="File of the history (default: in ~/.local/state/milligpu).")
@click.option(
    "--prometheus",
    metavar="URL",
    help="Prometheus that scrapes the agents: read the past from it instead of keeping a history.",
)
@click.option("--prices", metavar="FILE", help="Prices of GPU models per hour, as TOML.")
@click.option(
    "--save", metavar="FILE", help="HTML file to write at the end: one page of the last hour with its data inside."
)
@click.option(
    "--act",
    is_flag=True,
    help="Do what annotations of namespaces and queues ask for about idle pods: notify, or shrink.",
)
def command(  # noqa: PLR0917 - as click calls it
    cluster: bool | None,
    kubeconfig: str | None,
    listen: str,
    tokens: bool,
    tls_cert: str | None,
    tls_key: str | None,
    interval: float | None,
    history: str | None,
    prometheus: str | None,
    prices: str | None,
    save: str | None,
    act: bool,
) -> None:
    """Serve pages about GPUs, shares, what waits, cost and health, and print the address to open.

    The address contains a secret that works once; the browser gets a cookie for it. With --tokens, each person logs
    in with a Kubernetes token instead.
    """
    from milligpu.cli.history_options import history_path, load_prices
    from milligpu.dashboard.serve import DashboardSettings, serve_dashboard

    host, _, port = listen.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise BadRequest("--listen", listen, "ADDRESS:PORT")
    wide = is_cluster_scope(cluster, kubeconfig)
    if tokens and not wide:
        raise BadRequest("--tokens", "--machine", "used with --cluster: a machine has no API server to ask")
    if prometheus and not prometheus.startswith(("http://", "https://")):
        raise BadRequest("--prometheus", prometheus, "an address such as http://prometheus:9090")
    if act and not wide:
        raise BadRequest("--act", "--machine", "used with --cluster: namespaces and queues belong to clusters")
    loopback = host.strip("[]") in {"127.0.0.1", "::1", "localhost"}
    if tokens and not loopback and not (tls_cert and tls_key):
        raise BadRequest(
            "--tls-cert", None, "a certificate and --tls-key: tokens must not cross a network in clear"
        )
    if not tokens and not loopback:
        raise BadRequest("--listen", listen, "a loopback address, or use --tokens, so that others have to log in")
    if bool(tls_cert) != bool(tls_key):
        raise BadRequest("--tls-key" if tls_cert else "--tls-cert", None, "both or neither")
    for path in (tls_cert, tls_key):
        if path and not os.access(path, os.R_OK):
            raise Unavailable(f"cannot read {path}")
    serve_dashboard(
        DashboardSettings(
            cluster=wide,
            kubeconfig=kubeconfig,
            host=host.strip("[]"),
            port=int(port),
            tokens=tokens,
            tls=(tls_cert, tls_key) if tls_cert and tls_key else None,
            interval_s=interval or (10.0 if wide else 2.0),
            history=Path(history) if history else history_path(wide, kubeconfig),
            prices=load_prices(prices),
            save=Path(save) if save else None,
            prometheus=prometheus or "",
            act=act,
        ),
        say=lambda text: click.echo(text, err=True),
    )
