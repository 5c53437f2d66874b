"""Two trainings, one of which is checkpointed and restored onto another GPU midway.

There are two GPUs of one model and one of another. The parent runs as root and moves the child from the first to
the second.
"""

import json
import os
import socket
import subprocess
import sys

os.environ.setdefault("DEV", "CUDA")

STEPS, STOP = 8, 4


def train() -> None:
    import numpy as np  # noqa: PLC0415
    from tinygrad import Tensor, TinyJit, nn  # noqa: PLC0415
    from tinygrad.helpers import Context  # noqa: PLC0415

    Tensor.manual_seed(1)
    rng = np.random.default_rng(0)
    x, y = Tensor(rng.standard_normal((64, 16)).astype(np.float32)), Tensor(rng.integers(0, 4, 64).astype(np.int32))
    first, second = nn.Linear(16, 32), nn.Linear(32, 4)
    optimizer = nn.optim.Adam([*nn.state.get_parameters(first), *nn.state.get_parameters(second)], lr=1e-2)

    @TinyJit
    def step() -> Tensor:
        with Context(TRAINING=1):
            optimizer.zero_grad()
            loss = second(first(x).relu()).sparse_categorical_crossentropy(y).backward()
            optimizer.step()
            return loss.realize()

    for number in range(STEPS):
        print(step().item(), flush=True)
        if number == STOP - 1:
            sys.stdin.readline()


def state() -> list[dict]:
    with socket.socket(socket.AF_UNIX) as control:
        control.connect(os.environ["MILLIGPU_SOFTGPU"] + "/control.sock")
        control.shutdown(socket.SHUT_WR)
        return json.load(control.makefile())


def held(pid: int) -> list[int]:
    """The memory that a process holds on each GPU."""
    return [sum(each["memory"] for each in gpu["processes"] if each["pid"] == pid) for gpu in state()]


def spawn() -> subprocess.Popen:
    process = subprocess.Popen(
        [sys.executable, __file__, "train"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    process.losses = [float(process.stdout.readline()) for _ in range(STOP)]
    return process


def finish(process: subprocess.Popen) -> list[float]:
    process.stdin.close()
    process.losses += [float(line) for line in process.stdout]
    assert process.wait() == 0
    return process.losses


def pair(old: int, new: int):
    from driver import check, driver  # noqa: PLC0415

    found = driver.CUcheckpointGpuPair()
    found.oldUuid, found.newUuid = (check(driver.cuDeviceGetUuid(gpu)) for gpu in (old, new))
    arguments = driver.CUcheckpointRestoreArgs()
    arguments.gpuPairs = [found]
    arguments.gpuPairsCount = 1
    return arguments


def main() -> None:
    from driver import check, driver  # noqa: PLC0415

    check(driver.cuInit(0))
    still, moving = spawn(), spawn()
    pid = moving.pid
    results: dict[str, object] = {}

    def code(result: tuple) -> int:
        return int(result[0])

    def now() -> int:
        return int(check(driver.cuCheckpointProcessGetState(pid)))

    before = held(pid)
    results["orders out of turn"] = [
        code(driver.cuCheckpointProcessCheckpoint(pid, None)),
        code(driver.cuCheckpointProcessUnlock(pid, None)),
        code(driver.cuCheckpointProcessRestore(pid, None)),
    ]
    results["a process that is not there"] = code(driver.cuCheckpointProcessLock(1, None))
    states = [now()]
    check(driver.cuCheckpointProcessLock(pid, None))
    states.append(now())
    check(driver.cuCheckpointProcessCheckpoint(pid, None))
    states.append(now())
    results["freed"] = before[0] > 0 and held(pid) == [0, 0, 0]
    results["another model"] = code(driver.cuCheckpointProcessRestore(pid, pair(0, 2)))
    check(driver.cuCheckpointProcessRestore(pid, pair(0, 1)))
    states.append(now())
    results["moved"] = held(pid) == [0, before[0], 0]
    moving.stdin.write("\n")
    moving.stdin.flush()
    check(driver.cuCheckpointProcessUnlock(pid, None))
    states.append(now())
    results["states"] = states
    results["losses"] = [finish(still), finish(moving)]
    print(json.dumps(results))


if __name__ == "__main__":
    train() if len(sys.argv) > 1 else main()
