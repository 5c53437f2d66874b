"""A short kernel in the legacy stream, then a long one in a blocking stream, then one in another blocking stream.

The third waits for the first, but not for the second. Prints how often it ended before the second.
"""

from driver import check, cuda, functions, launch, new_stream, start

NOT_READY, ROUNDS = 600, 10

start()
short, long, third = functions("us20", "us100000", "us30")
first, second = new_stream(0), new_stream(0)
for kernel in (short, long, third):  # their durations are known from here on
    for _ in range(2):
        launch(kernel, first)
        check(cuda.cuCtxSynchronize())
before = 0
for _ in range(ROUNDS):
    launch(short)
    launch(long, first)
    launch(third, second)
    check(cuda.cuStreamSynchronize(second))
    before += cuda.cuStreamQuery(first) == NOT_READY
    check(cuda.cuCtxSynchronize())
print(before)
