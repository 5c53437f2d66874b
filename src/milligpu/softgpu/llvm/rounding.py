"""Rounding for which LLVM has no plain instruction (directed, to odd), and flushing and clamping of results.

Rounding to odd keeps, in the last bit of a wider type, whether anything was cut off. Narrowing such a value rounds
as if from the exact result, which makes fused sums of halves and directed sums of f32 exact.
"""

from milligpu.softgpu.llvm.writer import Writer, base_type, constant, llvm_type, shaped
from milligpu.softgpu.ptx.syntax import Instruction
from milligpu.softgpu.ptx.types import F32, F64, ScalarKind, Type

# The numbers of `llvm.set.rounding`.
_SIDES = {"rz": 0, "rp": 2, "rm": 3}
_WIDTHS = {"half": 16, "float": 32, "double": 64}
# The smallest normal numbers, as LLVM writes them.
_SMALLEST = {"half": "0xH0400", "float": "0x3810000000000000"}


def side_of(ins: Instruction) -> str | None:
    """The direction in which an instruction rounds; None is to nearest, ties to even."""
    return next((part for part in ins.modifiers if part in _SIDES), None)


def rounded(w: Writer, ins: Instruction, kind: Type, verb: str, *values: str) -> str:
    """Compute `verb` (fadd, fmul, fdiv, sqrt, fma), rounded exactly as PTX requires."""
    side = side_of(ins)
    if side is None:
        return _to_nearest(w, kind, verb, *values)
    if kind == F32:
        return _directed_single(w, side, verb, *values)
    if kind == F64:
        return _directed_double(w, side, verb, *(("double", value) for value in values))
    raise w.refuse(f"{ins}: unsupported")


def _to_nearest(w: Writer, kind: Type, verb: str, *values: str) -> str:
    if verb in ("fadd", "fmul", "fdiv"):
        return w.emit(f"{verb} {llvm_type(kind)} {values[0]}, {values[1]}")
    if verb == "sqrt" or kind in (F32, F64):
        return w.math(verb, kind, *values)
    # A product of halves is exact in f32; one of bf16 is exact only in f64, because of its exponent.
    wide = "double" if kind.kind is ScalarKind.BFLOAT else "float"
    a, b, c = (w.emit(f"fpext {llvm_type(kind)} {value} to {shaped(kind, wide)}") for value in values)
    total = _sum_to_odd(w, kind.lanes, wide, w.emit(f"fmul {shaped(kind, wide)} {a}, {b}"), c)
    if kind.kind is ScalarKind.BFLOAT:
        return narrow(w, total, (wide, "float"), "odd", lanes=kind.lanes)
    return w.emit(f"fptrunc {shaped(kind, wide)} {total} to {llvm_type(kind)}")


def _directed_single(w: Writer, side: str, verb: str, *values: str) -> str:
    """Compute in f64: products are exact there, and quotients and roots that are no f32 stay apart from any f32."""
    wide = [w.emit(f"fpext float {value} to double") for value in values]
    if verb in ("fmul", "fdiv"):
        exact = w.emit(f"{verb} double {wide[0]}, {wide[1]}")
    elif verb == "sqrt":
        exact = w.math("sqrt", F64, wide[0])
    else:
        a = wide[0] if verb == "fadd" else w.emit(f"fmul double {wide[0]}, {wide[1]}")
        exact = _sum_to_odd(w, 1, "double", a, wide[-1])
        if side == "rm":
            exact = _zero_of_sum(w, exact, a, wide[-1])
    return narrow(w, exact, ("double", "float"), side)


def _zero_of_sum(w: Writer, total: str, a: str, b: str) -> str:
    """When rounding down, terms that cancel give a negative zero."""
    either = w.emit(f"or i64 {', '.join(w.emit(f'bitcast double {each} to i64') for each in (a, b))}")
    sign = w.emit(f"bitcast i64 {w.emit(f'and i64 {either}, {-(1 << 63)}')} to double")
    return w.emit(f"select i1 {w.emit(f'fcmp oeq double {total}, 0.0')}, double {sign}, double {total}")


def _directed_double(w: Writer, side: str, verb: str, *values: tuple[str, str]) -> str:
    """Change the CPU's rounding mode around the operation, in a separate function so that LLVM moves nothing in."""
    name = f"{verb}.{side}.{values[0][0]}"
    kinds = [kind for kind, _ in values]
    if name not in w.shared.intrinsics:
        overload = "f64" if kinds[0] == "double" else f"f64.{kinds[0]}"
        intrinsic = f"@llvm.experimental.constrained.{verb}.{overload}"
        taken = ", ".join(f"{kind} %{at}" for at, kind in enumerate(kinds))
        w.shared.intrinsics[name] = (
            f"define internal double @{name}({taken}) noinline strictfp nounwind {{\n"
            f"  call void @llvm.set.rounding(i32 {_SIDES[side]}) strictfp\n"
            f"  %result = call double {intrinsic}({taken}, "
            'metadata !"round.dynamic", metadata !"fpexcept.strict") strictfp\n'
            "  call void @llvm.set.rounding(i32 1) strictfp\n"
            "  ret double %result\n}"
        )
        w.shared.intrinsics[intrinsic] = f"declare double {intrinsic}({', '.join(kinds)}, metadata, metadata)"
        w.shared.intrinsics["llvm.set.rounding"] = "declare void @llvm.set.rounding(i32)"
    return w.emit(f"call double @{name}({', '.join(' '.join(each) for each in values)})")


def _sum_to_odd(w: Writer, lanes: int, base: str, a: str, b: str) -> str:
    """Add and round to odd: if the sum is inexact and even, take the odd neighbor toward the exact value."""
    llvm, whole = shaped(lanes, base), shaped(lanes, f"i{_WIDTHS[base]}")
    total = w.emit(f"fadd {llvm} {a}, {b}")
    of_b = w.emit(f"fsub {llvm} {total}, {a}")
    of_a = w.emit(f"fsub {llvm} {total}, {of_b}")
    lost_b, lost_a = w.emit(f"fsub {llvm} {b}, {of_b}"), w.emit(f"fsub {llvm} {a}, {of_a}")
    lost = w.emit(f"fadd {llvm} {lost_a}, {lost_b}")
    bits, lost_bits = (w.emit(f"bitcast {llvm} {each} to {whole}") for each in (total, lost))
    zero, one = constant(whole, "0"), constant(whole, "1")
    inexact = w.emit(f"fcmp one {llvm} {lost}, {constant(llvm, '0.0')}")
    even = w.emit(f"icmp eq {whole} {w.emit(f'and {whole} {bits}, {one}')}, {zero}")
    truth = shaped(lanes, "i1")
    both = w.emit(f"and {truth} {inexact}, {even}")
    apart = w.emit(f"icmp slt {whole} {w.emit(f'xor {whole} {bits}, {lost_bits}')}, {zero}")
    step = w.emit(f"select {truth} {apart}, {whole} {constant(whole, '-1')}, {whole} {one}")
    moved = w.emit(f"add {whole} {bits}, {step}")
    chosen = w.emit(f"select {truth} {both}, {whole} {moved}, {whole} {bits}")
    return w.emit(f"bitcast {whole} {chosen} to {llvm}")


def narrow(w: Writer, value: str, ways: tuple[str, str], side: str | None, *, lanes: int = 1) -> str:
    """Convert a float to a smaller type: to nearest, directed, or to odd."""
    have, want = ways
    source, target = shaped(lanes, have), shaped(lanes, want)
    near = w.emit(f"fptrunc {source} {value} to {target}")
    if side is None:
        return near
    whole, truth = shaped(lanes, f"i{_WIDTHS[want]}"), shaped(lanes, "i1")
    one, minus = constant(whole, "1"), constant(whole, "-1")
    back = w.emit(f"fpext {target} {near} to {source}")
    bits = w.emit(f"bitcast {target} {near} to {whole}")
    # One step in the bits is one unit in the last place; step back if the result is on the wrong side.
    if side in ("rz", "odd"):
        sizes = [
            w.intrinsic(f"llvm.fabs.{_overload(lanes, have)}", source, (source, each)) for each in (back, value)
        ]
        beyond = w.emit(f"fcmp ogt {source} {sizes[0]}, {sizes[1]}")
        step = minus
    else:
        beyond = w.emit(f"fcmp {'ogt' if side == 'rm' else 'olt'} {source} {back}, {value}")
        negative = w.emit(f"icmp slt {whole} {bits}, {constant(whole, '0')}")
        below, above = (one, minus) if side == "rm" else (minus, one)
        step = w.emit(f"select {truth} {negative}, {whole} {below}, {whole} {above}")
    stepped = w.emit(f"add {whole} {bits}, {step}")
    chosen = w.emit(f"select {truth} {beyond}, {whole} {stepped}, {whole} {bits}")
    if side == "odd":
        inexact = w.emit(f"zext {truth} {w.emit(f'fcmp one {source} {back}, {value}')} to {whole}")
        chosen = w.emit(f"or {whole} {chosen}, {inexact}")
    return w.emit(f"bitcast {whole} {chosen} to {target}")


def _overload(lanes: int, base: str) -> str:
    return ("v2" if lanes == 2 else "") + f"f{_WIDTHS[base]}"


def cut(w: Writer, value: str) -> str:
    """Cut an f32 to the bits of a bf16; keep NaN."""
    bits = w.emit(f"bitcast float {value} to i32")
    short = w.emit(f"bitcast i32 {w.emit(f'and i32 {bits}, -65536')} to float")
    return w.emit(f"select i1 {w.emit(f'fcmp uno float {value}, 0.0')}, float {value}, float {short}")


def from_integer(w: Writer, ins: Instruction, target: Type, source: Type, value: str) -> str:
    """Convert an integer to a float of the target type."""
    side = side_of(ins)
    word = "sitofp" if source.is_signed else "uitofp"
    plain = "float" if base_type(target) == "half" else llvm_type(target)
    if target == F64 and side and source.bits == 64:
        return _directed_double(w, side, word, ("i64", value))
    if target.kind is ScalarKind.BFLOAT or (side and target == F32):
        wide = w.emit(f"{word} i{source.bits} {_cut_to_odd(w, source, value)} to double")
        value = narrow(w, wide, ("double", "float"), side or "odd")
        return cut(w, value) if target != F32 and side == "rz" else value
    near = w.emit(f"{word} i{source.bits} {value} to {plain}")
    # An integer that fits into a half is exact in f32; larger ones overflow both.
    return narrow(w, near, ("float", "half"), side) if base_type(target) == "half" else near


def _cut_to_odd(w: Writer, source: Type, value: str) -> str:
    """Change an integer so that f64 holds it exactly and it still rounds to the same f32."""
    if source.bits < 64:
        return value
    low = w.emit(f"icmp ne i64 {w.emit(f'and i64 {value}, 2047')}, 0")
    high = w.emit(f"and i64 {value}, -2048")
    cut = w.emit(f"select i1 {low}, i64 {w.emit(f'or i64 {high}, 2048')}, i64 {high}")
    shifted = w.emit(f"add i64 {value}, {1 << 53}") if source.is_signed else value
    large = w.emit(f"icmp ugt i64 {shifted}, {1 << (54 if source.is_signed else 53)}")
    return w.emit(f"select i1 {large}, i64 {cut}, i64 {value}")


def flushed(w: Writer, ins: Instruction, kind: Type, value: str) -> str:
    """With `.ftz`, turn a subnormal f32 or f16 into a zero of the same sign."""
    base = base_type(kind)
    if not ins.has("ftz") or base not in _SMALLEST or kind.kind is ScalarKind.BFLOAT:
        return value
    llvm, truth = llvm_type(kind), shaped(kind, "i1")
    tiny = w.emit(f"fcmp olt {llvm} {w.math('fabs', kind, value)}, {constant(llvm, _SMALLEST[base])}")
    zero = w.math("copysign", kind, constant(llvm, "0.0"), value)
    return w.emit(f"select {truth} {tiny}, {llvm} {zero}, {llvm} {value}")


def clamped(w: Writer, ins: Instruction, kind: Type, value: str) -> str:
    """`.sat` clamps to [0, 1] and turns NaN into 0; `.relu` turns negative values into 0 and keeps NaN."""
    zero, one = constant(llvm_type(kind), "0.0"), constant(llvm_type(kind), "1.0")
    if ins.has("sat"):
        value = w.math("minimumnum", kind, w.math("maximumnum", kind, value, zero), one)
    if ins.has("relu"):
        value = w.math("maximum", kind, value, zero)
    return value
