"""The network of the experiments: a small convolutional network with random weights, written with tinygrad.

`python -m milligpu.measure.network_program BATCH` prints "ready", then answers each line N with N passes and
"done". Its text is also sent to a container that has tinygrad and nothing of milligpu, where it makes passes until
it is stopped:

    python3 -c TEXT BATCH serve
"""

# tinygrad exports its names without saying so, and leaves some of its types open.
# pyright: reportPrivateImportUsage=false, reportUnknownMemberType=false

import sys
import time
from collections.abc import Callable

# tinygrad writes PTX itself with this setting; NVIDIA's compiler no longer knows GPUs as old as the K80.
ENVIRONMENT = {"DEV": "CUDA:PTX", "PARALLEL": "0"}
# tinygrad compiles in the first two passes, and records the rest.
WARM = 3


def main(batch: int, mode: str = "") -> None:
    """Load the network, and serve passes of it."""
    infer = load(batch)
    for _ in range(WARM):
        infer()
    if mode == "serve":
        say(f"{time.time():.3f} ready")
    else:
        say("ready")
    while mode == "serve":
        begin = time.monotonic()
        infer()
        say(f"{time.time():.3f} answered {1000 * (time.monotonic() - begin):.2f}")
    for line in sys.stdin:
        for _ in range(int(line)):
            infer()
        say("done")


def load(batch: int) -> Callable[[], object]:
    """Return what makes one pass with a batch of images, and waits for its result."""
    from tinygrad import Tensor, TinyJit, nn  # noqa: PLC0415 - only this program needs it

    first, second = nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.Conv2d(8, 16, 3, stride=2, padding=1)
    last = nn.Linear(16 * 8 * 8, 10)
    images = Tensor.rand(batch, 3, 32, 32).realize()

    @TinyJit
    def infer() -> Tensor:
        return last(second(first(images).relu()).relu().flatten(1)).softmax().realize()

    return lambda: infer().numpy()


def say(text: str) -> None:
    """Write a line that is read at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
