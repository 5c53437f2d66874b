"""Launch kernels of so many us in so many streams; print the driver calls that each launch adds."""

import sys

from driver import calls, check, cuda, functions, launch, launches, new_stream, start

LAUNCHES = 4000
start()
kernels = functions(*[f"us{sys.argv[1]}"] * 3)
streams = [new_stream() for _ in range(int(sys.argv[2]))]
for at in range(600):
    launch(kernels[at % 3], streams[at % len(streams)])
check(cuda.cuCtxSynchronize())
before, launched = calls(), launches()
for at in range(LAUNCHES):
    launch(kernels[at % 3], streams[at % len(streams)])
extra = calls() - before - (launches() - launched)
print(extra / LAUNCHES)
