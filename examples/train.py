"""Train a small network with tinygrad and print a line for each step.

milligpu softgpu exec --memory 4Gi -- python examples/train.py
milligpu run -p 0.5 -- python examples/train.py --steps 0
"""

# tinygrad exports its names without saying so, and leaves some of its types open.
# pyright: reportPrivateImportUsage=false, reportUnknownMemberType=false

import argparse
import itertools
import os
import time

os.environ.setdefault("DEV", "CUDA")
# For about fifty small kernels, tinygrad's own process pool costs more time than it saves.
os.environ.setdefault("PARALLEL", "0")

import numpy as np
from tinygrad import Device, Tensor, TinyJit, nn
from tinygrad.helpers import Context


class Net:
    """Two layers; they learn which of the first ten inputs is the largest."""

    def __init__(self) -> None:
        self.first = nn.Linear(32, 64)
        self.second = nn.Linear(64, 10)

    def __call__(self, x: Tensor) -> Tensor:
        return self.second(self.first(x).relu())


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=30, help="number of steps; 0 trains until it is stopped")
    parser.add_argument("--rate", type=float, default=0.01, help="learning rate")
    return parser.parse_args()


def main() -> None:
    options = arguments()
    Tensor.manual_seed(1)
    rng = np.random.default_rng(0)
    inputs = rng.standard_normal((128, 32)).astype(np.float32)
    labels = inputs[:, :10].argmax(1).astype(np.int32)
    x, y, net = Tensor(inputs), Tensor(labels), Net()
    optimizer = nn.optim.Adam(nn.state.get_parameters(net), lr=options.rate)

    @TinyJit
    def step() -> Tensor:
        with Context(TRAINING=1):
            optimizer.zero_grad()
            loss = net(x).sparse_categorical_crossentropy(y).backward()
            optimizer.step()
            return loss.realize()

    print(f"{'step':>4}  {'loss':>8}  {'seconds':>8}  on {Device.DEFAULT}", flush=True)
    for number in range(1, options.steps + 1) if options.steps else itertools.count(1):
        start = time.perf_counter()
        loss = step().item()
        print(f"{number:4}  {loss:8.4f}  {time.perf_counter() - start:8.3f}", flush=True)
    accuracy = (net(x).argmax(1).numpy() == labels).mean()
    print(f"accuracy on the training data: {accuracy:.2f}")


if __name__ == "__main__":
    main()
