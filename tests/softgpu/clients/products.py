"""`mma.sync` by itself, in each shape and type; prints {case: "ok" or what is wrong} as JSON.

The fragments are laid out here by the PTX manual's own formulas (row and column of the i-th element of a lane).
"""

import json

import numpy as np
from driver import download, function, launch, load, start, upload

LANES = range(32)
CASES = [
    (16, "f16", "f32"),
    (16, "f16", "f16"),
    (16, "bf16", "f32"),
    (8, "f16", "f32"),
    (8, "f16", "f16"),
    (8, "bf16", "f32"),
    (8, "tf32", "f32"),
    (4, "tf32", "f32"),
    (16, "s8", "s32"),
    (32, "s8", "s32"),
    (32, "u8", "s32"),
    (32, "e4m3", "f32"),
    (32, "e5m2", "f16"),
    (4, "f64", "f64"),
    (8, "f64", "f64"),
    (16, "f64", "f64"),
]
BITS = {"f64": 64, "f32": 32, "tf32": 32, "s32": 32, "f16": 16, "bf16": 16}


def places(depth: int, kind: str) -> tuple[dict, dict]:
    """(lane, i) to (row, column) of A and of B."""
    a, b = {}, {}
    for lane in LANES:
        group, member = lane >> 2, lane % 4
        if kind in ("tf32", "f64"):
            for i in range(depth // 2):
                a[lane, i] = (group + 8 * (i % 2), member + 4 * (i // 2))
            for i in range(depth // 4):
                b[lane, i] = (member + 4 * i, group)
            continue
        if BITS.get(kind, 8) == 8:
            for i in range(depth // 2):
                a[lane, i] = (group if i // 4 in (0, 2) else group + 8, member * 4 + i % 4 + (16 if i >= 8 else 0))
            for i in range(depth // 4):
                b[lane, i] = (member * 4 + i % 4 + (16 if i >= 4 else 0), group)
            continue
        for i in range(depth // 2):
            row = group if i in (0, 1, 4, 5) else group + 8
            a[lane, i] = (row, member * 2 + (i & 1) + (8 if i >= 4 else 0))
        for i in range(depth // 4):
            b[lane, i] = (member * 2 + (i & 1) + (8 if i >= 2 else 0), group)
    return a, b


def bits(values: np.ndarray, kind: str) -> np.ndarray:
    """A lane's elements as 32-bit words."""
    if kind in NUMPY:
        return values.astype(NUMPY[kind]).view(np.uint32)
    if kind == "bf16":
        return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16).view(np.uint32)
    halves = values.astype(np.float16)
    # An e5m2 is the upper half of an f16; an e4m3 has another exponent and a bit more of fraction.
    cut = halves.view(np.uint16) >> 8 if kind == "e5m2" else _e4m3(halves)
    return cut.astype(np.uint8).view(np.uint32)


def _e4m3(values: np.ndarray) -> np.ndarray:
    scaled = (values * np.float16(2**-8)).view(np.uint16)
    return (scaled >> 8 & 0x80) | (scaled >> 7 & 0x7F)


NUMPY = {
    "f64": np.float64, "f32": np.float32, "tf32": np.float32, "f16": np.float16, "s32": np.int32, "s8": np.int8,
    "u8": np.uint8,
}  # fmt: skip


def module(depth: int, kind: str, total: str) -> bytes:
    width = 64 if kind == "f64" else 32
    each = {"a": 16 * depth * BITS.get(kind, 8), "b": 8 * depth * BITS.get(kind, 8), "c": 16 * 8 * BITS[total]}
    counts = {name: bits // 32 // width for name, bits in each.items()}
    lists = {name: "{" + ", ".join(f"%{name}{i}" for i in range(count)) + "}" for name, count in counts.items()}
    size = width // 8
    loads = "".join(
        f"ld.global.b{width} %{name}{i}, [%p{at}+{size * i}];\n"
        for at, (name, count) in enumerate(counts.items())
        for i in range(count)
    )
    stores = "".join(f"st.global.b{width} [%p2+{size * i}], %c{i};\n" for i in range(counts["c"]))
    accumulate = f"mma.sync.aligned.m16n8k{depth}.row.col.{total}.{kind}.{kind}.{total}"
    return f""".version 8.4
.target sm_90
.address_size 64
.visible .entry k(.param .u64 a, .param .u64 b, .param .u64 c) {{
.reg .b{width} %a<8>, %b<8>, %c<8>; .reg .b32 %t<2>; .reg .b64 %p<3>, %o<3>;
mov.u32 %t0, %tid.x;
ld.param.u64 %p0, [a]; ld.param.u64 %p1, [b]; ld.param.u64 %p2, [c];
mul.wide.u32 %o0, %t0, {size * counts["a"]}; add.u64 %p0, %p0, %o0;
mul.wide.u32 %o1, %t0, {size * counts["b"]}; add.u64 %p1, %p1, %o1;
mul.wide.u32 %o2, %t0, {size * counts["c"]}; add.u64 %p2, %p2, %o2;
{loads}{accumulate} {lists["c"]}, {lists["a"]}, {lists["b"]}, {lists["c"]};
{stores}ret;
}}
""".encode()


def run(depth: int, kind: str, total: str) -> str:
    rng = np.random.default_rng(depth)
    # Small whole numbers are exact in every one of the types.
    a, b, c = (
        rng.integers(0 if kind == "u8" else -4, 5, shape).astype(np.float32)
        for shape in ((16, depth), (depth, 8), (16, 8))
    )
    a_at, b_at = places(depth, kind)
    c_at = {(lane, i): ((lane >> 2) + 8 * (i >> 1), lane % 4 * 2 + (i & 1)) for lane in LANES for i in range(4)}

    def gather(matrix: np.ndarray, at: dict, kind: str) -> np.ndarray:
        return bits(np.array([matrix[at[key]] for key in sorted(at)]), kind)

    device = [upload(gather(a, a_at, kind)), upload(gather(b, b_at, kind)), upload(gather(c, c_at, total))]
    launch(function(load(module(depth, kind, total)), "k"), 1, 32, *device)
    raw = download(device[2], gather(c, c_at, total))
    got = raw.view(NUMPY[total]).astype(np.float32)
    want = np.array([(a @ b + c)[c_at[key]] for key in sorted(c_at)])
    return "ok" if (got == want).all() else f"got {got[:4]}, want {want[:4]}"


def main() -> None:
    start()
    print(json.dumps({f"m16n8k{depth} {kind} {total}": run(depth, kind, total) for depth, kind, total in CASES}))


if __name__ == "__main__":
    main()
