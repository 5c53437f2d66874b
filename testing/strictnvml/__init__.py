"""An NVML that does not forgive: a `libnvidia-ml.so.1` in front of the software GPU's, for tests only.

It answers what a file of rules says, and passes everything else on. `documented` reads from the vendor's header
which errors each function may return, so a test can draw from them.
"""
