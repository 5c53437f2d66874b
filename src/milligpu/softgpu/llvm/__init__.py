"""PTX to machine code: each function becomes LLVM IR text, LLVM optimises it for this CPU.

IR is written as text because it is quick to make, easy to read in a test, and checked by LLVM's own parser.
Registers become stack slots of their width, which LLVM turns back into registers better than we could.
"""
