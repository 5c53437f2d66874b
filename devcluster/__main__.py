"""`python -m devcluster`: a cluster for a person.

It goes on after the command has ended; `down` removes it. Progress is on stderr, what is to be pasted on
stdout: `eval "$(python -m devcluster up)"` works, too.
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
from devcluster.platform import imagined_cards, install_platform
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
    parser = argparse.ArgumentParser(prog="python -m devcluster", description="A real Kubernetes to try things on.")
    commands = parser.add_subparsers(required=True, metavar="command")

    def command(name: str, run: object, text: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=text, description=text)
        sub.set_defaults(run=run)
        return sub

    command("build", build, "build the programs and images a cluster needs, if they are not there yet")
    up_command = command("up", up, "start a cluster that stays until `down`")
    up_command.add_argument("--name", default=DEFAULT_NAME, help=f"default: {DEFAULT_NAME}")
    up_command.add_argument("--nodes", type=int, default=1, help="real nodes (default: 1)")
    up_command.add_argument(
        "--kwok", type=int, default=0, metavar="N", help=f"KWOK nodes with {GPU_AMOUNT} {GPU_RESOURCE} each"
    )
    up_command.add_argument("--gpus", type=int, default=2, help="software GPUs of each real node (default: 2)")
    down_command = command("down", down, "remove a cluster and every trace of it")
    down_command.add_argument("--name", default=DEFAULT_NAME, help=f"default: {DEFAULT_NAME}")
    command("status", status, "show the clusters of this machine")
    clean_command = command("clean", clean, "remove all clusters, also those of tests that still run")
    clean_command.add_argument("--cache", action="store_true", help="remove built programs and images as well")
    return parser


def build(_options: argparse.Namespace) -> None:
    prepare(to_stderr, real_nodes=True, kwok_nodes=True)
    to_stderr(f"everything is built, in {cache.folder()}")


def up(options: argparse.Namespace) -> None:
    clusters = Clusters.of_this_machine()
    clusters.sweep()
    record = clusters.find(options.name)
    if record is None:
        started = time.monotonic()
        cluster = Cluster.start(options.name, real_nodes=options.nodes, detached=True, report=to_stderr)
        if options.kwok:
            resources = {GPU_RESOURCE: GPU_AMOUNT}
            # Before the policies, which would let only the nodes' agents write what GPUs they have.
            cluster.add_kwok_nodes(options.kwok, resources=resources, each=imagined_cards, prefix="kwok")
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
        to_stderr(f"no cluster {options.name} is up")
        return
    clusters.remove(record)
    to_stderr(f"cluster {options.name} is gone")


def status(_options: argparse.Namespace) -> None:
    records = Clusters.of_this_machine().all()
    for record in records:
        print(_describe(record))
    if not records:
        to_stderr("no cluster is up")


def _describe(record: Record) -> str:
    owner = "detached" if record.owner is None else f"of process {record.owner.pid}"
    state = "abandoned" if record.is_abandoned() else "up"
    processes = len(record.cgroup.pids())
    nodes = ", ".join(record.nodes) or "no real node"
    return f"{record.name}  {state}, {owner}, {processes} processes, {nodes}, {record.folder}/admin.kubeconfig"


def clean(options: argparse.Namespace) -> None:
    clusters = Clusters.of_this_machine()
    clusters.sweep()
    for record in clusters.all():
        clusters.remove(record)
        to_stderr(f"cluster {record.name} is gone")
    if options.cache:
        for kind in ("bin", "images"):
            shutil.rmtree(cache.folder() / kind, ignore_errors=True)
        to_stderr(f"removed what was built in {cache.folder()}")


if __name__ == "__main__":
    sys.exit(main())
