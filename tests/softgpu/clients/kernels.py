"""Kernels in CUDA C compared with numpy; prints {name: "ok" or the difference} as JSON."""

import json
import math

import numpy as np
from driver import check, download, driver, function, launch, load, ptx, start, upload

N = 64
X = np.random.default_rng(0).random(N, dtype=np.float32)
V = X.astype(np.float64)
PLACES = np.arange(N)
HEAD = 'extern "C" __global__ void k(const float *x, float *o) { int i = threadIdx.x; '


def each(compute) -> np.ndarray:
    return np.array([compute(int(i), float(v)) for i, v in zip(PLACES, V, strict=True)])


def cases() -> dict[str, tuple[str, np.ndarray, float]]:
    """Name to the kernel's body (or whole source), the expected result, and the tolerance."""
    fibonacci = [0, 1, 1, 2, 3, 5, 8, 13, 21, 34]
    warps = (slice(0, 32), slice(32, 64))
    found: dict[str, tuple[str, np.ndarray, float]] = {}
    found["float functions"] = (
        "float v = x[i]; o[i] = sinf(v * 1e5f) + cosf(v) + tanf(v) + logf(v + 1) + powf(v, 1.7f) + erff(v)"
        " + atan2f(v, 2.f) + tgammaf(v + 1) + cbrtf(v) + expm1f(v); }",
        each(
            lambda _, v: (
                float(np.sin(np.float32(np.float32(v) * np.float32(1e5))))
                + math.cos(v) + math.tan(v) + math.log(v + 1) + v**1.7 + math.erf(v)
                + math.atan2(v, 2) + math.gamma(v + 1) + v ** (1 / 3) + math.expm1(v)
            )
        ),
        1e-4,
    )  # fmt: skip
    # The compiler makes one call of these two.
    found["sine and cosine of one number"] = (
        "float v = x[i]; o[i] = __sinf(v) + 2.f * __cosf(v); }",
        each(lambda _, v: math.sin(v) + 2 * math.cos(v)),
        1e-4,
    )
    found["double functions"] = (
        "double v = x[i]; o[i] = sin(v * 1e6) + exp(v) + log(v + 1) + pow(v, 2.3) + sqrt(v) + fmod(v, 0.3)"
        " + lgamma(v + 1); }",
        each(
            lambda _, v: (
                math.sin(v * 1e6) + math.exp(v) + math.log(v + 1) + v**2.3 + math.sqrt(v)
                + math.fmod(v, 0.3) + math.lgamma(v + 1)
            )
        ),
        1e-4,
    )  # fmt: skip
    found["switch"] = (
        "float v = x[i]; switch (i % 7) { case 0: v += 1; break; case 1: v *= v; break; "
        " case 2: v = sqrtf(v); break; case 3: v -= 7; break; case 4: v = -v; break; case 5: v = v / 3; break;"
        " default: v = v + i; } o[i] = v; }",
        each(lambda i, v: [v + 1, v * v, math.sqrt(v), v - 7, -v, v / 3, v + i][i % 7]),
        1e-5,
    )
    found["calls, structures, constants, globals"] = (
        "__device__ __noinline__ float fib(int n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }"
        " struct S { float a; int b; double c; };"
        " __device__ __noinline__ S make(float a, int b) { S s; s.a = a; s.b = b; s.c = a * b; return s; }"
        " __constant__ float table[4] = {1.5f, 2.5f, 3.5f, 4.5f}; __device__ int count = 3;"
        + HEAD
        + "S s = make(x[i], i); atomicAdd(&count, 1); "
        " o[i] = fib(i % 10) + s.a + s.b + (float)s.c + table[i & 3]; }",
        each(lambda i, v: fibonacci[i % 10] + v + i + v * i + [1.5, 2.5, 3.5, 4.5][i & 3]),
        1e-4,
    )
    found["calls through pointers"] = (
        "typedef float (*F)(float); __device__ float one(float v) { return v; } __device__ float two(float v)"
        " { return 2 * v; } __device__ F table[2] = {one, two};" + HEAD + "o[i] = table[i & 1](x[i]); }",
        each(lambda i, v: 2 * v if i & 1 else v),
        1e-6,
    )
    found["warp shuffles, votes, reductions"] = (
        "float v = x[i], s = v; unsigned b = __ballot_sync(~0u, v > 0.5f); int any = __any_sync(~0u, v > 0.99f);"
        " for (int k = 16; k; k >>= 1) s += __shfl_xor_sync(~0u, s, k); float u = __shfl_up_sync(~0u, v, 1, 8);"
        " int r = __reduce_add_sync(~0u, i); __syncwarp(); o[i] = __popc(b) + any + s + u + r; }",
        np.concatenate(
            [
                (V[w] > 0.5).sum() + int((V[w] > 0.99).any()) + V[w].sum() + PLACES[w].sum()
                + np.array([V[w][k] if k % 8 == 0 else V[w][k - 1] for k in range(32)])
                for w in warps
            ]
        ),
        1e-5,
    )  # fmt: skip
    found["barriers, dynamic shared memory"] = (
        "extern __shared__ float s[];" + HEAD + "s[i] = x[i]; __syncthreads(); float t = 0;"
        " for (int k = 0; k <= i; k++) t += s[k]; __syncthreads(); s[i] = t; __syncthreads();"
        " int c = __syncthreads_count(x[i] > 0.5f); o[i] = s[(i + 1) % blockDim.x] + c; }",
        np.roll(np.cumsum(V), -1) + (V > 0.5).sum(),
        1e-5,
    )
    found["atomics"] = (
        "__shared__ int s; __shared__ float f; __shared__ unsigned m, c; "
        " if (i == 0) { s = 0; f = 0; m = 0; c = 0; }"
        " __syncthreads(); atomicAdd(&s, i); atomicAdd(&f, 0.5f); atomicMax(&m, (unsigned)i); atomicInc(&c, 9u);"
        " __syncthreads(); o[i] = s + f + m + c; }",
        np.full(N, PLACES.sum() + 32 + 63 + 64 % 10),
        1e-6,
    )
    found["halves"] = (
        "#include <cuda_fp16.h>\n" + HEAD + "__half2 h = __floats2half2_rn(x[i], x[i] + 1); h = __hfma2(h, h, h);"
        " h = __hadd2(h, __float2half2_rn(0.5f));"
        " o[i] = __low2float(h) + __high2float(h) + __half2float(hexp(__float2half(x[i]))); }",
        V * V + V + 0.5 + (V + 1) ** 2 + (V + 1) + 0.5 + np.exp(V),
        5e-3,
    )
    found["bfloats"] = (
        "#include <cuda_bf16.h>\n" + HEAD + "__nv_bfloat16 a = __float2bfloat16(x[i]);"
        " o[i] = __bfloat162float(__hadd(a, a)); }",
        2 * V,
        5e-3,
    )
    found["integers"] = (
        "unsigned u = i * 2654435761u; long long w = (long long)u * 1000003ll - (1ll << 40);"
        " o[i] = __popc(u) + __clz(u) + __ffs(u) + (u % 1009) + (int)(w % 997) + (int)(u / (i + 1)) % 100"
        " + (int)__umulhi(u, u) % 64 + (int)(__brev(u) & 255) + (int)(__byte_perm(u, ~u, 0x3715) & 255); }",
        each(lambda i, _: _integers(i)),
        1e-6,
    )
    found["conversions"] = (
        "float v = (x[i] - 0.5f) * 600; o[i] = (int)v + (unsigned char)(int)v + (short)v + __float2int_rn(v)"
        " + __float2int_rd(v) + __float2int_ru(v) + (float)(long long)(v * 1e10f) * 1e-10f"
        " + floorf(v) + rintf(v); }",
        each(lambda i, _: _conversions(X[i])),
        1e-4,
    )
    found["local memory"] = (
        "float a[64]; for (int k = 0; k < 64; k++) a[(k * 7 + i) & 63] = x[k & 63]; float t = 0;"
        " for (int k = 0; k < 64; k++) t += a[k]; o[i] = t; }",
        np.full(N, V.sum()),
        1e-5,
    )
    return found


def _integers(i: int) -> int:
    mask = 0xFFFFFFFF
    u = i * 2654435761 & mask
    w = u * 1000003 - (1 << 40)
    high = u * u >> 32
    high -= (high >> 31) << 32
    both = (~u & mask) << 32 | u
    permuted = both >> 8 * 5 & 255
    divided = u // (i + 1)
    divided -= (divided >> 31) << 32
    return (
        u.bit_count() + (32 - u.bit_length()) + (u & -u).bit_length() + u % 1009 + int(math.fmod(w, 997))
        + int(math.fmod(divided, 100)) + int(math.fmod(high, 64)) + (int(f"{u:032b}"[::-1], 2) & 255) + permuted
    )  # fmt: skip


def _conversions(x: np.float32) -> float:
    v = float((x - np.float32(0.5)) * np.float32(600))
    whole = int(v)
    return (
        whole + (whole & 255) + whole + round(v) + math.floor(v) + math.ceil(v) + v + math.floor(v) + round(v)
    )  # fmt: skip


def main() -> None:
    start()
    device_x, device_o = upload(X), upload(np.zeros(N, np.float32))
    results: dict[str, str] = {}
    for name, (body, expected, tolerance) in cases().items():
        module = load(ptx(body if "__global__" in body else HEAD + body))
        check(driver.cuMemsetD32(device_o, 0, N))
        launch(function(module, "k"), 1, N, device_x, device_o, shared=4 * N)
        check(driver.cuCtxSynchronize())
        got = download(device_o, X)
        good = np.allclose(got, expected, rtol=tolerance, atol=tolerance)
        results[name] = "ok" if good else f"got {got[:4]}, want {expected[:4]}"
    print(json.dumps(results))


if __name__ == "__main__":
    main()
