"""Kernels of any size in the shapes that made compilers slow: chains, unrolled loops, reductions, branches.

`SHAPES` maps a name to a function from a number of PTX instructions to a module with about as many.
"""

from collections.abc import Callable, Iterator

_HEAD = """.version 8.0
.target sm_80
.address_size 64
{shared}
.visible .entry shape(.param .u64 out, .param .u64 in)
{{
.reg .pred %p<{registers}>;
.reg .f32 %f<{registers}>;
.reg .b32 %r<{registers}>;
.reg .b64 %rd<8>;
ld.param.u64 %rd1, [out];
ld.param.u64 %rd2, [in];
mov.u32 %r0, %tid.x;
mul.wide.u32 %rd3, %r0, 4;
add.s64 %rd4, %rd1, %rd3;
add.s64 %rd5, %rd2, %rd3;
ld.global.f32 %f0, [%rd5];
"""


def _kernel(lines: Iterator[str], *, shared: str = "") -> str:
    body = list(lines)
    return _HEAD.format(shared=shared, registers=2 * len(body) + 4) + "\n".join(body) + "\nret;\n}\n"


def select_chain(size: int) -> str:
    """The maximum of many numbers by comparing and selecting, from minus infinity, taken from each thread's own."""
    return _kernel(_select_chain(size // 3))


def _select_chain(steps: int) -> Iterator[str]:
    yield "mov.f32 %f1, 0fFF800000;"
    for at in range(1, steps + 1):
        value, before, after = 2 * at, 2 * at - 1, 2 * at + 1
        yield f"ld.global.f32 %f{value}, [%rd2+{4 * at}];"
        yield f"setp.lt.f32 %p{at}, %f{before}, %f{value};"
        yield f"selp.f32 %f{after}, %f{value}, %f{before}, %p{at};"
    yield f"sub.f32 %f0, %f0, %f{2 * steps + 1};"
    yield "st.global.f32 [%rd4], %f0;"


def square_chain(size: int) -> str:
    """A value that every step uses twice, from a number that is the same for all threads."""
    return _kernel(_square_chain(size // 2))


def _square_chain(steps: int) -> Iterator[str]:
    yield "ld.global.f32 %f1, [%rd2];"
    for at in range(1, steps + 1):
        yield f"mul.f32 %f{2 * at}, %f{2 * at - 1}, %f{2 * at - 1};"
        yield f"add.f32 %f{2 * at + 1}, %f{2 * at}, %f{2 * at - 1};"
    yield f"add.f32 %f0, %f0, %f{2 * steps + 1};"
    yield "st.global.f32 [%rd4], %f0;"


def unrolled_loop(size: int) -> str:
    """Loads, a multiplication and a store per step, as a loop that was unrolled completely."""
    return _kernel(_unrolled_loop(size // 4))


def _unrolled_loop(steps: int) -> Iterator[str]:
    for at in range(steps):
        yield f"ld.global.f32 %f{at + 1}, [%rd5+{128 * at}];"
        yield f"fma.rn.f32 %f{at + 1}, %f{at + 1}, %f0, %f{at};"
        yield f"mul.f32 %f{at + 1}, %f{at + 1}, 0f3F000000;"
        yield f"st.global.f32 [%rd4+{128 * at}], %f{at + 1};"


def reduction_tree(size: int) -> str:
    """Numbers that are loaded first and then added in pairs."""
    return _kernel(_reduction_tree(size // 2))


def _reduction_tree(count: int) -> Iterator[str]:
    for at in range(1, count + 1):
        yield f"ld.global.f32 %f{at}, [%rd5+{128 * at}];"
    values, fresh = list(range(1, count + 1)), count
    while len(values) > 1:
        pairs = list(zip(values[::2], values[1::2], strict=False))
        rest = values[2 * len(pairs) :]
        values = list[int]()
        for left, right in pairs:
            fresh += 1
            values.append(fresh)
            yield f"add.f32 %f{fresh}, %f{left}, %f{right};"
        values += rest
    yield f"st.global.f32 [%rd4], %f{values[0]};"


def branches(size: int) -> str:
    """A guarded instruction after the other: every one of them is a branch."""
    return _kernel(_branches(size // 3))


def _branches(steps: int) -> Iterator[str]:
    yield "mov.u32 %r1, 7;"
    for at in range(1, steps + 1):
        yield f"xor.b32 %r{at + 1}, %r{at}, {at * 2654435761 % 2**31};"
        yield f"setp.lt.u32 %p{at}, %r{at + 1}, %r0;"
        yield f"@%p{at} add.u32 %r{at + 1}, %r{at + 1}, %r0;"
    yield f"st.global.u32 [%rd4], %r{steps + 1};"


def barriers(size: int) -> str:
    """A reduction in shared memory with a barrier per step, so that every thread has its own stack."""
    return _kernel(_barriers(size // 5), shared=".shared .align 4 .b8 room[4096];")


def _barriers(steps: int) -> Iterator[str]:
    yield "mov.u32 %r1, room;"
    yield "shl.b32 %r2, %r0, 2;"
    yield "add.u32 %r1, %r1, %r2;"
    for at in range(1, steps + 1):
        yield f"st.shared.f32 [%r1], %f{2 * at - 2};"
        yield "bar.sync 0;"
        yield f"ld.shared.f32 %f{2 * at - 1}, [%r1];"
        yield f"add.f32 %f{2 * at}, %f{2 * at - 1}, %f{2 * at - 2};"
        yield "bar.sync 0;"
    yield f"st.global.f32 [%rd4], %f{2 * steps};"


SHAPES: dict[str, Callable[[int], str]] = {
    "select chain": select_chain,
    "square chain": square_chain,
    "unrolled loop": unrolled_loop,
    "reduction tree": reduction_tree,
    "branches": branches,
    "barriers": barriers,
}
