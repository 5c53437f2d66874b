"""GPUs over the network: the time of a training step against local, and copies against bare TCP.

PYTHONPATH=. uv run python bench/remote.py

The GPU takes modeled time, so that a step is 1 ms of GPU time wherever it is launched from. Delays come from a
proxy. The machine should be idle: figures of a busy one are those of its scheduler.
"""

import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from testing.network import SlowNetwork
from tests.remote.conftest import CLIENTS, GpuServer

STEPS = CLIENTS / "steps.py"
MILLIGPU = Path(sys.executable).parent / "milligpu"
COUNT = 100
ROUND_TRIPS_MS = (0.2, 1.0, 5.0)
COPY_MIB = 64
# A step may take as long as locally, one round trip, and this.
ALLOWED_MS = 0.3


def program(command: list[str], env: dict[str, str]) -> dict[str, float]:
    """Run the steps, and return the figures."""
    arguments = [*command, "--", sys.executable, str(STEPS), str(COUNT)]
    done = subprocess.run([MILLIGPU, *arguments], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def round_trips(counts: Path) -> float:
    """How often each step waited for the network."""
    operations: dict[str, list[int]] = json.loads(counts.read_text())["operations"]
    waits = sum(operations.get(name, [0, 0])[1] for name in ("synchronize", "cuGraphLaunch", "copy_out"))
    # The copies of 64 MiB at the end wait three times each way.
    return (waits - 6) / (COUNT + 5)


def bare_tcp() -> float:
    """MiB per second through a TCP connection of this machine, in pieces of a MiB as copies have."""
    data = bytes(1 << 20)

    def receive(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection:
            while connection.recv(1 << 20):
                pass

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=receive, args=(listener,))
        thread.start()
        started = time.perf_counter()
        with socket.create_connection(listener.getsockname()) as connection:
            for _ in range(COPY_MIB):
                connection.sendall(data)
        thread.join()
    return COPY_MIB / (time.perf_counter() - started)


def main() -> None:
    server = GpuServer(Path(tempfile.mkdtemp(prefix="mgb-")), 1, "--plain", speed="1")
    counts = server.folder / "counts.json"
    remote = {**server.client_env(), "MILLIGPU_REMOTE_COUNTS": str(counts)}
    try:
        local = program(["run"], {**os.environ, **server.machine.env})
        print(f"local: {local['step_ms']:.2f} ms a step")

        def show(name: str, address: str, round_trip_ms: float) -> dict[str, float]:
            found = program(["run", "--remote", "--plain", "--servers", address], remote)
            more = found["step_ms"] - local["step_ms"] - round_trip_ms
            trips = round_trips(counts)
            print(
                f"{name}: {found['step_ms']:.2f} ms a step, {trips:.2f} round trips; more than local and a round "
                f"trip by {more:.2f} ms (goal: {ALLOWED_MS})"
            )
            return found

        near = show("no delay", server.address, 0)
        for delay in ROUND_TRIPS_MS:
            network = SlowNetwork(server.host, server.port, delay / 2000)
            try:
                show(f"{delay:g} ms", network.address, delay)
            finally:
                network.close()
        tcp = max(bare_tcp() for _ in range(3))
        for way in ("in", "out"):
            speed = near[f"{way}_mib_per_s"]
            print(f"64 MiB {way}: {speed:.0f} MiB/s, {100 * speed / tcp:.0f} % of bare TCP (goal: 80)")
    finally:
        server.close()


if __name__ == "__main__":
    main()
