"""A random program that keeps the driver's rules; prints how many calls it made.

    random_calls.py SEED CALLS THREADS

Whatever the strict driver finds is the limits library's doing. The program ends normally or in the middle of
everything, and forks children that end in either way.
"""

import os
import random
import sys
import threading
from dataclasses import dataclass, field

from driver import (
    GLOBAL,
    NON_BLOCKING,
    RELAXED,
    THREAD_LOCAL,
    byref,
    c_int,
    c_size_t,
    c_uint64,
    c_void_p,
    check,
    cuda,
    functions,
    launch,
    new_stream,
    primary,
)

KERNELS = ("us1", "us5", "us40", "us300", "us3000")
# Long ones are rare: the calls are tested, not the time in between.
OFTEN = (40, 40, 15, 4, 1)
SIZES = (1, 4096, 1 << 20, (2 << 20) + 1)
OUT_OF_MEMORY = 2
MOST = 12


@dataclass
class Context:
    """A context and what is alive in it."""

    handle: c_void_p
    kernels: list[c_void_p]
    streams: list[c_void_p] = field(default_factory=list[c_void_p])
    events: list[c_void_p] = field(default_factory=list[c_void_p])
    graphs: list[c_void_p] = field(default_factory=list[c_void_p])
    memory: list[tuple[c_uint64, int]] = field(default_factory=list[tuple[c_uint64, int]])
    host: list[tuple[c_void_p, int]] = field(default_factory=list[tuple[c_void_p, int]])


class Program:
    """What one thread does; each thread has its own contexts."""

    def __init__(self, seed: int, modes: tuple[int, ...], devices: int, *, is_only: bool) -> None:
        self.dice = random.Random(seed)
        self.modes = modes
        self.devices = devices
        self.is_only = is_only
        self.contexts: list[Context] = []
        self.pooled: list[tuple[Context, c_uint64]] = []
        self.calls = 0
        self.new_context()

    def new_context(self) -> None:
        if len(self.contexts) >= 3:
            return
        made = c_void_p()
        check(cuda.cuCtxCreate_v2(byref(made), 0, self.dice.randrange(self.devices)))
        check(cuda.cuCtxPopCurrent_v2(byref(made)))
        check(cuda.cuCtxSetCurrent(made))
        self.contexts.append(Context(made, functions(*KERNELS)))

    def end_context(self) -> None:
        if len(self.contexts) < 2:
            return
        gone = self.contexts.pop(self.dice.randrange(len(self.contexts)))
        self.pooled = [each for each in self.pooled if each[0] is not gone]
        check(cuda.cuCtxSetCurrent(self.contexts[-1].handle))
        check(cuda.cuCtxDestroy_v2(gone.handle))

    def switch(self) -> None:
        self.dice.shuffle(self.contexts)
        check(cuda.cuCtxSetCurrent(self.contexts[-1].handle))

    @property
    def here(self) -> Context:
        return self.contexts[-1]

    def stream(self) -> c_void_p | None:
        return self.dice.choice([None, c_void_p(2), *self.here.streams])

    def kernel(self) -> c_void_p:
        return self.dice.choices(self.here.kernels, OFTEN)[0]

    def use_primary(self) -> None:
        """Use a primary context and release or reset it: it is common to all threads, so only one may."""
        if not self.is_only:
            return
        device = self.dice.randrange(self.devices)
        primary(device)
        (kernel,) = functions("us5")
        for stream in (None, new_stream()):
            launch(kernel, stream)
        check(cuda.cuCtxSetCurrent(self.here.handle))
        if self.dice.random() < 0.5:
            check(cuda.cuDevicePrimaryCtxReset_v2(device))
        else:
            check(cuda.cuDevicePrimaryCtxRelease_v2(device))
        self.calls += 8

    def add_stream(self) -> None:
        if len(self.here.streams) < MOST:
            self.here.streams.append(new_stream(self.dice.choice((0, NON_BLOCKING))))

    def end_stream(self) -> None:
        if self.here.streams:
            gone = self.here.streams.pop(self.dice.randrange(len(self.here.streams)))
            check(cuda.cuStreamDestroy_v2(gone))

    def run(self) -> None:
        for _ in range(self.dice.choice((1, 1, 5, 50))):
            launch(self.kernel(), self.stream(), self.dice.choice((1, 32)))
            self.calls += 1

    def wait(self) -> None:
        check(self.dice.choice((cuda.cuCtxSynchronize, lambda: cuda.cuStreamSynchronize(self.stream())))())

    def use_event(self) -> None:
        events = self.here.events
        if len(events) < MOST:
            events.append(c_void_p())
            check(cuda.cuEventCreate(byref(events[-1]), self.dice.choice((0, 2))))
        event = self.dice.choice(events)
        check(cuda.cuEventRecord(event, self.stream()))
        check(cuda.cuStreamWaitEvent(self.stream(), event, 0))
        cuda.cuEventQuery(event)
        if self.dice.random() < 0.2:
            check(cuda.cuEventSynchronize(event))
        if self.dice.random() < 0.3:
            check(cuda.cuEventDestroy_v2(events.pop(events.index(event))))

    def allocate(self) -> None:
        pointer, size = c_uint64(), self.dice.choice(SIZES)
        if len(self.here.memory) > MOST:
            check(cuda.cuMemFree_v2(self.here.memory.pop(0)[0]))
        status = cuda.cuMemAlloc_v2(byref(pointer), c_size_t(size))
        if status != OUT_OF_MEMORY:
            check(status)
            self.here.memory.append((pointer, size))

    def copy(self) -> None:
        """Copy between the GPU and memory of the host, which may be freed behind the copy."""
        if not self.here.memory:
            return
        host, made, (pointer, size) = self.here.host, c_void_p(), self.dice.choice(self.here.memory)
        if len(host) < MOST:
            check(cuda.cuMemHostAlloc(byref(made), c_size_t(size), 0))
            host.append((made, size))
        place, room = self.dice.choice(host)
        size = min(size, room)
        check(cuda.cuMemcpyHtoDAsync_v2(pointer, place, c_size_t(size), self.stream()))
        check(cuda.cuMemsetD8Async(pointer, 0, c_size_t(size), self.stream()))
        check(cuda.cuMemcpyDtoHAsync_v2(place, pointer, c_size_t(size), self.stream()))
        if self.dice.random() < 0.3:
            check(cuda.cuMemFreeHost(place))
            host.remove((place, room))
        self.calls += 3

    def use_pool(self) -> None:
        """Allocate in the order of a stream; some of it is freed much later, or only with the context."""
        pointer, stream = c_uint64(), self.stream()
        status = cuda.cuMemAllocAsync(byref(pointer), c_size_t(self.dice.choice(SIZES)), stream)
        if status == OUT_OF_MEMORY:
            return
        check(status)
        self.pooled.append((self.here, pointer))
        launch(self.kernel(), stream)
        if self.dice.random() < 0.7:
            at = self.dice.randrange(len(self.pooled))
            if self.pooled[at][0] is self.here:
                check(cuda.cuMemFreeAsync(self.pooled.pop(at)[1], self.stream()))
        self.calls += 2

    def use_thread_stream(self) -> None:
        """Launch as programs do that are compiled for a default stream per thread."""
        kernel = self.kernel()
        check(
            cuda.cuLaunchKernel_ptsz(
                kernel, 1, 1, 1, 1, 1, 1, 0, self.dice.choice([None, *self.here.streams]), None, None
            )
        )
        cuda.cuStreamQuery_ptsz(None)
        if self.dice.random() < 0.3:
            check(cuda.cuStreamSynchronize_ptsz(None))
        self.calls += 2

    def use_other_context(self) -> None:
        """Push another context, use it, and pop it: the work is in a context that is not the thread's own."""
        other = self.dice.choice(self.contexts)
        free, total = c_size_t(), c_size_t()
        check(cuda.cuCtxPushCurrent_v2(other.handle))
        launch(self.dice.choices(other.kernels, OFTEN)[0], self.dice.choice([None, c_void_p(2), *other.streams]))
        check(cuda.cuMemGetInfo_v2(byref(free), byref(total)))
        check(cuda.cuCtxPopCurrent_v2(byref(c_void_p())))
        self.calls += 3

    def use_library(self) -> None:
        """Launch a kernel of a library that is loaded with its first launch."""
        library, kernel = c_void_p(), c_void_p()
        check(cuda.cuLibraryLoadData(byref(library), b"\0\0\0\0", None, None, 0, None, None, 0))
        check(cuda.cuLibraryGetKernel(byref(kernel), library, b"us5"))
        launch(kernel, self.stream())
        check(cuda.cuCtxSynchronize())
        check(cuda.cuLibraryUnload(library))
        self.calls += 5

    def capture(self) -> None:
        """Capture a new stream, and launch the graph some times."""
        stream, graph, made, pointer = new_stream(), c_void_p(), c_void_p(), c_uint64()
        check(cuda.cuStreamBeginCapture_v2(stream, self.dice.choice(self.modes)))
        for _ in range(self.dice.choice((1, 5, 60))):
            launch(self.kernel(), stream)
            self.calls += 1
        if self.dice.random() < 0.3:
            check(cuda.cuMemAllocAsync(byref(pointer), c_size_t(self.dice.choice(SIZES)), stream))
            check(cuda.cuMemFreeAsync(pointer, stream))
        check(cuda.cuStreamEndCapture(stream, byref(graph)))
        status = cuda.cuGraphInstantiateWithFlags(byref(made), graph, c_uint64(0))
        check(cuda.cuGraphDestroy(graph))
        if status != OUT_OF_MEMORY:
            check(status)
            for _ in range(self.dice.choice((0, 1, 7))):
                check(cuda.cuGraphLaunch(made, self.dice.choice([stream, self.stream()])))
            check(cuda.cuGraphExecDestroy(made))
        check(cuda.cuStreamDestroy_v2(stream))

    def fork(self) -> None:
        child = os.fork()
        if not child:
            # A child may not use CUDA. It ends, with or without what Python does at its end.
            (os._exit if self.dice.random() < 0.5 else sys.exit)(0)
        os.waitpid(child, 0)

    def step(self) -> None:
        common = (
            self.run,
            self.run,
            self.run,
            self.add_stream,
            self.end_stream,
            self.use_event,
            self.allocate,
            self.copy,
        )
        rare = (
            self.new_context,
            self.end_context,
            self.switch,
            self.wait,
            self.capture,
            self.use_primary,
            self.use_library,
            self.use_pool,
            self.use_thread_stream,
            self.use_other_context,
        )
        self.dice.choice(common * 3 + rare)()
        self.calls += 1


def main(seed: int, calls: int, threads: int) -> None:
    check(cuda.cuInit(0))
    devices = c_int()
    check(cuda.cuDeviceGetCount(byref(devices)))
    dice = random.Random(seed)
    # A capture in global mode forbids much to other threads, which would be this program's own fault.
    modes = (GLOBAL, THREAD_LOCAL, RELAXED) if threads == 1 else (THREAD_LOCAL, RELAXED)
    programs: list[Program] = []

    def work(number: int) -> None:
        program = Program(seed * 100 + number, modes, devices.value, is_only=threads == 1)
        programs.append(program)
        while program.calls < calls:
            program.step()
            if threads == 1 and dice.random() < 0.002:
                program.fork()

    others = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(1, threads)]
    for other in others:
        other.start()
    work(0)
    sudden = dice.random() < 0.5
    if not sudden:
        for other in others:
            other.join()
    print(sum(program.calls for program in programs), flush=True)
    if sudden:
        os._exit(0)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
