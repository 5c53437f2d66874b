"""PTX to machine code: each function becomes LLVM IR text, which LLVM optimizes for this CPU.

IR is written as text because text is quick to write, easy to read in a test, and checked by LLVM's own parser. Each
register becomes a stack slot of its width; LLVM turns stack slots back into registers well.
"""
