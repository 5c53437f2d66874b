"""A GPU in software, as seen from the host: the card's daemon, its compiler and its models.

The driver library in `native/softgpu` runs kernels inside the client's process. What belongs to the card rather
than to one process is here: how much memory is taken and by whom, which contexts are open, and the compiler that
turns PTX into machine code. A card is a unix socket, as `/dev/nvidia0` is a file: who cannot reach it has no card.
"""
