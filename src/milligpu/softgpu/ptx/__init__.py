"""PTX as values: text in, a `Module` of typed declarations and instructions out. Pure; knows nothing of LLVM."""
