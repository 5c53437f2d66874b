"""The translator refuses invalid modules, and never crashes on one."""

import pytest

from milligpu.softgpu.llvm.module import module_ir
from milligpu.softgpu.llvm.table import HANDLERS
from milligpu.softgpu.ptx.errors import BadPtx, UnsupportedPtx
from milligpu.softgpu.ptx.parse import parse
from tests.softgpu.fuzz import SAMPLE, fuzz

HEAD = ".version 8.0\n.target sm_80\n.address_size 64\n"


def kernel(body: str) -> str:
    registers = ".reg .b32 %r<9>; .reg .b64 %rd<9>; .reg .f32 %f<9>; .reg .pred %p<9>;"
    return f"{HEAD}.visible .entry k(.param .u64 a) {{ {registers}\n{body}\nret; }}"


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("frob.u32 %r1, %r2;", "unknown instruction frob.u32"),
        ("add.u32 %r1, %q2, 1;", "unknown register %q2"),
        ("add.u32 %r1;", "too few operands"),
        ("add %r1, %r2, %r3;", "no type"),
        ("bra NOWHERE;", "no label NOWHERE"),
        ("ld.global.u32 %r1, %rd1;", "expected an address"),
        ("ld.global.u32 %r1, [nothing];", "unknown symbol nothing"),
        ("st.global.v2.u32 [%rd1], {%r1};", "expected 2 registers"),
        ("mma.sync.aligned.m8n8k4.row.col.f32.f16.f16.f32 {%r1}, {%r2}, {%r3}, {%r4};", "unsupported"),
        ("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%r1}, {%r2}, {%r3}, {%r4};", "expected 2 registers"),
        ("add.rz.f16 %r1, %r2, %r3;", "unsupported"),
        ("call nothing, (a);", "nothing, which has no body"),
        ("add.u32 %r1, %r2, 0x;", "expected"),
        ("L: L: ret;", "defined twice"),
        ("mul.wide.u64 %rd1, %rd2, %rd3;", "no type of twice the width"),
        ("add.u32 5, %r2, 1;", "destination is not a register"),
    ],
)
def test_invalid_ptx_is_reported_with_its_line(body: str, problem: str) -> None:
    with pytest.raises(BadPtx, match=problem) as caught:
        module_ir(parse(kernel(body)))
    assert caught.value.line in (4, 5)


def test_valid_but_unsupported_ptx_has_an_error_of_its_own() -> None:
    with pytest.raises(UnsupportedPtx):
        module_ir(
            parse(
                kernel("tex.2d.v4.f32.f32 {%f1, %f2, %f3, %f4}, [a, {%f1, %f2}];".replace("[a, {%f1, %f2}]", "[a]"))
            )
        )


def test_only_a_kernel_without_barriers_becomes_a_loop() -> None:
    assert "x.loop" in module_ir(parse(kernel("add.u32 %r1, %r2, 1;")))
    assert "x.loop" not in module_ir(parse(kernel("bar.sync 0;")))


def test_a_barrier_in_a_called_function_prevents_the_loop() -> None:
    function = ".func f() { bar.sync 0; ret; }\n"
    assert "x.loop" not in module_ir(parse(kernel("call f;").replace(HEAD, HEAD + function)))


def test_every_group_of_instructions_is_registered() -> None:
    assert {"add", "fma", "cvt", "ld", "atom", "bra", "call", "bar", "shfl", "vote", "mma", "cp"} <= HANDLERS.keys()


def test_the_unmutated_sample_compiles() -> None:
    assert "x.loop" in module_ir(parse(SAMPLE))


def test_a_mutated_module_compiles_or_is_refused() -> None:
    accepted, refused = fuzz(600, seed=5)
    assert accepted > 10
    assert refused > 100


def test_of_weak_functions_in_linked_pieces_any_one_is_taken_and_a_strong_one_first() -> None:
    weak, strong = ".weak .func f() { ret; }\n", ".visible .func f() { trap; ret; }\n"
    assert parse(HEAD + weak + weak).functions["f"].weak
    for both in (weak + strong, strong + weak):
        assert not parse(HEAD + both).functions["f"].weak
    with pytest.raises(BadPtx, match="f is defined twice"):
        parse(HEAD + strong + strong)


def test_a_result_that_only_the_declaration_has_is_dropped() -> None:
    declared = ".extern .func (.param .b32 r) f(.param .b64 a);\n"
    call = ".param .b64 a; .param .b32 r; call.uni (r), f, (a);"
    module_ir(parse(f"{HEAD}{declared}{kernel(call).removeprefix(HEAD)}\n.func f(.param .b64 a) {{ ret; }}"))
    with pytest.raises(BadPtx, match="wrong number of arguments"):
        module_ir(parse(f"{HEAD}{declared}{kernel(call).removeprefix(HEAD)}\n.func f() {{ ret; }}"))
