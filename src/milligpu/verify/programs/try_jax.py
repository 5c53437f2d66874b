"""Train a small network with JAX, and compare its inference on the GPU with that on the CPU."""

import os

# JAX takes three quarters of the memory that it sees when it starts, unless it is told not to.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import jax
import jax.numpy as jnp
from driver import answer, mapped, memory

if jax.default_backend() != "gpu":
    raise SystemExit("JAX has no GPU: install jax[cuda12] or jax[cuda13]")
keys = jax.random.split(jax.random.PRNGKey(1), 3)
x = jax.random.normal(keys[0], (256, 32))
y = x[:, :10].argmax(1)
weights = (jax.random.normal(keys[1], (32, 64)) * 0.2, jax.random.normal(keys[2], (64, 10)) * 0.2)


def predict(weights, x):
    return jax.nn.relu(x @ weights[0]) @ weights[1]


@jax.jit
def step(weights, x, y):
    def loss(weights):
        return -jax.nn.log_softmax(predict(weights, x))[jnp.arange(len(y)), y].mean()

    value, slope = jax.value_and_grad(loss)(weights)
    return value, tuple(one - 0.5 * by for one, by in zip(weights, slope, strict=True))


losses = []
for _ in range(30):
    value, weights = step(weights, x, y)
    losses.append(float(value))
on_gpu = jax.device_get(predict(weights, x))
with jax.default_device(jax.devices("cpu")[0]):
    on_cpu = predict(jax.device_get(weights), jax.device_get(x))
answer(
    version=jax.__version__,
    losses=[losses[0], losses[-1]],
    error=float(abs(on_gpu - jax.device_get(on_cpu)).max()),
    total=memory()[1],
    mapped=mapped(),
)
