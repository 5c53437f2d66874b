"""Rare instructions, in CUDA C next to the expected result; prints {name: "ok" or the difference}.

Every kernel reads 32-bit words and writes 32-bit words; one thread per word.
"""

import json
from fractions import Fraction

import numpy as np
from driver import Failed, check, download, driver, function, launch, load, ptx, start, upload
from exact import Format, rounded

N = 64
LANE = np.arange(N) % 32
I = np.arange(N)  # noqa: E741
X = np.random.default_rng(6).integers(0, 1 << 32, N, dtype=np.uint32)
HEAD = (
    'extern "C" __global__ void k(const unsigned *x, unsigned *o) { int i = threadIdx.x; unsigned v = x[i], d = 0; '
)
F16, BF16 = "#include <cuda_fp16.h>\n", "#include <cuda_bf16.h>\n"


def asm(text: str, *inputs: str, declare: str = "") -> str:
    """Inline PTX that computes `d`."""
    given = ", ".join(f'"r"({each})' for each in inputs)
    return f'asm volatile("{{ {declare} {text} }}" : "=r"(d) : {given} : "memory"); o[i] = d; }}'


def words(values: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(values).view(np.uint32)


def atomics() -> dict[str, tuple[str, np.ndarray]]:
    """Sums by 64 threads in one place, of numbers that are exact in every type."""

    def full(value):
        return np.full(N, value)

    total = int(I.sum() % 256)
    return {
        "atomicAdd bf16": (
            BF16 + HEAD.replace("int i", "__shared__ __nv_bfloat16 s; int i") + "if (!i) s = __float2bfloat16(0.f);"
            " __syncthreads(); atomicAdd(&s, __float2bfloat16(0.5f)); __syncthreads();"
            " o[i] = (int)__bfloat162float(s); }",
            full(32),
        ),
        "atomicAdd bf16x2": (
            BF16 + HEAD.replace("int i", "__shared__ __nv_bfloat162 s; int i")
            + "if (!i) s = __float2bfloat162_rn(0.f); __syncthreads();"
            " atomicAdd(&s, __floats2bfloat162_rn(1.f, 2.f)); __syncthreads();"
            " o[i] = (int)__low2float(s) + 1000 * (int)__high2float(s); }",
            full(64 + 128_000),
        ),
        "atomicAdd f16x2": (
            F16 + HEAD.replace("int i", "__shared__ __half2 s; int i") + "if (!i) s = __float2half2_rn(0.f);"
            " __syncthreads(); atomicAdd(&s, __floats2half2_rn(1.f, 2.f)); __syncthreads();"
            " o[i] = (int)__low2float(s) + 1000 * (int)__high2float(s); }",
            full(64 + 128_000),
        ),
        "atomicAdd float4": (
            "__device__ float4 s;" + HEAD + "atomicAdd(&s, make_float4(1, 2, 3, 4)); __syncthreads();"
            " o[i] = (int)s.x + 100 * (int)s.y + 10000 * (int)s.z + 1000000 * (int)s.w; }",
            full(64 + 12_800 + 1_920_000 + 256_000_000),
        ),
        "atomicAdd float2 returns what was there": (
            "__device__ float2 s;" + HEAD + "float2 old = atomicAdd(&s, make_float2(1, 2));"
            " o[i] = old.y == 2 * old.x ? 1 : 0; }",
            full(1),
        ),
        "red f16x2 max of vectors": (
            "__device__ __align__(16) unsigned s[4];" + HEAD
            + 'asm volatile("{ .reg .b16 h, z; .reg .b32 a; cvt.rn.f16.u32 h, %1; mov.b16 z, 0; mov.b32 a, {h, z};'
            ' red.global.v4.f16x2.max.noftz [%0], {a, a, a, a}; }" :: "l"(s), "r"(i) : "memory");'
            " __syncthreads(); o[i] = s[3]; }",
            full(int(np.float16(63).view(np.uint16))),
        ),
        "128 bits exchanged and compared": (
            "__device__ __align__(16) unsigned long long s[2];" + HEAD
            + 'unsigned long long a, b; asm volatile("{ .reg .b128 q, r, z; mov.b128 q, {%2, %3};'
            " mov.b128 z, {%4, %4}; atom.global.cas.b128 r, [%5], z, q; mov.b128 {%0, %1}, r; }"
            '" : "=l"(a), "=l"(b) : "l"(7ull), "l"(9ull), "l"(0ull), "l"(s) : "memory"); __syncthreads();'
            " if (!i) { unsigned long long c, e;"
            ' asm volatile("{ .reg .b128 q, r; mov.b128 q, {%2, %2}; atom.global.exch.b128 r, [%3], q;'
            ' mov.b128 {%0, %1}, r; }" : "=l"(c), "=l"(e) : "l"(5ull), "l"(s) : "memory"); a = c; b = e; }'
            " __syncthreads(); o[i] = a * 100 + b * 10 + s[1]; }",
            np.full(N, 795),  # 7, 9 and then 5
        ),
        "atomicCAS of 16 bits": (
            "__device__ unsigned short s;" + HEAD + "unsigned short old = s, seen; do { seen = old;"
            " old = atomicCAS(&s, seen, (unsigned short)(seen + i)); } while (old != seen); __syncthreads();"
            " o[i] = s & 255; }",
            full(total),
        ),
    }  # fmt: skip


def together() -> dict[str, tuple[str, np.ndarray]]:
    """Barriers and warps."""
    half = np.where(LANE < 16, 0xFFFF, 0xFFFF0000).astype(np.uint32)
    return {
        "bar.arrive: some deliver, others wait": (
            HEAD.replace("int i", "__shared__ unsigned s[64]; int i") + 'if (i < 32) { s[i] = v;'
            ' asm volatile("bar.arrive 1, 64;" ::: "memory"); o[i] = v; } else {'
            ' asm volatile("bar.sync 1, 64;" ::: "memory"); o[i] = s[i - 32]; } }',
            np.concatenate([X[:32], X[:32]]),
        ),
        "activemask in a branch": (
            HEAD + "if (i % 32 < 16) d = __activemask(); else d = __activemask(); o[i] = d; }",
            half,
        ),
        "elect.sync": (
            HEAD + asm("elect.sync _|p, 0xfffffff0; selp.u32 %0, 1, 0, p;", declare=".reg .pred p;"),
            (LANE == 4).astype(np.uint32),
        ),
        "cluster registers": (
            HEAD + asm(
                "mov.u32 a, %%cluster_nctaid.x; mov.u32 b, %%cluster_ctarank; mov.u32 c, %%nclusterid.x;"
                " mad.lo.u32 %0, a, 10, b; mad.lo.u32 %0, c, 100, %0;", "v", declare=".reg .b32 a, b, c;"),
            np.full(N, 110),
        ),
        "mbarrier with all threads": (
            HEAD.replace("int i", "__shared__ unsigned long long b; __shared__ unsigned s[64]; int i")
            + "unsigned at = (unsigned)__cvta_generic_to_shared(&b); if (!i)"
            ' asm volatile("mbarrier.init.shared.b64 [%0], 64;" :: "r"(at) : "memory"); __syncthreads(); s[i] = v;'
            ' asm volatile("{ .reg .b64 t; .reg .pred p; mbarrier.arrive.shared.b64 t, [%0];'
            ' W: mbarrier.test_wait.shared.b64 p, [%0], t; @!p bra W; }" :: "r"(at) : "memory");'
            " o[i] = s[63 - i]; }",
            X[::-1],
        ),
        "bulk copies that a barrier counts": (
            HEAD.replace("int i", "__shared__ unsigned long long b; __shared__ __align__(16) unsigned s[64]; int i")
            + "unsigned at = (unsigned)__cvta_generic_to_shared(&b), to = (unsigned)__cvta_generic_to_shared(s);"
            ' if (!i) { asm volatile("mbarrier.init.shared.b64 [%0], 1;" :: "r"(at) : "memory");'
            ' asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], 256;" :: "r"(at) : "memory");'
            ' asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes'
            ' [%0], [%1], 256, [%2];" :: "r"(to), "l"(x), "r"(at) : "memory"); } __syncthreads();'
            ' asm volatile("{ .reg .pred p; W: mbarrier.try_wait.parity.shared.b64 p, [%0], 0; @!p bra W; }"'
            ' :: "r"(at) : "memory"); o[i] = s[i ^ 1]; }',
            X.reshape(-1, 2)[:, ::-1].ravel(),
        ),
        "cp.async and groups": (
            HEAD.replace("int i", "__shared__ __align__(16) unsigned s[64]; int i")
            + "unsigned to = (unsigned)__cvta_generic_to_shared(s + i);"
            ' asm volatile("cp.async.ca.shared.global [%0], [%1], 4; cp.async.commit_group; cp.async.wait_group 0;"'
            ' :: "r"(to), "l"(x + i) : "memory"); __syncthreads(); o[i] = s[63 - i]; }',
            X[::-1],
        ),
        "barrier.cluster": (
            HEAD.replace("int i", "__shared__ unsigned s[64]; int i") + "s[i] = v;"
            ' asm volatile("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;" ::: "memory");'
            " o[i] = s[63 - i]; }",
            X[::-1],
        ),
    }  # fmt: skip


def bits() -> dict[str, tuple[str, np.ndarray]]:
    """Integers and bits."""
    x = X.astype(np.int64)
    signed = X.astype(np.int32).astype(np.int64)
    halves = X.view(np.int16).reshape(-1, 2).astype(np.int64)
    bytes_ = X.view(np.int8).reshape(-1, 4).astype(np.int64)
    other = np.roll(X, 1)
    other_halves = other.view(np.int16).reshape(-1, 2).astype(np.int64)
    maximum = np.maximum(halves, other_halves).astype(np.int16)
    low24 = (signed << 40) >> 40
    found = {
        "dp2a.lo": (asm("dp2a.lo.s32.s32 %0, %1, %1, 5;", "v"),
                    5 + halves[:, 0] * bytes_[:, 0] + halves[:, 1] * bytes_[:, 1]),
        "dp4a": (asm("dp4a.s32.s32 %0, %1, %1, 5;", "v"), 5 + (bytes_**2).sum(1)),
        "lop3 of a sum of ors": (asm("lop3.b32 %0, %1, %2, 0x0ff00ff0, 0x96;", "v", "i"), X ^ I ^ 0x0FF00FF0),
        "prmt.b4e": (asm("prmt.b32.b4e %0, %1, 0x44332211, 3;", "v"), X.byteswap()),
        "prmt.rc16": (asm("prmt.b32.rc16 %0, %1, 0, 1;", "v"), (x >> 16) | (x >> 16 << 16)),
        "mul24.hi": (asm("mul24.hi.s32 %0, %1, %1;", "v"), (low24 * low24) >> 16),
        "mad.hi": (asm("mad.hi.s32 %0, %1, %1, 7;", "v"), ((signed * signed) >> 32) + 7),
        "max.s16x2": (asm("max.s16x2 %0, %1, %2;", "v", "x[(i + 63) % 64]"), words(maximum).ravel()),
        "szext": (asm("szext.clamp.s32 %0, %1, 5;", "v"), ((signed << 59) >> 59)),
        "bfe": (asm("bfe.s32 %0, %1, 7, 9;", "v"), (signed << 48) >> 55),
        "bfi": (asm("bfi.b32 %0, %1, 0xffffffff, 4, 8;", "v"), ((x & 255) << 4) | 0xFFFFF00F),
        "cvt.pack": (asm("cvt.pack.sat.s8.s32.b32 %0, %1, %2, 0;", "v", "i"),
                     (np.clip(signed, -128, 127) & 255) << 8 | I),
        "fns": (HEAD + "o[i] = __fns(v | 1, 0, 3); }", np.array([_nth(int(each) | 1, 3) for each in X])),
    }  # fmt: skip
    return {name: (body if "__global__" in body else HEAD + body, want) for name, (body, want) in found.items()}


def _nth(mask: int, count: int) -> int:
    places = [at for at in range(32) if mask >> at & 1]
    return places[count - 1] if len(places) >= count else 0xFFFFFFFF


PAIRS = np.random.default_rng(7).normal(0, 2, (N, 2)).astype(np.float16)


def pairs() -> dict[str, tuple[str, np.ndarray]]:
    """Two halves per word: comparisons, clamping, and floats of eight bits."""
    low, high = (PAIRS[:, at].astype(np.float32) for at in (0, 1))
    half_of = "__half2 h = *(const __half2 *)(x + i); "
    small = _rounded(PAIRS, Format(3, -14, 15)).view(np.uint16).astype(np.int64) >> 8
    return {
        "compared pairs": (
            F16 + HEAD + half_of + "__half2 r = __hgt2(h, __float2half2_rn(0.5f));"
            " unsigned m = __hgt2_mask(h, __float2half2_rn(0.5f));"
            " d = (int)__low2float(r) + 2 * (int)__high2float(r); o[i] = (m & 1) + (m >> 16 & 2) == d ? d : 99; }",
            (low > 0.5) * 1 + (high > 0.5) * 2,
        ),
        "sums of pairs held to 0 and 1": (
            F16 + HEAD + half_of + "__half2 r = __hadd2_sat(h, h); o[i] = (int)(1024 * __low2float(r))"
            " + 10000 * (int)(1024 * __high2float(r)); }",
            np.floor(1024 * np.clip(2 * low, 0, 1)) + 10000 * np.floor(1024 * np.clip(2 * high, 0, 1)),
        ),
        "fused sums that are not negative": (
            F16 + HEAD + half_of + "__half2 r = __hfma2_relu(h, __float2half2_rn(1.f), __float2half2_rn(0.f));"
            " o[i] = *(unsigned *)&r; }",
            words(np.maximum(PAIRS, 0) + np.float16(0)).ravel(),
        ),
        "e5m2 from f32": (
            HEAD + 'unsigned short s; asm("{ .reg .b16 h, l; .reg .f32 a, b;'
            ' mov.b32 {l, h}, %1; cvt.f32.f16 a, h; cvt.f32.f16 b, l; cvt.rn.satfinite.e5m2x2.f32 %0, a, b; }"'
            ' : "=h"(s) : "r"(v)); o[i] = s; }',
            small[:, 0] | small[:, 1] << 8,
        ),
        "e4m3 from halves and back": (
            HEAD + 'unsigned short s; asm("cvt.rn.satfinite.e4m3x2.f16x2 %0, %1;" : "=h"(s) : "r"(v));'
            ' asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(d) : "h"(s)); o[i] = d; }',
            words(_rounded(PAIRS, Format(4, -6, 8))).ravel(),
        ),
    }  # fmt: skip


def _rounded(values: np.ndarray, form: Format) -> np.ndarray:
    found = [rounded(Fraction(float(value)), form, "rn") for value in values.ravel()]
    return np.array(found, np.float16).reshape(values.shape)


def run(source: str, given: np.ndarray, want: np.ndarray) -> str:
    output = upload(np.zeros(N, np.uint32))
    try:
        launch(function(load(ptx(source, "compute_90")), "k"), 1, N, upload(given), output)
        check(driver.cuCtxSynchronize())
    except Failed as failed:
        return str(failed)
    got, expected = download(output, X), np.asarray(want).astype(np.int64).astype(np.uint32)
    bad = np.flatnonzero(got != expected)
    return "ok" if not bad.size else f"at {bad[0]} got {got[bad[0]]:#x}, want {expected[bad[0]]:#x}"


def main() -> None:
    start()
    results = {
        name: run(source, X, want)
        for group in (atomics, together, bits)
        for name, (source, want) in group().items()
    }
    results |= {name: run(source, words(PAIRS).ravel(), want) for name, (source, want) in pairs().items()}
    print(json.dumps(results))


if __name__ == "__main__":
    main()
