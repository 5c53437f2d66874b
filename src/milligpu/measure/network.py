"""What a pass of the experiments' network takes of a GPU."""

import subprocess
import sys
from dataclasses import dataclass

from milligpu.measure import network_program
from milligpu.measure.testbed import Testbed
from milligpu.model.errors import Unavailable

_PASSES = 5


@dataclass(frozen=True, slots=True)
class NetworkProfile:
    """What one pass of the network takes of the GPU."""

    batch: int
    gpu_us: float
    memory: int
    """Bytes, without the process's CUDA context."""


def profile_network(testbed: Testbed, batch: int) -> NetworkProfile:
    """Run the real network on the testbed's GPU, without limits, and read what the GPU counted for it."""
    command = [sys.executable, "-m", network_program.__name__, str(batch)]
    environment = {**testbed.environment(None), **network_program.ENVIRONMENT}
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
