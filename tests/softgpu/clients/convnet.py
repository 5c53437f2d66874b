"""Train a small convolutional network with tinygrad, its steps captured as a graph; prints the losses as JSON."""

import json
import os

os.environ["DEV"] = "CUDA"

import numpy as np
from tinygrad import Tensor, TinyJit, nn
from tinygrad.helpers import Context


class Net:
    def __init__(self) -> None:
        self.first, self.second = nn.Conv2d(1, 4, 3), nn.Conv2d(4, 8, 3)
        self.last = nn.Linear(8 * 2 * 2, 4)

    def __call__(self, x: Tensor) -> Tensor:
        x = self.first(x).relu().max_pool2d((2, 2))
        return self.last(self.second(x).relu().max_pool2d((2, 2)).flatten(1))


def main() -> None:
    Tensor.manual_seed(2)
    # The class is the bright quarter of the image.
    labels = np.arange(16) % 4
    images = np.random.default_rng(0).standard_normal((16, 1, 14, 14)).astype(np.float32) * 0.1
    for image, label in zip(images, labels, strict=True):
        row, column = divmod(int(label), 2)
        image[0, 7 * row : 7 * row + 7, 7 * column : 7 * column + 7] += 1
    x, y, net = Tensor(images), Tensor(labels.astype(np.int32)), Net()
    optimizer = nn.optim.SGD(nn.state.get_parameters(net), lr=0.3)

    @TinyJit
    def step() -> Tensor:
        with Context(TRAINING=1):
            optimizer.zero_grad()
            loss = net(x).sparse_categorical_crossentropy(y).backward()
            optimizer.step()
            return loss.realize()

    print(json.dumps({"losses": [step().item() for _ in range(60)]}))


if __name__ == "__main__":
    main()
