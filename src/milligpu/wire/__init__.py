"""The formats that several parts share, one codec each: annotations, the limits page, the usage page.

Each has a version and a golden file under `tests/wire/golden/` that the tests of every side read. A codec refuses
what it does not know with `BadFormat`: a field that is not understood might have been a limit.
"""
