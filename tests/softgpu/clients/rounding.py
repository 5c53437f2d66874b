"""All rounding modes of arithmetic and conversions, and exact results; prints {name: "ok" or the difference}."""

import json
from collections.abc import Callable
from fractions import Fraction

import numpy as np
from driver import check, download, driver, function, launch, load, ptx, start, upload
from exact import FORMATS, root, rounded

N = 256
SIDES = ("rn", "rz", "ru", "rd")
KINDS = {"float": (np.float32, np.uint32, "f"), "double": (np.float64, np.uint64, "d")}
Number = Callable[..., Fraction]
OPERATIONS: dict[str, tuple[str, Number]] = {
    "add": ("a, b", lambda a, b, c: a + b),
    "sub": ("a, b", lambda a, b, c: a - b),
    "mul": ("a, b", lambda a, b, c: a * b),
    "div": ("a, b", lambda a, b, c: a / b),
    "fma": ("a, b, c", lambda a, b, c: a * b + c),
    "rcp": ("a", lambda a, b, c: 1 / a),
    "sqrt": ("fabs(a)", lambda a, b, c: root(abs(a))),
}


def numbers(kind: str, seed: int) -> np.ndarray:
    """Finite and nonzero numbers of all sizes, often close to each other, where rounding matters."""
    real, word, _ = KINDS[kind]
    rng = np.random.default_rng(seed)
    values = rng.integers(0, np.iinfo(word).max, 4 * N, dtype=word).view(real)
    values = values[np.isfinite(values) & (values != 0)][:N].copy()
    near = rng.normal(1, 3, N).astype(real)
    values[: N // 2] = near[: N // 2]
    values[:8] = np.finfo(real).tiny * rng.random(8).astype(real)  # subnormal
    return values


def name_of(kind: str, operation: str, side: str) -> str:
    """CUDA's name of it."""
    if operation == "fma":
        return f"__fma{'f' if kind == 'float' else ''}_{side}"
    return f"__{KINDS[kind][2]}{operation}_{side}"


def arithmetic() -> dict[str, str]:
    cases = [(kind, operation, side) for kind in KINDS for operation in OPERATIONS for side in SIDES]
    kernels = "".join(
        f'extern "C" __global__ void {kind}_{operation}_{side}(const {kind} *x, const {kind} *y, const {kind} *z,'
        f" {kind} *o) {{ int i = threadIdx.x; {kind} a = x[i], b = y[i], c = z[i];"
        f" o[i] = {name_of(kind, operation, side)}({OPERATIONS[operation][0]}); }}\n"
        for kind, operation, side in cases
    )
    module = load(ptx(kernels))
    results: dict[str, str] = {}
    for kind, operation, side in cases:
        a, b, c = (numbers(kind, seed) for seed in (1, 2, 3))
        with np.errstate(over="ignore", under="ignore"):
            c[N // 4 : N // 2] = -(a * b)[N // 4 : N // 2]  # cancellation leaves only the rounding error
        c[~np.isfinite(c)] = 1
        output = upload(np.zeros(N, KINDS[kind][0]))
        launch(function(module, f"{kind}_{operation}_{side}"), 1, N, upload(a), upload(b), upload(c), output)
        check(driver.cuCtxSynchronize())
        exactly = OPERATIONS[operation][1]
        want = [
            rounded(exactly(*(Fraction(float(v)) for v in values)), FORMATS[kind], side)
            for values in zip(a, b, c, strict=True)
        ]
        results[f"{kind} {operation} {side}"] = compare(download(output, a), want, a)
    return results


def compare(got: np.ndarray, want: list[float], given: np.ndarray) -> str:
    bad = [at for at, (mine, exact) in enumerate(zip(got.tolist(), want, strict=True)) if mine != exact]
    return "ok" if not bad else f"{len(bad)} wrong: of {given[bad[0]]} got {got[bad[0]]!r}, want {want[bad[0]]!r}"


# CUDA's name of the type, its header, and its conversions.
HALVES = {
    "half": ("__half", "fp16", "__float2half", "__half2float", "__halves2half2"),
    "bfloat": ("__nv_bfloat16", "bf16", "__float2bfloat16", "__bfloat162float", "__halves2bfloat162"),
}


def halves() -> dict[str, str]:
    """Fused sums of 16-bit floats, rounded once; of one and of two in a register."""
    rng = np.random.default_rng(4)
    results: dict[str, str] = {}
    for kind, (type_, header, convert, back, pair) in HALVES.items():
        source = f"""#include <cuda_{header}.h>
extern "C" __global__ void k(const float *x, const float *y, const float *z, float *o, float *p) {{
  int i = threadIdx.x; {type_} a = {convert}(x[i]), b = {convert}(y[i]), c = {convert}(z[i]);
  o[i] = {back}(__hfma(a, b, c));
  p[i] = __high2float(__hfma2({pair}(c, a), {pair}(c, b), {pair}(c, c)));
}}"""
        exponents = rng.integers(-6, 6, (3, N))
        a, b, c = (_cut(rng.normal(0, 1, N) * 2.0**e, kind) for e in exponents)
        c[: N // 2] = _cut(-(a * b)[: N // 2].astype(np.float64) * 2.0 ** rng.integers(-12, 1, N // 2), kind)
        outputs = [upload(np.zeros(N, np.float32)) for _ in range(2)]
        launch(function(load(ptx(source, "compute_90")), "k"), 1, N, upload(a), upload(b), upload(c), *outputs)
        check(driver.cuCtxSynchronize())
        want = [
            rounded(Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z)), FORMATS[kind], "rn")
            for x, y, z in zip(a, b, c, strict=True)
        ]
        for name, output in zip(("", " pairs"), outputs, strict=True):
            results[f"{kind} fma{name}"] = compare(download(output, a), want, a)
    return results


def _cut(values: np.ndarray, kind: str) -> np.ndarray:
    form = FORMATS[kind]
    return np.array([rounded(Fraction(float(v)), form, "rn") for v in values], np.float32)


# Name of a function to the type of its argument, and how its result becomes a float again.
CONVERSIONS = {
    "__int2float": ("int", "float"), "__uint2float": ("unsigned", "float"), "__ll2float": ("long long", "float"),
    "__ull2float": ("unsigned long long", "float"), "__ll2double": ("long long", "double"),
    "__ull2double": ("unsigned long long", "double"), "__double2float": ("double", "float"),
    "__float2half": ("float", "half"), "__int2half": ("int", "half"), "__ll2half": ("long long", "half"),
    "__float2bfloat16": ("float", "bfloat"), "__int2bfloat16": ("int", "bfloat"),
    "__ull2bfloat16": ("unsigned long long", "bfloat"),
}  # fmt: skip
TYPES = {
    "int": np.int32, "unsigned": np.uint32, "long long": np.int64, "unsigned long long": np.uint64,
    "double": np.float64, "float": np.float32,
}  # fmt: skip


def conversions() -> dict[str, str]:
    rng = np.random.default_rng(5)
    back = {"half": "__half2float", "bfloat": "__bfloat162float"}
    sources, cases = ["#include <cuda_fp16.h>\n#include <cuda_bf16.h>\n"], []
    for name, (given, target) in CONVERSIONS.items():
        for side in SIDES if target != "bfloat" else ("rn", "rz"):
            cases.append((name, given, target, side))
            sources.append(
                f'extern "C" __global__ void k{name}_{side}(const {given} *x, double *o)'
                f" {{ int i = threadIdx.x; o[i] = {back.get(target, '')}({name}_{side}(x[i])); }}\n"
            )
    module = load(ptx("".join(sources), "compute_90"))
    results: dict[str, str] = {}
    for name, given, target, side in cases:
        values = _values(rng, TYPES[given])
        output = upload(np.zeros(N))
        launch(function(module, f"k{name}_{side}"), 1, N, upload(values), output)
        check(driver.cuCtxSynchronize())
        want = [rounded(Fraction(value), FORMATS[target], side) for value in values.tolist()]
        results[f"{name}_{side}"] = compare(download(output, np.zeros(N)), want, values)
    return results


def _values(rng: np.random.Generator, type_: type) -> np.ndarray:
    if np.issubdtype(type_, np.floating):
        return (rng.normal(0, 1, N) * 2.0 ** rng.integers(-30, 20, N)).astype(type_)
    limits = np.iinfo(type_)
    full = rng.integers(limits.min, limits.max, N, dtype=type_)
    return full >> rng.integers(0, limits.bits - 1, N).astype(type_)


def flushing() -> dict[str, str]:
    """With `--ftz=true` subnormal inputs and results are zeros; also clamping."""
    body = (
        'extern "C" __global__ void k(const float *x, float *o) { int i = threadIdx.x; float v = x[i];'
        " o[i] = v * 0.5f; o[i + N] = v + 1e-39f; o[i + 2 * N] = fmaf(v, 1e10f, 0.f);"
        " o[i + 3 * N] = __saturatef(v);"
        " o[i + 4 * N] = v < 1e-38f && v > 0 ? 1.f : 0.f; o[i + 5 * N] = fmaxf(v, -1.f); }"
    ).replace("N", "8")
    zero = np.float32(0)  # so that a sum of zeros is +0
    x = np.array([1e-39, -1e-39, 1.5e-38, -1.5e-38, 1, -2, 0.25, np.nan], np.float32)
    with np.errstate(all="ignore"):
        flush = lambda v: np.where(np.abs(v) < np.finfo(np.float32).tiny, np.copysign(np.float32(0), v), v)  # noqa: E731
        v = flush(x)
        clamped = np.nan_to_num(np.clip(v, 0, 1), nan=0)
        want = {
            "true": [flush(v * np.float32(0.5)), v + zero, v * np.float32(1e10) + zero, clamped + zero,
                     (v < 0) * 0.0, np.fmax(v, np.float32(-1))],
            "false": [x * np.float32(0.5), x + np.float32(1e-39), x * np.float32(1e10),
                      np.nan_to_num(np.clip(x, 0, 1), nan=0) + zero, ((x < 1e-38) & (x > 0)) * 1.0,
                      np.fmax(x, np.float32(-1))],
        }  # fmt: skip
    results: dict[str, str] = {}
    for choice, expected in want.items():
        output = upload(np.zeros(48, np.float32))
        launch(function(load(ptx(body, "compute_86", f"--ftz={choice}")), "k"), 1, 8, upload(x), output)
        check(driver.cuCtxSynchronize())
        got, wanted = download(output, np.zeros(48, np.float32)), np.concatenate(expected).astype(np.float32)
        good = np.array_equal(got, wanted, equal_nan=True) and np.array_equal(np.signbit(got), np.signbit(wanted))
        results[f"ftz={choice}"] = "ok" if good else f"got {got.tolist()}, want {wanted.tolist()}"
    return results


def main() -> None:
    start()
    print(json.dumps({**arithmetic(), **halves(), **conversions(), **flushing()}))


if __name__ == "__main__":
    main()
