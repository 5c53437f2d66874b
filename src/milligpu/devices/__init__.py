"""This machine's GPUs, as NVML shows them: which there are, how they stand, and whether they are sound.

All that is read comes through NVIDIA's own binding, so it is the same for real cards and for the software GPU. What
is made of it (`health`) is pure. A value that NVML does not give is None, never 0.
"""
