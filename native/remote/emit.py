"""Write the generated functions of both halves, each as C text."""

from collections.abc import Iterator
from dataclasses import replace

from vendorapi.header import Function

from remote.plan import Row, Travel


def client_function(function: Function, rows: list[Row], *, reply: bool, asked: bool) -> str:
    """Return the function that sends a call; `asked`: under a name of our own, for the function by hand."""
    result, symbol = function.result, function.symbol
    shown = replace(function, symbol=f"ask_{symbol}") if asked else function
    prototype = shown.prototype.removeprefix("EXPORT ") if asked else shown.prototype
    lines = ["    struct message m_;", f"    int result_ = message_begin(&m_, OP_{symbol});"]
    lines += ["    if (result_)", f"        return ({result})result_;"]
    after: list[str] = []
    for row in rows:
        lines += _send(row, result, reply)
        if reply:
            after += _receive(row)
    if not reply:
        return "\n".join([prototype, "{", *lines, f"    return ({result})message_send(&m_);", "}"])
    lines.append("    result_ = message_call(&m_);")
    return "\n".join([prototype, "{", *lines, *after, f"    return ({result})result_;", "}"])


def _send(row: Row, result: str, reply: bool) -> Iterator[str]:
    name, kind = row.parameter.name, row.kind
    match row.travel:
        case Travel.HANDLE:
            yield f"    put_u64(&m_, {'stream_number' if kind == 'CUstream' else 'handle_number'}({name}));"
        case Travel.VALUE:
            yield f"    put(&m_, &{name}, sizeof {name});"
        case Travel.STRING:
            yield f"    put_string(&m_, {name});"
        case Travel.INPUT:
            count = f" * (size_t){row.counter}" if row.counter else ""
            yield f"    put_block(&m_, {name}, sizeof *{name}{count});"
        case Travel.HANDLES:
            yield f"    put_handles(&m_, (void *const *){name}, {row.counter});"
        case Travel.HANDLE_OUTPUT if not reply:
            yield f"    if (!{name})"
            yield f"        return ({result})STATUS_INVALID_VALUE;"
            yield f"    *{name} = ({kind})put_new_handle(&m_);"
        case Travel.OUTPUT | Travel.HANDLE_OUTPUT:
            yield f"    put_u64(&m_, {name} != NULL);"
        case Travel.IN_AND_OUT:
            yield f"    put_block(&m_, {name}, sizeof *{name});"
        case Travel.ARRAY | Travel.HANDLE_ARRAY:
            yield f"    uint64_t room_{name} = {_room(row)};"
            yield f"    put_u64(&m_, room_{name});"
            if row.is_read:
                yield f"    put_block(&m_, {name}, room_{name} * sizeof *{name});"


def _receive(row: Row) -> Iterator[str]:
    name = row.parameter.name
    match row.travel:
        case Travel.OUTPUT | Travel.IN_AND_OUT:
            yield f"    get(&m_, {name}, sizeof *{name});"
        case Travel.HANDLE_OUTPUT:
            yield f"    get_handle(&m_, (void **){name});"
        case Travel.ARRAY:
            yield f"    get_block(&m_, {name}, room_{name} * sizeof *{name});"
        case Travel.HANDLE_ARRAY:
            yield f"    get_handles(&m_, (void **){name}, room_{name});"
        case _:
            pass


def _room(row: Row) -> str:
    """How many values the caller has room for."""
    name, counter = row.parameter.name, row.counter
    if row.by_pointer:
        return f"{name} && {counter} ? (uint64_t)*{counter} : 0"
    return f"{name} && {counter} > 0 ? (uint64_t){counter} : 0"


def worker_function(function: Function, rows: list[Row], *, table: str, reply: bool) -> str:
    """Return the function that reads a call, makes it, and writes what came of it."""
    lines: list[str] = []
    arguments: list[str] = []
    after: list[str] = []
    for row in rows:
        lines += _decode(row, reply)
        after += _encode(row, reply)
        given = row.travel in (Travel.OUTPUT, Travel.HANDLE_OUTPUT)
        name = row.parameter.name
        arguments.append((f"has_{name} ? &{name} : NULL" if reply else f"&{name}") if given else name)
    lines += [f"    {check}" for row in rows for check in _checks(row)]
    lines += ["    if (r->status)", "        return;"]
    lines.append(f"    r->status = (int){table}.{function.symbol}({', '.join(arguments)});")
    return "\n".join([f"static void do_{function.symbol}(struct request *r)", "{", *lines, *after, "}"])


def _decode(row: Row, reply: bool) -> Iterator[str]:
    name, kind = row.parameter.name, row.kind
    match row.travel:
        case Travel.HANDLE:
            yield f"    {kind} {name} = ({kind}){'take_stream' if kind == 'CUstream' else 'take_handle'}(r);"
        case Travel.VALUE:
            yield f"    {kind} {name};"
            yield f"    take(r, &{name}, sizeof {name});"
        case Travel.STRING:
            yield f"    const char *{name} = take_string(r);"
        case Travel.INPUT:
            yield f"    size_t size_{name};"
            yield f"    {kind} *{name} = take_block(r, &size_{name});"
        case Travel.IN_AND_OUT:
            yield f"    {kind} *{name} = take_copy(r, sizeof *{name});"
        case Travel.HANDLES:
            yield f"    size_t count_{name};"
            yield f"    {kind} *{name} = ({kind} *)take_handles(r, &count_{name});"
        case Travel.HANDLE_OUTPUT if not reply:
            yield f"    uint64_t new_{name} = take_u64(r);"
            yield f"    {kind} {name} = NULL;"
        case Travel.OUTPUT | Travel.HANDLE_OUTPUT:
            yield f"    uint64_t has_{name} = take_u64(r);"
            yield f"    {kind} {name};"
            yield f"    memset(&{name}, 0, sizeof {name});"
        case Travel.ARRAY | Travel.HANDLE_ARRAY:
            yield f"    uint64_t room_{name} = take_u64(r);"
            yield f"    {kind} *{name} = request_room(r, room_{name}, sizeof *{name});"
            if row.is_read:
                yield f"    take_values(r, {name}, room_{name} * sizeof *{name});"


def _checks(row: Row) -> Iterator[str]:
    name = row.parameter.name
    match row.travel:
        case Travel.INPUT:
            count = f" * (uint64_t){row.counter}" if row.counter else ""
            yield f"require(r, !{name} || size_{name} == sizeof *{name}{count});"
        case Travel.HANDLES:
            yield f"require(r, count_{name} == (uint64_t){row.counter});"
        case Travel.ARRAY | Travel.HANDLE_ARRAY if row.by_pointer:
            yield f"require(r, !{name} || ({row.counter} && room_{name} == (uint64_t)*{row.counter}));"
        case Travel.ARRAY | Travel.HANDLE_ARRAY:
            yield f"require(r, !{name} || room_{name} == (uint64_t){row.counter});"
        case _:
            pass


def _encode(row: Row, reply: bool) -> Iterator[str]:
    name = row.parameter.name
    match row.travel:
        case Travel.HANDLE_OUTPUT if not reply:
            yield "    if (!r->status)"
            yield f"        handle_set(new_{name}, {name});"
        case Travel.OUTPUT:
            yield f"    answer_put(r, &{name}, sizeof {name});"
        case Travel.HANDLE_OUTPUT:
            yield f"    answer_u64(r, handle_find({name}));"
        case Travel.IN_AND_OUT:
            yield f"    answer_put(r, {name}, {name} ? sizeof *{name} : 0);"
        case Travel.ARRAY:
            yield f"    answer_block(r, {name}, room_{name} * sizeof *{name});"
        case Travel.HANDLE_ARRAY:
            yield f"    answer_handles(r, (void *const *){name}, room_{name});"
        case _:
            pass
