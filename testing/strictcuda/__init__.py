"""A CUDA driver that does not forgive, for tests of the limits library.

It is a `libcuda.so.1` made by the same generator as the software GPU's, written from the public documentation. It
models time but runs nothing. A call that the documentation forbids ends the process with one line that says why.
"""
