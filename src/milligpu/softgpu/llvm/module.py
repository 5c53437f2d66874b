"""A whole module as LLVM IR: variables, functions, one loop or fiber entry per kernel, and tables of both."""

from milligpu.softgpu.llvm.function import entry_parameters, parameter_offsets, text, write_function
from milligpu.softgpu.llvm.special import BLOCK, BLOCK_BYTES, PARAMETERS
from milligpu.softgpu.llvm.work import FIBER_COUNTS, LOOP_COUNTS, NO_COUNTS
from milligpu.softgpu.llvm.writer import STATIC_SHARED, Shared, Writer
from milligpu.softgpu.ptx.errors import BadPtx, UnsupportedPtx
from milligpu.softgpu.ptx.syntax import Function, Literal, Module, Name, Variable

# The version of `struct sg_image` in `abi.h`; part of the compile cache's key.
IMAGE_VERSION = 3
# The most parameter bytes of a kernel, from CUDA 12.1 on.
_MOST_PARAMETER_BYTES = 32764

# A kernel whose threads never synchronize: a loop runs all threads of a block one after the other.
_LOOP = f"""define hidden void @"k.$NAME$"(
    ptr noalias nonnull $READONLY$dereferenceable({BLOCK_BYTES}) %block, ptr %mem) nounwind {{
  %at.x = getelementptr i8, ptr %block, i64 {BLOCK}
  %at.y = getelementptr i8, ptr %block, i64 {BLOCK + 4}
  %at.z = getelementptr i8, ptr %block, i64 {BLOCK + 8}
  %n.x = load i32, ptr %at.x, !invariant.load !0
  %n.y = load i32, ptr %at.y, !invariant.load !0
  %n.z = load i32, ptr %at.z, !invariant.load !0
$PARAMETERS$
$BEGIN$
  br label %z.loop
z.loop:
  %tidz = phi i32 [0, %0], [%z.next, %z.end]
  br label %y.loop
y.loop:
  %tidy = phi i32 [0, %z.loop], [%y.next, %y.end]
  %plane = mul i32 %tidz, %n.y
  %row = add i32 %plane, %tidy
  %start = mul i32 %row, %n.x
  br label %x.loop
x.loop:
  %tidx = phi i32 [0, %y.loop], [%x.next, %x.loop]
  %linear = add i32 %start, %tidx
  $BEFORE$
  call void @"f.$NAME$"($ARGUMENTS$)
  $AFTER$
  %x.next = add nuw nsw i32 %tidx, 1
  %x.more = icmp ult i32 %x.next, %n.x
  br i1 %x.more, label %x.loop, label %y.end
y.end:
  %y.next = add nuw nsw i32 %tidy, 1
  %y.more = icmp ult i32 %y.next, %n.y
  br i1 %y.more, label %y.loop, label %z.end
z.end:
  %z.next = add nuw nsw i32 %tidz, 1
  %z.more = icmp ult i32 %z.next, %n.z
  br i1 %z.more, label %z.loop, label %done
done:
$END$
  ret void
}}
"""


def module_ir(module: Module, *, timed: bool = False, plain: bool = False) -> str:
    """Return the text that LLVM compiles; `timed` code counts its threads' work, `plain` code is not optimized."""
    shared = Shared(module, timed, plain)
    for variable in module.variables.values():
        if variable.space == "shared":
            shared.place_shared(variable)
    writers = {
        name: write_function(shared, function)
        for name, function in module.functions.items()
        if function.body is not None
    }
    closures = {name: _reachable(name, writers) for name in writers}
    for name, reached in closures.items():
        writers[name].needs_fibers = any(writers[each].needs_fibers for each in reached)
    parts = [_global(variable, module) for variable in module.variables.values() if variable.space != "shared"]
    kernels: list[str] = []
    for name, writer in writers.items():
        parts.append(text(writer))
        if writer.function.entry:
            parts += _entry(writer)
            kernels.append(_kernel_record(name, writers, closures[name], shared, parts))
    parts += _tables(kernels, [v for v in module.variables.values() if v.space != "shared"])
    parts += shared.intrinsics.values()
    parts.append("!0 = !{}")
    static = -(-shared.shared_size // 128) * 128
    return "\n".join(parts).replace(STATIC_SHARED, str(static)) + "\n"


def _reachable(name: str, writers: dict[str, Writer]) -> set[str]:
    """Return a function and all that it may call; an indirect call may reach any whose address is taken."""
    found: set[str] = set()
    waiting = [name]
    while waiting:
        each = waiting.pop()
        if each in found or each not in writers:
            continue
        found.add(each)
        waiting += writers[each].calls
        if writers[each].indirect_calls:
            waiting += [other for other, writer in writers.items() if not writer.function.entry]
    return found


def _global(variable: Variable, module: Module) -> str:
    head = f'@"{variable.name}" = hidden global'
    size = max(1, variable.size)
    if not variable.values:
        return f"{head} [{size} x i8] zeroinitializer, align {max(16, variable.align)}"
    width = variable.type.bytes
    if len(variable.values) * width > size:
        raise BadPtx(variable.line, f"{variable.name} has more values than room")
    items = [_initial(value, variable, module) for value in variable.values]
    rest = size - len(items) * width
    if rest:
        items.append(f"[{rest} x i8] zeroinitializer")
    kinds = ", ".join(item[: item.index("]") + 1] if item[0] == "[" else item.split(" ")[0] for item in items)
    return f"{head} <{{ {kinds} }}> <{{ {', '.join(items)} }}>, align {max(16, variable.align)}"


def _initial(value: Literal | Name, variable: Variable, module: Module) -> str:
    bits = variable.type.bytes * 8
    if isinstance(value, Literal):
        return f"i{bits} {value.value & ((1 << bits) - 1)}"
    known = module.functions.get(value.text)
    if bits != 64 or (known is None and value.text not in module.variables):
        raise BadPtx(variable.line, f"{variable.name}: cannot begin as the address of {value.text}")
    if known is not None and known.body is None:
        raise UnsupportedPtx(variable.line, f"the address of {value.text}, which has no body here: unsupported")
    return f'ptr @"f.{value.text}"' if known is not None else f'ptr @"{value.text}"'


def _entry(writer: Writer) -> list[str]:
    """The kernel's entry: one thread on its fiber, or a loop over all threads of a block."""
    name, environment = writer.function.name, writer.shared.environment
    loads, values = _parameter_loads(writer.function)
    if writer.needs_fibers:
        head = f'define hidden void @"k.{name}"({", ".join(environment[:7])}) nounwind {{'
        call = f'  call void @"f.{name}"({", ".join([*environment, *values])})'
        begin, end = FIBER_COUNTS if writer.shared.timed else ("", "")
        if writer.shared.timed:
            writer.shared.intrinsics["sg_work"] = "declare void @sg_work(ptr, i64, i64)"
        return [head, *loads, begin, call, end, "  ret void", "}", ""]
    arguments = ", ".join([*environment, *values]).replace("%fiber", "null")
    loop = _LOOP.replace("$NAME$", name).replace("$PARAMETERS$", "\n".join(loads))
    for place, text_there in (LOOP_COUNTS if writer.shared.timed else NO_COUNTS).items():
        loop = loop.replace(place, text_there)
    return [loop.replace("$ARGUMENTS$", arguments)]


def _parameter_loads(function: Function) -> tuple[list[str], list[str]]:
    """Read all parameters first, so that no loop contains such a load."""
    lines = [
        f"  %params.at = getelementptr i8, ptr %block, i64 {PARAMETERS}",
        "  %params = load ptr, ptr %params.at, !invariant.load !0",
    ]
    values: list[str] = []
    offsets, _ = parameter_offsets(function)
    for at, (kind, offset) in enumerate(zip(entry_parameters(function), offsets, strict=True)):
        lines.append(f"  %q.{at} = getelementptr i8, ptr %params, i64 {offset}")
        if kind != "ptr":
            lines.append(f"  %v.{at} = load {kind}, ptr %q.{at}, !invariant.load !0")
        values.append(f"{kind} %{'q' if kind == 'ptr' else 'v'}.{at}")
    return lines, values


def _kernel_record(
    name: str, writers: dict[str, Writer], reached: set[str], shared: Shared, parts: list[str]
) -> str:
    writer = writers[name]
    offsets, length = parameter_offsets(writer.function)
    if length > _MOST_PARAMETER_BYTES:
        raise BadPtx(writer.function.line, f"{name}: {length} bytes of parameters, want at most 32764")
    used = set[str]().union(*(writers[each].shared_used for each in reached))
    static = sum(shared.shared_sizes.get(each, 0) for each in used)
    local = sum(writers[each].local_bytes for each in reached)
    count = len(offsets)
    parts.append(f'@"n.{name}" = private constant [{len(name) + 1} x i8] c"{name}\\00"')
    for stem, values in (("o", offsets), ("s", [each.size for each in writer.function.parameters])):
        items = ", ".join(f"i32 {value}" for value in [*values, 0])
        parts.append(f'@"{stem}.{name}" = private constant [{count + 1} x i32] [{items}]')
    numbers = [count, length, static, local, int(writer.needs_fibers), writer.function.max_threads]
    pointers = ", ".join(f'ptr @"{stem}.{name}"' for stem in ("n", "k", "o", "s"))
    return f"%sg.kernel {{ {pointers}, {', '.join(f'i32 {number}' for number in numbers)} }}"


def _tables(kernels: list[str], variables: list[Variable]) -> list[str]:
    parts = ["%sg.kernel = type { ptr, ptr, ptr, ptr, i32, i32, i32, i32, i32, i32 }"]
    parts.append("%sg.global = type { ptr, ptr, i64 }")
    parts.append(f"@sg.kernels = private constant [{len(kernels)} x %sg.kernel] [{', '.join(kernels)}]")
    records: list[str] = []
    for variable in variables:
        length = len(variable.name) + 1
        parts.append(f'@"v.{variable.name}" = private constant [{length} x i8] c"{variable.name}\\00"')
        record = f'ptr @"v.{variable.name}", ptr @"{variable.name}", i64 {variable.size}'
        records.append(f"%sg.global {{ {record} }}")
    parts.append(f"@sg.globals = private constant [{len(records)} x %sg.global] [{', '.join(records)}]")
    parts.append(
        "@sg_image = hidden constant { i32, i32, i32, i32, ptr, ptr } "
        f"{{ i32 {IMAGE_VERSION}, i32 {len(kernels)}, i32 {len(records)}, i32 0, "
        "ptr @sg.kernels, ptr @sg.globals }"
    )
    return parts
