"""Matrices of a warp, in memory and registers, and `nvcuda::wmma`; prints {case: "ok" or the difference}."""

import json

import numpy as np
from driver import Failed, check, download, driver, function, launch, load, ptx, start, upload

RNG = np.random.default_rng(8)
SHAPES = ((16, 16, 16), (32, 8, 16), (8, 32, 16))
# Input and sum type in CUDA C, and numpy's names for them.
KINDS = {
    "half float": ("__half", "float", np.float16, np.float32),
    "half half": ("__half", "__half", np.float16, np.float16),
    "bf16 float": ("__nv_bfloat16", "float", None, np.float32),
    "s8": ("signed char", "int", np.int8, np.int32),
    "u8": ("unsigned char", "int", np.uint8, np.int32),
    "tf32": ("float", "float", np.float32, np.float32),
    "double": ("double", "double", np.float64, np.float64),
}
# One warp; matrix 0 is stored in rows, matrices 1 to 3 follow it.
MOVES = """
extern "C" __global__ void k(const unsigned short *x, unsigned *o, unsigned short *t) {
  __shared__ __align__(16) unsigned short s[256], u[256]; int i = threadIdx.x; unsigned a, b, c, d, m;
  for (int j = i; j < 256; j += 32) s[j] = x[j];
  __syncthreads();
  unsigned from = (unsigned)__cvta_generic_to_shared(s + 8 * i), to = (unsigned)__cvta_generic_to_shared(u + 8 * i);
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
    : "=r"(a), "=r"(b), "=r"(c), "=r"(d) : "r"(from) : "memory");
  o[i] = a; o[i + 32] = b; o[i + 64] = c; o[i + 96] = d;
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};"
    :: "r"(to), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(m) : "r"(a));
  o[i + 128] = m;
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];" : "=r"(a), "=r"(b) : "r"(from));
  o[i + 160] = a; o[i + 192] = b;
  __syncthreads();
  for (int j = i; j < 256; j += 32) t[j] = u[j];
}
"""


def moves() -> dict[str, str]:
    given = RNG.integers(0, 1 << 16, (4, 8, 8), dtype=np.uint16)
    output, stored = upload(np.zeros(224, np.uint32)), upload(np.zeros((4, 8, 8), np.uint16))
    launch(function(load(ptx(MOVES, "compute_90")), "k"), 1, 32, upload(given), output, stored)
    check(driver.cuCtxSynchronize())
    got = download(output, np.zeros((7, 32), np.uint32)).view(np.uint16).reshape(7, 8, 8)
    turned = given.transpose(0, 2, 1)
    truths = {
        "ldmatrix": (got[:4] == given).all(),
        "movmatrix": (got[4] == turned[0]).all(),
        "ldmatrix.trans": (got[5:] == turned[:2]).all(),
        "stmatrix.trans": (download(stored, given) == turned).all(),
    }
    return {name: "ok" if good else "wrong" for name, good in truths.items()}


def source(shape: tuple[int, int, int], kind: str, layout: str) -> str:
    m, n, k = shape
    inputs, total = KINDS[kind][:2]
    fragment = f"{m}, {n}, {k}, {'wmma::precision::tf32' if kind == 'tf32' else inputs}"
    turned = f"nvcuda::wmma::{layout}_major"
    return f"""#include <cuda_fp16.h>
#include <cuda_bf16.h>
#include <mma.h>
using namespace nvcuda;
extern "C" __global__ void k(const {inputs} *a, const {inputs} *b, const {total} *c, {total} *d) {{
  wmma::fragment<wmma::matrix_a, {fragment}, {turned}> x; wmma::fragment<wmma::matrix_b, {fragment}, {turned}> y;
  wmma::fragment<wmma::accumulator, {m}, {n}, {k}, {total}> z;
  wmma::load_matrix_sync(x, a, {k if layout == "row" else m});
  wmma::load_matrix_sync(y, b, {n if layout == "row" else k});
  wmma::load_matrix_sync(z, c, {n}, wmma::mem_row_major); wmma::mma_sync(z, x, y, z);
  for (int i = 0; i < z.num_elements; i++) z.x[i] = z.x[i] + z.x[i];
  wmma::store_matrix_sync(d, z, {m}, wmma::mem_col_major);
}}"""


def wmma(shape: tuple[int, int, int], kind: str, layout: str) -> str:
    m, n, k = shape
    a, b, c = (RNG.integers(0 if kind == "u8" else -3, 4, size) for size in ((m, k), (k, n), (m, n)))
    _, _, real, total = KINDS[kind]
    order = "C" if layout == "row" else "F"
    packed = [_packed(matrix.ravel(order), real) for matrix in (a, b)]
    like = np.zeros((n, m), total)
    output = upload(like)
    try:
        kernel = function(load(ptx(source(shape, kind, layout), "compute_80")), "k")
        launch(kernel, 1, 32, upload(packed[0]), upload(packed[1]), upload(c.astype(total)), output)
        check(driver.cuCtxSynchronize())
    except Failed as failed:
        return str(failed)
    got, want = download(output, like).T, 2 * (a @ b + c)
    return "ok" if (got == want).all() else f"got {got.ravel()[:4]}, want {want.ravel()[:4]}"


def _packed(values: np.ndarray, real: type | None) -> np.ndarray:
    if real is None:
        return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return values.astype(real)


def main() -> None:
    start()
    results = moves()
    for kind in KINDS:
        for shape in {"tf32": ((16, 16, 8),), "double": ((8, 8, 4),)}.get(kind, SHAPES):
            results[f"wmma {kind} {shape}"] = wmma(shape, kind, "row" if shape[0] == 16 else "col")
    print(json.dumps(results))


if __name__ == "__main__":
    main()
