"""Create a stream, launch into it, wait or not, and destroy it, again and again."""

import sys

from driver import check, cuda, functions, launch, new_stream, start

start()
kernels = functions("us5", "us20", "us300")
for at in range(int(sys.argv[1])):
    stream = new_stream()
    for kernel in kernels[: 1 + at % 3]:
        launch(kernel, stream)
    if at % 2:
        check(cuda.cuStreamSynchronize(stream))
    check(cuda.cuStreamDestroy_v2(stream))
check(cuda.cuCtxSynchronize())
print("done")
