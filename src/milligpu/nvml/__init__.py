"""This machine's GPUs through NVML: which there are, their readings, and whether they are healthy.

Everything is read through NVIDIA's own binding, from real GPUs and from the software GPU alike. The rule for health
(`health`) is pure. A value that NVML does not report is None, never 0.
"""
