"""The table from mnemonics to the functions that write them; each group of instructions fills its part."""

from collections.abc import Callable

from milligpu.softgpu.llvm.writer import Writer
from milligpu.softgpu.ptx.syntax import Instruction
from milligpu.softgpu.ptx.types import TYPES, Type

Handler = Callable[[Writer, Instruction], None]

HANDLERS: dict[str, Handler] = {}


def instruction(*mnemonics: str) -> Callable[[Handler], Handler]:
    """Register the writer of these instructions."""

    def add(handler: Handler) -> Handler:
        for mnemonic in mnemonics:
            HANDLERS[mnemonic] = handler
        return handler

    return add


def types(ins: Instruction) -> list[Type]:
    """The types among the modifiers, in order."""
    return [TYPES[part] for part in ins.modifiers if part in TYPES]


def last_type(w: Writer, ins: Instruction) -> Type:
    """The type an instruction works in: the last one it names."""
    found = types(ins)
    if not found:
        raise w.wrong(f"{ins}: no type")
    return found[-1]


def one_of(w: Writer, ins: Instruction, *choices: str) -> str:
    """The modifier that is one of these."""
    for part in ins.modifiers:
        if part in choices:
            return part
    raise w.refuse(f"{ins}: unsupported")
