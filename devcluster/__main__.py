"""`python -m devcluster`: start a cluster to try things out.

The cluster keeps running after the command has ended; `down` removes it. Progress goes to stderr and the line to
paste to stdout, so `eval "$(python -m devcluster up)"` works, too.
"""

import argparse
import shutil
import sys
import time
from pathlib import Path

from devcluster import cache
from devcluster.build import KUBE, binaries
from devcluster.cluster import Cluster, prepare
from devcluster.errors import DevclusterError
from devcluster.platform import install_platform, kwok_inventory
from devcluster.record import Clusters, Record
from devcluster.report import to_stderr

DEFAULT_NAME = "dev"
GPU_RESOURCE = "nvidia.com/vgpu"
GPU_AMOUNT = "8000"


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    try:
        options.run(options)
    except DevclusterError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m devcluster", description="Run real Kubernetes clusters on this machine."
    )
    commands = parser.add_subparsers(required=True, metavar="command")

    def command(name: str, run: object, text: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=text, description=text)
        sub.set_defaults(run=run)
        return sub

    command("build", build, "build the programs and images that a cluster needs, unless they are built already")
    up_command = command("up", up, "start a cluster with milligpu; it runs until `down`")
    up_command.add_argument("--name", default=DEFAULT_NAME, help=f"name of the cluster (default: {DEFAULT_NAME})")
    up_command.add_argument("--nodes", type=int, default=1, help="number of real nodes (default: 1)")
    up_command.add_argument(
        "--kwok", type=int, default=0, metavar="N", help=f"KWOK nodes to add, with {GPU_AMOUNT} {GPU_RESOURCE} each"
    )
    up_command.add_argument("--gpus", type=int, default=2, help="software GPUs per real node (default: 2)")
    down_command = command("down", down, "remove a cluster and every trace of it")
    down_command.add_argument("--name", default=DEFAULT_NAME, help=f"name of the cluster (default: {DEFAULT_NAME})")
    command("status", status, "list the clusters on this machine")
    clean_command = command("clean", clean, "remove all clusters, including those of running tests")
    clean_command.add_argument("--cache", action="store_true", help="also remove the built programs and images")
    return parser


def build(_options: argparse.Namespace) -> None:
    prepare(to_stderr, real_nodes=True, kwok_nodes=True, nvidia_toolkit=True)
    to_stderr(f"programs and images are built in {cache.folder()}")


def up(options: argparse.Namespace) -> None:
    clusters = Clusters.of_this_machine()
    clusters.sweep()
    record = clusters.find(options.name)
    if record is None:
        started = time.monotonic()
        cluster = Cluster.start(options.name, real_nodes=options.nodes, detached=True, report=to_stderr)
        if options.kwok:
            resources = {GPU_RESOURCE: GPU_AMOUNT}
            # Before the admission policies, under which only a node's agent may write its inventory.
            cluster.add_kwok_nodes(options.kwok, resources=resources, each=kwok_inventory, prefix="kwok")
        to_stderr(
            f"installing milligpu: scheduler service, and on each node {options.gpus} software GPUs and the agent"
        )
        install_platform(cluster, devices=options.gpus)
        to_stderr(f"cluster {options.name} is up after {time.monotonic() - started:.1f} s; paste the next line:")
        record = clusters.find(options.name)
        assert record is not None
    elif record.owner is not None:
        raise DevclusterError(
            f"cluster {options.name} belongs to process {record.owner.pid}", "choose another --name"
        )
    else:
        to_stderr(f"cluster {options.name} is up already; paste the next line:")
    programs = f"{binaries(KUBE, to_stderr)}:{Path(sys.executable).parent}"
    print(f"export KUBECONFIG={record.folder}/admin.kubeconfig PATH={programs}:$PATH", flush=True)
    to_stderr("then:  kubectl apply -f examples/half-gpu.yaml")
    to_stderr("       kubectl wait --for=condition=complete --timeout=2m job/half-gpu")
    to_stderr("       kubectl logs job/half-gpu")
    to_stderr("       kubectl apply -f examples/dialects/kai.yaml")
    to_stderr("       milligpu explain kai")
    remove = (
        "make cluster-down" if options.name == DEFAULT_NAME else f"python -m devcluster down --name {options.name}"
    )
    to_stderr(f"to remove it:  {remove}")


def down(options: argparse.Namespace) -> None:
    clusters = Clusters.of_this_machine()
    record = clusters.find(options.name)
    if record is None:
        to_stderr(f"no cluster {options.name} is running")
        return
    clusters.remove(record)
    to_stderr(f"cluster {options.name} is removed")


def status(_options: argparse.Namespace) -> None:
    records = Clusters.of_this_machine().all()
    for record in records:
        print(_describe(record))
    if not records:
        to_stderr("no cluster is running")


def _describe(record: Record) -> str:
    owner = "detached" if record.owner is None else f"owned by process {record.owner.pid}"
    state = "abandoned" if record.is_abandoned() else "up"
    processes = len(record.cgroup.pids())
    nodes = ", ".join(record.nodes) or "no real nodes"
    return f"{record.name}  {state}, {owner}, {processes} processes, {nodes}, {record.folder}/admin.kubeconfig"


def clean(options: argparse.Namespace) -> None:
    clusters = Clusters.of_this_machine()
    clusters.sweep()
    for record in clusters.all():
        clusters.remove(record)
        to_stderr(f"cluster {record.name} is removed")
    if options.cache:
        for kind in ("bin", "images"):
            shutil.rmtree(cache.folder() / kind, ignore_errors=True)
        to_stderr(f"removed the programs and images in {cache.folder()}")


if __name__ == "__main__":
    sys.exit(main())
