"""The model of the experiments: a small convolutional network with random weights, written with tinygrad.

`python -m milligpu.measure.network BATCH` prints "ready", then answers each line N with N passes and "done".
"""

# tinygrad exports its names without saying so, and leaves some of its types open.
# pyright: reportPrivateImportUsage=false, reportUnknownMemberType=false

import subprocess
import sys
from dataclasses import dataclass
from typing import IO

from milligpu.measure.testbed import Testbed
from milligpu.model.errors import Unavailable

# tinygrad writes PTX itself with this setting; NVIDIA's compiler no longer knows GPUs as old as the K80.
_ENVIRONMENT = {"DEV": "CUDA:PTX", "PARALLEL": "0"}
_PASSES = 5
# tinygrad compiles in the first two passes, and records the rest.
_WARM = 3


@dataclass(frozen=True, slots=True)
class NetworkProfile:
    """What one pass of the network takes of the GPU."""

    batch: int
    gpu_us: float
    memory: int
    """Bytes, without the process's CUDA context."""


def profile_network(testbed: Testbed, batch: int) -> NetworkProfile:
    """Run the real network on the testbed's GPU, without limits, and read what the GPU counted for it."""
    command = [sys.executable, "-m", "milligpu.measure.network", str(batch)]
    environment = {**testbed.environment(None), **_ENVIRONMENT}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            if process.stdout is None or process.stdin is None or process.stdout.readline() != "ready\n":
                _, errors = process.communicate(timeout=60)
                lines = errors.strip().splitlines() or ["it said nothing"]
                raise Unavailable(f"the network could not run: {lines[-1]}", hint="pip install tinygrad")
            before, _ = testbed.processes()[process.pid]
            process.stdin.write(f"{_PASSES}\n")
            process.stdin.flush()
            process.stdout.readline()
            after, memory = testbed.processes()[process.pid]
        finally:
            process.kill()
    return NetworkProfile(batch, (after - before) / _PASSES / 1000, memory - testbed.model.context_memory)


def main(batch: int, orders: IO[str], answers: IO[str]) -> None:
    """Serve passes of the network."""
    from tinygrad import Tensor, TinyJit, nn  # noqa: PLC0415 - only this program needs it

    first, second = nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.Conv2d(8, 16, 3, stride=2, padding=1)
    last = nn.Linear(16 * 8 * 8, 10)
    images = Tensor.rand(batch, 3, 32, 32).realize()

    @TinyJit
    def infer() -> Tensor:
        return last(second(first(images).relu()).relu().flatten(1)).softmax().realize()

    for _ in range(_WARM):
        infer().numpy()
    _say(answers, "ready")
    for line in orders:
        for _ in range(int(line)):
            infer().numpy()
        _say(answers, "done")


def _say(answers: IO[str], word: str) -> None:
    answers.write(f"{word}\n")
    answers.flush()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.stdin, sys.stdout)
