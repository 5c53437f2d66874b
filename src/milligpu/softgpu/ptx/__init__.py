"""PTX as values: parses text into a `Module` of typed declarations and instructions. Pure; independent of LLVM."""
