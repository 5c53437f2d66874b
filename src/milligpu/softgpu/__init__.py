"""A GPU in software, as seen from the host: its daemon, compiler and models.

The driver library in `native/softgpu` runs kernels inside the client's process. This package holds what belongs to
the GPU and not to one process: who uses how much memory, which contexts are open, and the compiler that turns PTX
into machine code. Each GPU is a unix socket, like the device file `/dev/nvidia0`: a process that cannot reach the
socket has no GPU.
"""
