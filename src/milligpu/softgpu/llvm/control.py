"""Branches, calls and the end of a thread."""

from milligpu.softgpu.llvm.table import instruction, last_type
from milligpu.softgpu.llvm.work import note_work, sleep
from milligpu.softgpu.llvm.writer import Writer
from milligpu.softgpu.ptx.syntax import Group, Instruction, Name

# Functions of the device library that a kernel may call, and the runtime functions that implement them.
_BUILTIN = {"vprintf": "sg_printf", "malloc": "sg_malloc", "free": "sg_free", "__assertfail": "sg_assert"}


def label(name: str) -> str:
    """Return a PTX label as an LLVM label."""
    return f'"L.{name}"'


@instruction("bra")
def _branch(w: Writer, ins: Instruction) -> None:
    target = w.operand(ins, 0)
    if not isinstance(target, Name):
        raise w.wrong("bra: expected a label")
    w.do(f"br label %{label(target.text)}")
    w.lines.append(f"{w.block_name('after')}:")


@instruction("ret", "exit")
def _leave(w: Writer, ins: Instruction) -> None:
    if ins.opcode == "exit" and not w.function.entry:
        note_work(w)
        w.intrinsic("sg_exit", "void", ("ptr", "%fiber"))
        w.needs_fibers = True
    w.do("ret void")
    w.lines.append(f"{w.block_name('after')}:")


@instruction("trap", "brkpt")
def _trap(w: Writer, ins: Instruction) -> None:  # noqa: ARG001
    w.intrinsic("sg_trap", "void")


@instruction("nanosleep")
def _sleep(w: Writer, ins: Instruction) -> None:
    """Sleep: a hint in real time; in modeled time, its duration is counted."""
    sleep(w, w.bits(w.operand(ins, 0), 32))


@instruction("pmevent", "griddepcontrol", "setmaxnreg")
def _nothing(w: Writer, ins: Instruction) -> None:
    """Ignore a hint to the hardware's scheduler."""


@instruction("mapa")
def _same_block(w: Writer, ins: Instruction) -> None:
    """Map a shared variable's address to another block of the cluster; here a cluster is one block."""
    bits = last_type(w, ins).bits
    w.write_bits(w.operand(ins, 0), bits, w.bits(w.operand(ins, 1), bits))


@instruction("getctarank")
def _rank(w: Writer, ins: Instruction) -> None:
    w.write_bits(w.operand(ins, 0), 32, "0")


@instruction("call")
def _call(w: Writer, ins: Instruction) -> None:
    groups = [operand for operand in ins.operands if isinstance(operand, Group)]
    names = [operand for operand in ins.operands if isinstance(operand, Name)]
    if not names:
        raise w.wrong("call: no function")
    target = names[0].text
    has_results = bool(ins.operands) and isinstance(ins.operands[0], Group)
    results = groups[0].items if has_results else ()
    arguments = groups[1 if has_results else 0].items if len(groups) > has_results else ()
    places = [_place(w, item.text) for item in (*results, *arguments)]
    if target in _BUILTIN:
        _call_builtin(w, target, len(results), places)
        return
    if w.register(target) is not None:
        w.indirect_calls = True
        w.do(f"call void {w.emit(f'inttoptr i64 {w.bits(names[0], 64)} to ptr')}({_passed(w, places)})")
        return
    function = w.shared.module.functions.get(target)
    if function is None or function.body is None or function.entry:
        raise w.wrong(f"call of {target}, which has no body here")
    if not function.results:
        # Another piece of what was linked may declare a result that there is not; it stays undefined.
        del places[: len(results)]
    if len(places) != len(function.results) + len(function.parameters):
        raise w.wrong(f"call of {target} with the wrong number of arguments")
    w.calls.add(target)
    w.do(f'call void @"f.{target}"({_passed(w, places)})')


def _passed(w: Writer, places: list[str]) -> str:
    return ", ".join([*w.shared.environment, *(f"ptr {place}" for place in places)])


def _place(w: Writer, name: str) -> str:
    """The location of an argument or result: a `.param` variable, or a register used as one."""
    pointer = w.pointer_to(name)
    if pointer is not None:
        return pointer
    if w.register(name) is not None:
        return w.slot(name)[0]
    raise w.wrong(f"unknown argument {name}")


def _call_builtin(w: Writer, target: str, results: int, places: list[str]) -> None:
    expected = {"vprintf": (1, 2), "malloc": (1, 1), "free": (0, 1), "__assertfail": (0, 5)}[target]
    if (results, len(places) - results) != expected:
        raise w.wrong(f"call of {target} with the wrong number of arguments")
    values = [("i64", w.emit(f"load i64, ptr {place}")) for place in places[results:]]
    match target:
        case "vprintf":
            w.do(f"store i32 {w.intrinsic('sg_printf', 'i32', *values)}, ptr {places[0]}")
        case "malloc":
            w.do(f"store i64 {w.intrinsic('sg_malloc', 'i64', *values)}, ptr {places[0]}")
        case "free":
            w.intrinsic("sg_free", "void", *values)
        case _:
            line = w.emit(f"load i32, ptr {places[2]}")
            w.intrinsic("sg_assert", "void", values[0], values[1], ("i32", line), values[3])
