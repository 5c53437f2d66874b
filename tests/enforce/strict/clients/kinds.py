"""Launch many kinds of short kernels faster than they end."""

from driver import check, cuda, functions, launch, new_stream, start

start()
stream = new_stream()
kinds = functions(*["us5"] * 12)
for _ in range(300):
    for kind in kinds:
        launch(kind, stream)
check(cuda.cuCtxSynchronize())
print("done")
