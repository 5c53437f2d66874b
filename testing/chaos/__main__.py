"""Hurt a cluster, round after round, and compare the books with what containers really hold."""

import argparse
import shutil
import statistics
import sys
from pathlib import Path

from bench.chaos.stage import NAMESPACE, Outcome, Stage, perform
from devcluster.cluster import Cluster
from devcluster.fixtures import unique_name
from devcluster.platform import install_platform
from devcluster.report import to_stderr

CARDS = 2


def run(rounds: int, seed: int, logs: Path | None) -> Outcome:
    """On a cluster of its own; when something was wrong, it says how the cluster looked."""
    with Cluster.start(unique_name(), real_nodes=1) as cluster:
        outcome = perform(Stage(cluster, install_platform(cluster, devices=CARDS)), rounds, seed)
        if outcome.violations:
            to_stderr(cluster.last_state(NAMESPACE))
        if logs is not None:
            shutil.copytree(cluster.folder / "logs", logs, dirs_exist_ok=True)
        return outcome


def main() -> int:
    """Print what became of it."""
    parser = argparse.ArgumentParser(prog="python -m bench.chaos", description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--logs", type=Path, metavar="FOLDER", help="keep every component's log there")
    options = parser.parse_args()
    outcome = run(options.rounds, options.seed, options.logs)
    print(f"rounds {outcome.rounds}, pods {outcome.pods}, looks {outcome.looks}")
    rest = outcome.settled_s
    print(f"rest after a round: median {statistics.median(rest):.1f} s, longest {max(rest):.1f} s")
    print(f"rejected by the kubelet itself: {outcome.rejected.total()}")
    for words, count in outcome.rejected.most_common():
        print(f"  {count} x {words}")
    print(f"starts in the middle of which the kubelet was killed: {len(outcome.cut_off)}")
    print(f"pods that the kubelet never began with after a reboot: {outcome.stranded}")
    print(f"violations: {len(outcome.violations)}")
    for violation in outcome.violations:
        print(f"  {violation}")
    return 1 if outcome.violations else 0


if __name__ == "__main__":
    sys.exit(main())
