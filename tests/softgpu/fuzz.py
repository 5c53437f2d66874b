"""Fuzz the translator with mutated modules: `python -m tests.softgpu.fuzz 10000` tries many; a test tries a few."""

import random
import sys
from collections.abc import Iterator
from pathlib import Path

import llvmlite.binding as llvm  # pyright: ignore[reportMissingTypeStubs]

from milligpu.softgpu.llvm.module import module_ir
from milligpu.softgpu.ptx.errors import BadPtx
from milligpu.softgpu.ptx.parse import parse

SAMPLE = (Path(__file__).parent / "sample.ptx").read_text()


def mutated(seed: int) -> Iterator[str]:
    """Endless mutated modules, each with a few changes; reproducible by seed."""
    dice = random.Random(seed)
    words = SAMPLE.split()
    while True:
        text = list(SAMPLE)
        for _ in range(dice.choice((1, 1, 1, 2, 5))):
            at = dice.randrange(len(text))
            match dice.randrange(5):
                case 0:
                    text[at] = dice.choice(SAMPLE)
                case 1:
                    del text[at : at + dice.choice((1, 2, 10, 100))]
                case 2:
                    text.insert(at, f" {dice.choice(words)} ")
                case 3:
                    other = dice.randrange(len(text))
                    text[at:at] = text[other : other + dice.choice((5, 50, 300))]
                case _:
                    text[at] = chr(dice.randrange(256))
        yield "".join(text)


def fuzz(count: int, seed: int) -> tuple[int, int]:
    """Translate `count` modules and return how many were accepted and refused; any other error is raised."""
    accepted = 0
    for _, text in zip(range(count), mutated(seed), strict=False):
        try:
            ir = module_ir(parse(text))
            # LLVM's parser may reject what our checks accept; the compiler reports that, too.
            llvm.parse_assembly(ir, llvm.create_context())  # pyright: ignore[reportUnknownMemberType]
        except (BadPtx, RuntimeError):
            continue
        accepted += 1
    return accepted, count - accepted


if __name__ == "__main__":
    good, bad = fuzz(int(sys.argv[1]), seed=1)
    sys.stdout.write(f"accepted {good}, refused {bad}\n")
