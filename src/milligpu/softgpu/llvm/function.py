"""A whole function: its statements in order, with guards and scopes."""

from milligpu.softgpu.llvm import (
    arithmetic,
    asynchronous,
    atomic,
    control,
    convert,
    floating,
    logic,
    matrix,
    memory,
    warp,
)
from milligpu.softgpu.llvm.control import label
from milligpu.softgpu.llvm.special import SHARED
from milligpu.softgpu.llvm.table import HANDLERS
from milligpu.softgpu.llvm.work import with_counts
from milligpu.softgpu.llvm.writer import TICK, Scope, Shared, Writer
from milligpu.softgpu.ptx.errors import BadPtx, UnsupportedPtx
from milligpu.softgpu.ptx.syntax import (
    Close,
    Function,
    Instruction,
    Label,
    Name,
    Open,
    Operand,
    Registers,
    Statement,
    Targets,
    Variable,
)

# Imported because they fill the table.
GROUPS = (arithmetic, asynchronous, atomic, control, convert, floating, logic, matrix, memory, warp)

# Statements in a basic block of plain code: LLVM goes through a whole block for each instruction that its fast
# selector does not know.
_BLOCK_LENGTH = 200


def parameter_offsets(function: Function) -> tuple[list[int], int]:
    """The offset of each kernel parameter in the buffer, and the buffer's length."""
    offsets: list[int] = []
    end = 0
    for parameter in function.parameters:
        end = -(-end // parameter.align) * parameter.align
        offsets.append(end)
        end += parameter.size
    return offsets, end


def write_function(shared: Shared, function: Function) -> Writer:
    """Translate the body; `text(writer)` then returns the function's text."""
    w = Writer(shared, function)
    body = function.body or []
    labels = {statement.name for statement in body if isinstance(statement, Label)}
    if len(labels) != sum(isinstance(statement, Label) for statement in body):
        raise BadPtx(function.line, f"{function.name}: a label is defined twice")
    targets = {each.name: each for each in body if isinstance(each, Targets)}
    w.slots += [
        "  %carry = alloca i1",
        "  store i1 false, ptr %carry",
        f"  %shared.at = getelementptr i8, ptr %block, i64 {SHARED}",
        "  %shared = load ptr, ptr %shared.at, !invariant.load !0",
    ]
    _declare_parameters(w)
    for at, statement in enumerate(body):
        if w.shared.plain and at % _BLOCK_LENGTH == _BLOCK_LENGTH - 1:
            w.begin(w.block_name("part"))
        _statement(w, statement, labels, targets)
    w.do("ret void")
    return w


def text(w: Writer) -> str:
    """Return the function as LLVM IR."""
    kinds = entry_parameters(w.function) if w.function.entry else ["ptr"] * _count(w.function)
    extra = [f"{kind} %p.{at}" for at, kind in enumerate(kinds)]
    head = f'define internal void @"f.{w.function.name}"({", ".join((*w.shared.environment, *extra))})'
    # Inlining joins the short blocks of plain code into long ones.
    inline = " alwaysinline" if w.function.entry and not w.needs_fibers and not w.shared.plain else ""
    lines = with_counts(["body:", *w.lines]) if w.shared.timed else ["body:", *w.lines]
    return "\n".join([f"{head} nounwind{inline} {{", *w.slots, "  br label %body", *lines, "}", ""])


def _count(function: Function) -> int:
    return len(function.results) + len(function.parameters)


def _declare_parameters(w: Writer) -> None:
    function, variables = w.function, w.scopes[0].variables
    if not function.entry:
        for at, variable in enumerate((*function.results, *function.parameters)):
            variables[variable.name] = f"%p.{at}"
            if variable.space == "reg":
                raise w.refuse("parameters in registers: unsupported")
        return
    for at, parameter in enumerate(function.parameters):
        variables[parameter.name] = f"%p.{at}"
        if is_scalar(parameter):
            bits = 8 * parameter.size
            variables[parameter.name] = copy = w.fresh("s")
            w.slots += [f"  {copy} = alloca i{bits}", f"  store i{bits} %p.{at}, ptr {copy}"]


def is_scalar(parameter: Variable) -> bool:
    """Whether a kernel parameter is passed by value; others are read from the launch's buffer."""
    return parameter.size in (1, 2, 4, 8)


def entry_parameters(function: Function) -> list[str]:
    """The types of a kernel's parameters, as its function takes them."""
    return [f"i{8 * each.size}" if is_scalar(each) else "ptr" for each in function.parameters]


def _statement(w: Writer, statement: Statement, labels: set[str], targets: dict[str, Targets]) -> None:
    match statement:
        case Instruction():
            w.line = statement.line
            if w.shared.timed:
                w.lines.append(TICK)
            _guarded(w, statement, labels, targets)
        case Label():
            w.begin(label(statement.name))
        case Registers():
            w.scopes[-1].registers.update(dict.fromkeys(statement.names, statement.type))
        case Open():
            w.scopes.append(Scope())
        case Close():
            w.scopes.pop()
        case Variable():
            _variable(w, statement)
        case Targets():
            pass


def _variable(w: Writer, variable: Variable) -> None:
    w.line = variable.line
    if variable.space == "shared":
        w.shared.place_shared(variable)
    elif variable.space in ("local", "param"):
        name = w.fresh("s")
        # A parameter may be read wider than it was declared, so it always has at least eight bytes.
        size = max(variable.size, 8)
        w.slots.append(f"  {name} = alloca [{size} x i8], align {max(variable.align, 8)}")
        w.scopes[-1].variables[variable.name] = name
        w.local_bytes += size
    else:
        raise w.refuse(f"a .{variable.space} variable inside a function: unsupported")


def _guarded(w: Writer, ins: Instruction, labels: set[str], targets: dict[str, Targets]) -> None:
    if ins.guard is None:
        _instruction(w, ins, labels, targets)
        return
    condition = w.bits(Name(ins.guard.register), 1)
    if w.register(ins.guard.register) is None:
        raise w.wrong(f"unknown register {ins.guard.register}")
    then, after = w.block_name("then"), w.block_name("skip")
    ways = (after, then) if ins.guard.negated else (then, after)
    w.do(f"br i1 {condition}, label %{ways[0]}, label %{ways[1]}")
    w.lines.append(f"{then}:")
    _instruction(w, ins, labels, targets)
    w.begin(after)


def _instruction(w: Writer, ins: Instruction, labels: set[str], targets: dict[str, Targets]) -> None:
    if ins.opcode == "brx":
        _switch(w, ins, labels, targets)
        return
    handler = HANDLERS.get(ins.opcode)
    if handler is None:
        raise UnsupportedPtx(ins.line, f"unknown instruction {ins}")
    if ins.opcode == "bra":
        _check_label(w, w.operand(ins, 0), labels)
    handler(w, ins)


def _check_label(w: Writer, target: Operand, labels: set[str]) -> None:
    if not isinstance(target, Name) or target.text not in labels:
        raise w.wrong(f"no label {target.text if isinstance(target, Name) else target}")


def _switch(w: Writer, ins: Instruction, labels: set[str], targets: dict[str, Targets]) -> None:
    """`brx.idx`: a jump table."""
    table = w.operand(ins, 1)
    if not isinstance(table, Name) or table.text not in targets:
        raise w.wrong(f"{ins}: no branch targets")
    index = w.bits(w.operand(ins, 0), 32)
    names = targets[table.text].labels
    for name in names:
        _check_label(w, Name(name), labels)
    cases = " ".join(f"i32 {at}, label %{label(name)}" for at, name in enumerate(names))
    w.do(f"switch i32 {index}, label %{label(names[0])} [{cases}]")
    w.lines.append(f"{w.block_name('after')}:")
