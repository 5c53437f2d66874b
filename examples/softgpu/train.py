"""Train a small network with tinygrad on a software GPU, and show the loss in a table.

milligpu softgpu exec --memory 4Gi -- python examples/softgpu/train.py
"""

import os
import time

os.environ.setdefault("DEV", "CUDA")

import numpy as np
from tinygrad import Device, Tensor, TinyJit, nn
from tinygrad.helpers import Context

STEPS, SHOWN = 30, 5


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
    optimizer = nn.optim.Adam(nn.state.get_parameters(net), lr=1e-2)

    @TinyJit
    def step() -> Tensor:
        with Context(TRAINING=1):
            optimizer.zero_grad()
            loss = net(x).sparse_categorical_crossentropy(y).backward()
            optimizer.step()
            return loss.realize()

    print(f"{'step':>4}  {'loss':>8}  {'seconds':>8}  on {Device.DEFAULT}")
    for number in range(1, STEPS + 1):
        start = time.perf_counter()
        loss = step().item()
        if number == 1 or number % SHOWN == 0:
            print(f"{number:4}  {loss:8.4f}  {time.perf_counter() - start:8.3f}")
    accuracy = (net(x).argmax(1).numpy() == labels).mean()
    print(f"accuracy on the training data: {accuracy:.2f}")


if __name__ == "__main__":
    main()
