"""Chaos on a real node: parts are killed while pods come and go, and then the books must be true.

`script` is what happens, from a seed (pure); `stage` makes it happen; `observe` reads what everybody holds, and
`verdict` compares (pure).
"""
