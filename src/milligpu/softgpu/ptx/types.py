"""The scalar types of PTX.

Only the width of a register matters; each instruction decides what the bits mean. So a type here is a width and a
kind, and the kind is looked up per operand.
"""

from dataclasses import dataclass
from enum import Enum


class ScalarKind(Enum):
    """How the bits of a value are interpreted."""

    PREDICATE = "predicate"
    BITS = "bits"
    UNSIGNED = "unsigned"
    SIGNED = "signed"
    FLOAT = "float"
    BFLOAT = "bfloat"
    """The upper half of an f32; arithmetic on it is done in f32."""


@dataclass(frozen=True, slots=True)
class Type:
    """One scalar type, or a packed pair of 16-bit ones."""

    name: str
    kind: ScalarKind
    bits: int
    lanes: int = 1

    @property
    def is_float(self) -> bool:
        """Whether arithmetic on this type rounds."""
        return self.kind in (ScalarKind.FLOAT, ScalarKind.BFLOAT)

    @property
    def is_signed(self) -> bool:
        """Whether widening extends the sign."""
        return self.kind is ScalarKind.SIGNED

    @property
    def bytes(self) -> int:
        """The size in memory; a predicate takes one byte."""
        return max(1, self.bits // 8)


def _table() -> dict[str, Type]:
    types = [
        Type("pred", ScalarKind.PREDICATE, 1),
        Type("b128", ScalarKind.BITS, 128),
        Type("tf32", ScalarKind.FLOAT, 32),
    ]
    for letter, kind in (("b", ScalarKind.BITS), ("u", ScalarKind.UNSIGNED), ("s", ScalarKind.SIGNED)):
        types += [Type(f"{letter}{bits}", kind, bits) for bits in (8, 16, 32, 64)]
    types += [Type(f"f{bits}", ScalarKind.FLOAT, bits) for bits in (16, 32, 64)]
    types += [Type("bf16", ScalarKind.BFLOAT, 16)]
    types += [Type("f16x2", ScalarKind.FLOAT, 32, 2), Type("bf16x2", ScalarKind.BFLOAT, 32, 2)]
    types += [Type("u16x2", ScalarKind.UNSIGNED, 32, 2), Type("s16x2", ScalarKind.SIGNED, 32, 2)]
    return {each.name: each for each in types}


TYPES = _table()
PRED, B8, B16, B32, B64 = (TYPES[name] for name in ("pred", "b8", "b16", "b32", "b64"))
U32, S32, U64, F16, F32, F64 = (TYPES[name] for name in ("u32", "s32", "u64", "f16", "f32", "f64"))
