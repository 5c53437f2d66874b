"""Fit a line by gradient descent with numba's kernels, and compare a product with numpy's."""

import warnings
from importlib.metadata import version

import numpy as np
from driver import answer, mapped, memory
from numba import cuda

warnings.filterwarnings("ignore")  # about how few blocks there are
ROWS, COLUMNS, THREADS = 256, 8, 128


@cuda.jit
def predict(x, weights, out):
    row = cuda.grid(1)
    if row < x.shape[0]:
        total = 0.0
        for column in range(x.shape[1]):
            total += x[row, column] * weights[column]
        out[row] = total


@cuda.jit
def descend(x, difference, weights, rate):
    column = cuda.grid(1)
    if column < weights.shape[0]:
        slope = 0.0
        for row in range(x.shape[0]):
            slope += x[row, column] * difference[row]
        weights[column] -= rate * slope / x.shape[0]


rng = np.random.default_rng(1)
x = rng.standard_normal((ROWS, COLUMNS)).astype(np.float32)
target = x @ rng.standard_normal(COLUMNS).astype(np.float32)
on_gpu, weights = cuda.to_device(x), cuda.to_device(np.zeros(COLUMNS, np.float32))
out, losses = cuda.device_array(ROWS, np.float32), []
for _ in range(20):
    predict[ROWS // THREADS, THREADS](on_gpu, weights, out)
    difference = out.copy_to_host() - target
    losses.append(float((difference**2).mean()))
    descend[1, COLUMNS](on_gpu, cuda.to_device(difference), weights, np.float32(0.2))
predict[ROWS // THREADS, THREADS](on_gpu, weights, out)
answer(
    version=version("numba-cuda"),
    losses=[losses[0], losses[-1]],
    error=float(abs(out.copy_to_host() - x @ weights.copy_to_host()).max()),
    total=memory()[1],
    mapped=mapped(),
)
