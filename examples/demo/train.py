"""Train a small network with tinygrad until told to stop, and say how it goes: a line of JSON for each step.

milligpu run -p 0.5 -- python examples/demo/train.py [STEPS]
"""

import json
import os
import sys

os.environ.setdefault("DEV", "CUDA")
os.environ.setdefault("PARALLEL", "0")  # several trainings share the processors

import numpy as np
from tinygrad import Tensor, TinyJit, nn
from tinygrad.helpers import Context


class Net:
    """Two layers; the target is which of its first ten inputs is the largest."""

    def __init__(self) -> None:
        self.first = nn.Linear(32, 64)
        self.second = nn.Linear(64, 10)

    def __call__(self, x: Tensor) -> Tensor:
        return self.second(self.first(x).relu())


def main() -> None:
    Tensor.manual_seed(1)
    rng = np.random.default_rng(0)
    inputs = rng.standard_normal((128, 32)).astype(np.float32)
    labels = inputs[:, :10].argmax(1).astype(np.int32)
    x, y, net = Tensor(inputs), Tensor(labels), Net()
    optimizer = nn.optim.Adam(nn.state.get_parameters(net), lr=1e-3)

    @TinyJit
    def step() -> Tensor:
        with Context(TRAINING=1):
            optimizer.zero_grad()
            loss = net(x).sparse_categorical_crossentropy(y).backward()
            optimizer.step()
            return loss.realize()

    steps = int(sys.argv[1]) if len(sys.argv) > 1 else sys.maxsize
    for number in range(1, steps + 1):
        print(json.dumps({"step": number, "loss": round(step().item(), 4)}), flush=True)


if __name__ == "__main__":
    main()
