"""tinygrad's operations beside numpy's, over several types; prints {case: "ok" or what is wrong} as JSON."""

import json
import os
from collections.abc import Callable, Iterator

os.environ["DEV"] = "CUDA"

import numpy as np
from tinygrad import Tensor, TinyJit, dtypes

RNG = np.random.default_rng(7)
SHAPE = (17, 33)


def values(kind: str) -> np.ndarray:
    if kind == "bool":
        return RNG.random(SHAPE) > 0.5
    if kind == "int32":
        return RNG.integers(-50, 50, SHAPE).astype(np.int32)
    return (RNG.standard_normal(SHAPE) * 3).astype(kind)


def elementwise() -> Iterator[tuple[str, Callable, Callable, tuple[str, ...]]]:
    floats, numbers = ("float32", "float16"), ("float32", "float16", "int32")
    yield "add", lambda a, b: a + b, lambda a, b: a + b, numbers
    yield "subtract", lambda a, b: a - b, lambda a, b: a - b, numbers
    yield "multiply", lambda a, b: a * b, lambda a, b: a * b, numbers
    yield "divide", lambda a, b: a / (b * b + 1), lambda a, b: a / (b * b + 1), floats
    yield "maximum", lambda a, b: a.maximum(b), np.maximum, (*numbers, "bool")
    yield "less", lambda a, b: a < b, lambda a, b: a < b, numbers
    yield "equal", lambda a, b: a == b, lambda a, b: a == b, (*numbers, "bool")
    yield "where", lambda a, b: (a > b).where(a, b), lambda a, b: np.where(a > b, a, b), numbers
    yield "exp", lambda a, _: (a / 4).exp(), lambda a, _: np.exp(a / 4), floats
    yield "log", lambda a, _: (a.abs() + 1).log(), lambda a, _: np.log(np.abs(a) + 1), floats
    yield "sin", lambda a, _: a.sin(), lambda a, _: np.sin(a), floats
    yield "sqrt", lambda a, _: a.abs().sqrt(), lambda a, _: np.sqrt(np.abs(a)), floats
    yield "tanh", lambda a, _: a.tanh(), lambda a, _: np.tanh(a), floats
    yield "sigmoid", lambda a, _: a.sigmoid(), lambda a, _: 1 / (1 + np.exp(-a)), floats
    yield "floor", lambda a, _: a.floor(), lambda a, _: np.floor(a), floats
    yield "round", lambda a, _: a.round(), lambda a, _: np.round(a), floats
    yield "power", lambda a, _: (a.abs() + 0.5) ** 1.5, lambda a, _: (np.abs(a) + 0.5) ** 1.5, ("float32",)
    yield "integer divide", lambda a, b: a // (b.abs() + 1), lambda a, b: a // (np.abs(b) + 1), ("int32",)
    yield "modulo", lambda a, b: a % (b.abs() + 1), lambda a, b: a % (np.abs(b) + 1), ("int32",)
    yield "bits", lambda a, b: (a & b) ^ (a | 3), lambda a, b: (a & b) ^ (a | 3), ("int32",)
    yield "shift", lambda a, _: (a.abs() << 3) >> 1, lambda a, _: (np.abs(a) << 3) >> 1, ("int32",)
    yield "logic", lambda a, b: (a & b) ^ a.logical_not(), lambda a, b: (a & b) ^ ~a, ("bool",)


def reductions() -> Iterator[tuple[str, Callable, Callable, tuple[str, ...]]]:
    floats, numbers = ("float32", "float16"), ("float32", "float16", "int32")
    yield "sum", lambda a: a.sum(), lambda a: a.sum(), ("float32", "int32")
    yield "sum of rows", lambda a: a.sum(1), lambda a: a.sum(1), ("float32", "int32")
    yield "sum of columns", lambda a: a.sum(0), lambda a: a.sum(0), ("float32", "int32")
    yield "mean", lambda a: a.mean(1), lambda a: a.mean(1), floats
    yield "max", lambda a: a.max(1), lambda a: a.max(1), numbers
    yield "min", lambda a: a.min(0), lambda a: a.min(0), numbers
    yield "argmax", lambda a: a.argmax(1), lambda a: a.argmax(1), ("float32",)
    yield "any", lambda a: a.any(), lambda a: a.any(), ("bool",)
    yield "all", lambda a: a.all(1), lambda a: a.all(1), ("bool",)
    yield "variance", lambda a: a.var(1), lambda a: a.var(1, ddof=1), ("float32",)
    yield "softmax", lambda a: a.softmax(1), lambda a: np.exp(a) / np.exp(a).sum(1, keepdims=True), ("float32",)
    yield "cumulative sum", lambda a: a.cumsum(1), lambda a: a.cumsum(1), ("float32", "int32")
    yield "sort", lambda a: a.sort(1)[0], lambda a: np.sort(a, 1), ("float32", "int32")
    yield "transpose", lambda a: a.T.contiguous(), lambda a: a.T, (*numbers, "bool")
    yield (
        "flip and pad",
        lambda a: a.flip(0).pad(((1, 2), (0, 3))),
        lambda a: np.pad(a[::-1], ((1, 2), (0, 3))),
        numbers,
    )
    yield "slice", lambda a: a[2:9, ::3], lambda a: a[2:9, ::3], (*numbers, "bool")
    yield "concatenate", lambda a: a.cat(a, dim=1), lambda a: np.concatenate([a, a], 1), (*numbers, "bool")
    yield "cast to int", lambda a: a.cast(dtypes.int32), lambda a: a.astype(np.int32), (*floats, "bool")
    yield (
        "cast to half",
        lambda a: a.cast(dtypes.half),
        lambda a: a.astype(np.float16),
        ("float32", "int32", "bool"),
    )
    yield "cast to bfloat and back", lambda a: a.cast(dtypes.bfloat16).float(), lambda a: a, ("float32",)


def others() -> Iterator[tuple[str, Callable[[], np.ndarray], np.ndarray]]:
    a, b = RNG.standard_normal((48, 64)).astype(np.float32), RNG.standard_normal((64, 32)).astype(np.float32)
    yield "matmul float32", lambda: (Tensor(a) @ Tensor(b)).numpy(), a @ b
    ha, hb = a.astype(np.float16), b.astype(np.float16)
    yield "matmul float16", lambda: (Tensor(ha) @ Tensor(hb)).numpy(), ha.astype(np.float32) @ hb.astype(np.float32)
    ia, ib = (a * 4).astype(np.int32), (b * 4).astype(np.int32)
    yield "matmul int32", lambda: (Tensor(ia) @ Tensor(ib)).numpy(), ia @ ib
    image, kernel = (
        RNG.standard_normal((2, 3, 9, 9)).astype(np.float32),
        RNG.standard_normal((4, 3, 3, 3)).astype(np.float32),
    )
    windows = np.lib.stride_tricks.sliding_window_view(image, (3, 3), axis=(2, 3))
    yield (
        "convolution",
        lambda: Tensor(image).conv2d(Tensor(kernel)).numpy(),
        np.einsum("nchwij,ocij->nohw", windows, kernel),
    )
    yield (
        "max pool",
        lambda: Tensor(image).max_pool2d((3, 3), stride=3).numpy(),
        image.reshape(2, 3, 3, 3, 3, 3).max((3, 5)),
    )
    rows = np.array([5, 0, 47, 5])
    yield "gather by index", lambda: Tensor(a)[Tensor(rows)].numpy(), a[rows]
    yield "one hot", lambda: Tensor(rows).one_hot(48).numpy(), np.eye(48)[rows]
    Tensor.manual_seed(3)
    yield "random: mean", lambda: Tensor.rand(64, 1024).mean().numpy().round(1), np.float32(0.5)
    yield "random: spread", lambda: Tensor.randn(64, 1024).std().numpy().round(1), np.float32(1.0)

    @TinyJit
    def step(x: Tensor) -> Tensor:
        return ((x * 2 + 1).relu().sum(1) + 1).realize()

    def repeated() -> np.ndarray:
        return np.stack([step(Tensor(a + k).realize()).numpy() for k in range(5)])

    yield (
        "JIT replays with new inputs",
        repeated,
        np.stack([np.maximum((a + k) * 2 + 1, 0).sum(1) + 1 for k in range(5)]),
    )


def verdict(got: np.ndarray, want: np.ndarray, kind: str, name: str) -> str:
    want = np.asarray(want)
    tolerance = {"float16": 2e-2}.get(kind, 1e-4)
    if "bfloat" in name:
        tolerance = 1e-2
    if "half" in name or "matmul float16" in name:
        tolerance = 2e-2
    if got.shape != want.shape:
        return f"shape {got.shape}, want {want.shape}"
    close = np.isclose(got.astype(np.float64), want.astype(np.float64), rtol=tolerance, atol=tolerance)
    return "ok" if close.all() else f"got {got[~close][:3]}, want {want[~close][:3]}"


def main() -> None:
    results: dict[str, str] = {}
    for name, ours, theirs, kinds in elementwise():
        for kind in kinds:
            a, b = values(kind), values(kind)
            results[f"{name} {kind}"] = verdict(ours(Tensor(a), Tensor(b)).numpy(), theirs(a, b), kind, name)
    for name, ours, theirs, kinds in reductions():
        for kind in kinds:
            a = values(kind)
            results[f"{name} {kind}"] = verdict(ours(Tensor(a)).numpy(), theirs(a), kind, name)
    for name, compute, want in others():
        results[name] = verdict(compute(), want, "", name)
    print(json.dumps(results))


if __name__ == "__main__":
    main()
