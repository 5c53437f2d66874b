"""Start a kernel that does not end, then launch 200 short ones in another stream; print the seconds these took."""

import time

from driver import check, cuda, functions, launch, new_stream, start

start()
forever, short = functions("forever", "us20")
waiting, stream = new_stream(), new_stream()
launch(forever, waiting)
begun = time.monotonic()
for _ in range(200):
    launch(short, stream)
    check(cuda.cuStreamSynchronize(stream))
print(time.monotonic() - begun, flush=True)
