"""The table from mnemonics to the functions that translate them; each group of instructions adds its own."""

from collections.abc import Callable

from milligpu.softgpu.llvm.writer import Writer
from milligpu.softgpu.ptx.syntax import Instruction
from milligpu.softgpu.ptx.types import TYPES, Type

Handler = Callable[[Writer, Instruction], None]

HANDLERS: dict[str, Handler] = {}


def instruction(*mnemonics: str) -> Callable[[Handler], Handler]:
    """Register the function that translates these instructions."""

    def add(handler: Handler) -> Handler:
        for mnemonic in mnemonics:
            HANDLERS[mnemonic] = handler
        return handler

    return add


def types(ins: Instruction) -> list[Type]:
    """The types among the modifiers, in order."""
    return [TYPES[part] for part in ins.modifiers if part in TYPES]


def last_type(w: Writer, ins: Instruction) -> Type:
    """The type that an instruction works in: the last one it names."""
    found = types(ins)
    if not found:
        raise w.wrong(f"{ins}: no type")
    return found[-1]


def one_of(w: Writer, ins: Instruction, *choices: str) -> str:
    """Return the modifier that is one of `names`."""
    for part in ins.modifiers:
        if part in choices:
            return part
    raise w.refuse(f"{ins}: unsupported")
