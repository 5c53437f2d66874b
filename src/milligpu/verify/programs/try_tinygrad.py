"""Train a small network with tinygrad, and compare its inference with numpy's."""

import os

os.environ["DEV"] = "CUDA"
# For a few small kernels, tinygrad's own process pool costs more time than it saves.
os.environ["PARALLEL"] = "0"

from importlib.metadata import version

import numpy as np
from driver import answer, mapped, memory
from tinygrad import Device, Tensor, nn
from tinygrad.helpers import Context

if Device.DEFAULT != "CUDA":
    raise SystemExit(f"tinygrad uses {Device.DEFAULT}, not CUDA")
Tensor.manual_seed(1)
rng = np.random.default_rng(1)
inputs = rng.standard_normal((128, 16)).astype(np.float32)
x, y = Tensor(inputs), Tensor(inputs[:, :10].argmax(1).astype(np.int32))
first, second = nn.Linear(16, 32), nn.Linear(32, 10)
optimizer = nn.optim.Adam(nn.state.get_parameters([first, second]), lr=0.02)
losses = []
with Context(TRAINING=1):
    for _ in range(10):
        optimizer.zero_grad()
        loss = second(first(x).relu()).sparse_categorical_crossentropy(y).backward()
        optimizer.step()
        losses.append(loss.item())
on_gpu = second(first(x).relu()).numpy()
hidden = np.maximum(inputs @ first.weight.numpy().T + first.bias.numpy(), 0)
on_cpu = hidden @ second.weight.numpy().T + second.bias.numpy()
answer(
    version=version("tinygrad"),
    losses=[losses[0], losses[-1]],
    error=float(abs(on_gpu - on_cpu).max()),
    total=memory()[1],
    mapped=mapped(),
)
