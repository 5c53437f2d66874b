"""End contexts, in each way, while work of theirs is outstanding, and use new ones at the same address."""

from driver import check, cuda, functions, launch, new_context, new_stream, primary, start

check(cuda.cuCtxDestroy_v2(start()))
for at in range(60):
    context = new_context()
    stream = new_stream()
    for kernel in functions("us50", "us200", "us2000"):
        launch(kernel, stream)
        launch(kernel)
    if at % 2:
        check(cuda.cuCtxSynchronize())
    check(cuda.cuCtxDestroy_v2(context))
for at in range(60):
    context = primary()
    stream = new_stream()
    for kernel in functions("us50", "us200", "us2000"):
        launch(kernel, stream)
    if at % 2:
        check(cuda.cuCtxSynchronize())
    check(cuda.cuCtxSetCurrent(None))
    check(cuda.cuDevicePrimaryCtxReset_v2(0) if at % 3 else cuda.cuDevicePrimaryCtxRelease_v2(0))
print("done")
