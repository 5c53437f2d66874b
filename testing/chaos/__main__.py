"""Kill components of a cluster, round after round, and compare its records with what containers really hold."""

import argparse
import shutil
import statistics
import sys
from pathlib import Path

from devcluster.cluster import Cluster
from devcluster.fixtures import unique_name
from devcluster.platform import install_platform
from devcluster.report import to_stderr
from testing.chaos.testbed import NAMESPACE, ChaosTestbed, Outcome, run_rounds

GPUS = 2


def run(rounds: int, seed: int, logs: Path | None) -> Outcome:
    """Run on a new cluster; if there are violations, print the state of the cluster."""
    with Cluster.start(unique_name(), real_nodes=1) as cluster:
        outcome = run_rounds(ChaosTestbed(cluster, install_platform(cluster, devices=GPUS)), rounds, seed)
        if outcome.violations:
            to_stderr(cluster.last_state(NAMESPACE))
        if logs is not None:
            shutil.copytree(cluster.folder / "logs", logs, dirs_exist_ok=True)
        return outcome


def main() -> int:
    """Print the result; the exit code is 1 if there are violations."""
    parser = argparse.ArgumentParser(prog="python -m testing.chaos", description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--logs", type=Path, metavar="FOLDER", help="Copy the logs of all components to this directory."
    )
    options = parser.parse_args()
    outcome = run(options.rounds, options.seed, options.logs)
    print(f"rounds {outcome.rounds}, pods {outcome.pods}, checks {outcome.checks}")
    settled = outcome.settled_s
    print(f"time to settle after a round: median {statistics.median(settled):.1f} s, longest {max(settled):.1f} s")
    print(f"pods rejected by the kubelet: {outcome.rejected.total()}")
    for message, count in outcome.rejected.most_common():
        print(f"  {count} x {message}")
    print(f"container starts during which the kubelet was killed: {len(outcome.interrupted)}")
    print(f"pods that the kubelet never started after a reboot: {outcome.stranded}")
    print(f"violations: {len(outcome.violations)}")
    for violation in outcome.violations:
        print(f"  {violation}")
    return 1 if outcome.violations else 0


if __name__ == "__main__":
    sys.exit(main())
