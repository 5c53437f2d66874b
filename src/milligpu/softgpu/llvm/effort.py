"""How much optimization a module gets, so that compile time stays close to linear in its size.

Two things in LLVM are not linear. The loop vectorizer asks of each value whether it is the same in all iterations,
and walks down every path to its sources: a chain of values that are used twice each, and are the same for all
threads, takes twice as long with each step. In very long functions, many passes and the instruction selector
go through a basic block, or all of them, once for each instruction.
"""

from collections.abc import Iterator
from enum import Enum

from milligpu.softgpu.ptx.syntax import (
    Address,
    Function,
    Instruction,
    Label,
    Literal,
    Module,
    Name,
    Negated,
    Operand,
    Pair,
    Sum,
    Targets,
    Vector,
)

# Steps of the vectorizer's walk over one function; a step takes up to a microsecond.
_MOST_STEPS = 200_000
# Instructions of one function; the slowest shapes of this size take LLVM about a second.
_MOST_INSTRUCTIONS = 2_000
# Special registers that differ between the threads of a block; all others are the same for the block.
_VARYING = ("%tid", "%laneid", "%lanemask", "%clock", "%globaltimer")


class Effort(Enum):
    """From most optimization to least."""

    FULL = "full"
    NO_LOOPS = "no-loops"
    """Loops, among them the one over a block's threads, are not vectorized."""
    PLAIN = "plain"
    """Registers become values; nothing else is optimized. Linear in the size of the code."""


def effort_for(module: Module) -> Effort:
    """Choose the most optimization that is sure to end soon."""
    bodies = [function for function in module.functions.values() if function.body is not None]
    if any(len(function.body or ()) > _MOST_INSTRUCTIONS for function in bodies):
        return Effort.PLAIN
    if any(walk_steps(function) > _MOST_STEPS for function in bodies):
        return Effort.NO_LOOPS
    return Effort.FULL


def walk_steps(function: Function) -> int:
    """Estimate the steps in which the vectorizer learns which values are the same in all iterations.

    A walk ends at the first value that is not. In a function with a loop of its own, only that loop is vectorized,
    and the thread's index is the same in all of its iterations.
    """
    varying = set[str]()
    steps: dict[str, int] = {}
    threads_differ = not _has_loop(function)
    total = 0
    for statement in function.body or ():
        if not isinstance(statement, Instruction) or not statement.operands:
            continue
        sources = list(_sources(statement))
        differ = [name for name in sources if name in varying]
        same = sum(steps.get(name, 0) for name in sources if name not in varying)
        taken = min(1 + same + max((steps.get(name, 0) for name in differ), default=0), _MOST_STEPS + 1)
        total += taken
        if total > _MOST_STEPS:
            break
        varies = bool(differ) or (threads_differ and any(name.startswith(_VARYING) for name in sources))
        for name in _registers(statement.operands[0]):
            steps[name] = taken
            (varying.add if varies else varying.discard)(name)
    return total


def _sources(instruction: Instruction) -> Iterator[str]:
    for operand in instruction.operands[1:]:
        yield from _registers(operand)
    if instruction.guard is not None:
        # Where the guard does not hold, the destination keeps its value.
        yield instruction.guard.register
        yield from _registers(instruction.operands[0])


def _registers(operand: Operand) -> Iterator[str]:
    match operand:
        case Name(text):
            yield text
        case Negated(_, Name(text)) | Address(Name(text)) | Sum(Name(text)):
            yield text
        case Vector(items):
            for item in items:
                yield from _registers(item)
        case Pair(first, second):
            yield from (first.text, second.text)
        case Literal() | Address():
            pass
        case _:  # the arguments of a call
            for item in operand.items:
                yield item.text


def _has_loop(function: Function) -> bool:
    """Whether a branch goes back to a label before it."""
    seen = set[str]()
    for statement in function.body or ():
        match statement:
            case Label():
                seen.add(statement.name)
            case Targets(labels=labels) if seen.intersection(labels):
                return True
            case Instruction(opcode="bra", operands=(Name(text),)) if text in seen:
                return True
            case _:
                pass
    return False
