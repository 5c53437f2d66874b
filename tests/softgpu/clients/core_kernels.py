"""Unmodified cuda-core on the software GPU: programs, memory resources, streams, events and graphs."""

import ctypes
import json
import warnings

import numpy as np
from cuda.core import (
    Device,
    DeviceMemoryResource,
    EventOptions,
    LaunchConfig,
    LegacyPinnedMemoryResource,
    Linker,
    LinkerOptions,
    ManagedMemoryResource,
    ObjectCode,
    Program,
    ProgramOptions,
    launch,
)

warnings.filterwarnings("ignore")  # a warning that nvJitLink is not installed
N = 4096
SOURCE = """
template <typename T> __global__ void scale(T *x, T factor, size_t n) {
  for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) x[i] *= factor; }
extern "C" __global__ void sums(const float *x, float *out) {
  __shared__ float window[256];
  window[threadIdx.x] = x[blockIdx.x * 256 + threadIdx.x];
  __syncthreads();
  for (int width = 128; width >= 32; width /= 2) {
    if (threadIdx.x < width) window[threadIdx.x] += window[threadIdx.x + width];
    __syncthreads(); }
  if (threadIdx.x < 32) {
    float v = window[threadIdx.x];
    for (int d = 16; d; d /= 2) v += __shfl_down_sync(~0u, v, d);
    if (!threadIdx.x) { out[blockIdx.x] = v; atomicAdd(out + gridDim.x, v); } } }
"""
MIX = """
extern "C" __device__ int helper(int);
extern "C" __global__ void mixed(int *out) { out[threadIdx.x] = helper(threadIdx.x); }
"""
HELPER = 'extern "C" __device__ int helper(int v) { return 3 * v + 1; }'


def compiled(device: Device, source: str = SOURCE, **options) -> ObjectCode:
    program = Program(
        source, code_type="c++", options=ProgramOptions(std="c++17", arch=f"sm_{device.arch}", **options)
    )
    return program.compile("ptx", name_expressions=() if options else ("scale<float>", "scale<double>"))


def view(buffer, kind=np.float32) -> np.ndarray:
    """Return a buffer that the host can access, as an array."""
    count = buffer.size // np.dtype(kind).itemsize
    pointer = ctypes.cast(int(buffer.handle), ctypes.POINTER(np.ctypeslib.as_ctypes_type(kind)))
    return np.ctypeslib.as_array(pointer, (count,))


class Setting:
    def __init__(self) -> None:
        self.device = Device(0)
        self.device.set_current()
        self.stream = self.device.create_stream()
        self.code = compiled(self.device)
        self.scale, self.sums = self.code.get_kernel("scale<float>"), self.code.get_kernel("sums")
        self.pinned = LegacyPinnedMemoryResource()
        self.config = LaunchConfig(grid=8, block=256)
        self.rng = np.random.default_rng(5)

    def filled(self):
        host = self.pinned.allocate(4 * N, stream=self.stream)
        view(host)[:] = self.rng.standard_normal(N)
        return host


def kernels(s: Setting) -> bool:
    host, buffer = s.filled(), s.device.allocate(4 * N, stream=s.stream)
    before = view(host).copy()
    buffer.copy_from(host, stream=s.stream)
    launch(s.stream, s.config, s.scale, buffer, np.float32(3), np.uint64(N))
    buffer.copy_to(host, stream=s.stream)
    s.stream.sync()
    buffer.close(s.stream)
    return np.allclose(view(host), 3 * before)


def reductions(s: Setting) -> bool:
    host, out = s.filled(), s.pinned.allocate(4 * 17, stream=s.stream)
    view(out)[:] = 0
    launch(s.stream, LaunchConfig(grid=16, block=256), s.sums, host, out)
    s.stream.sync()
    expected = view(host).reshape(16, 256).sum(1)
    return np.allclose(view(out)[:16], expected, atol=1e-3) and np.isclose(view(out)[16], expected.sum(), atol=1e-2)


def doubles(s: Setting) -> bool:
    host = s.pinned.allocate(8 * 100, stream=s.stream)
    view(host, np.float64)[:] = np.arange(100)
    launch(s.stream, s.config, s.code.get_kernel("scale<double>"), host, 0.5, np.uint64(100))
    s.stream.sync()
    return bool((view(host, np.float64) == np.arange(100) / 2).all())


def two_streams(s: Setting) -> bool:
    other, host = s.device.create_stream(), s.filled()
    before = view(host).copy()
    launch(s.stream, s.config, s.scale, host, np.float32(2), np.uint64(N))
    event = s.stream.record()
    other.wait(event)
    launch(other, s.config, s.scale, host, np.float32(5), np.uint64(N))
    other.sync()
    return np.allclose(view(host), 10 * before)


def events(s: Setting) -> bool:
    timed = EventOptions(timing_enabled=True)
    host, first = s.filled(), s.stream.record(options=timed)
    launch(s.stream, s.config, s.scale, host, np.float32(2), np.uint64(N))
    last = s.stream.record(options=timed)
    last.sync()
    return last.is_done and last - first >= 0


def pools(s: Setting) -> bool:
    resource = DeviceMemoryResource(s.device)
    buffers = [resource.allocate(1 << 20, stream=s.stream) for _ in range(4)]
    distinct = len({int(each.handle) for each in buffers}) == 4
    for each in buffers:
        each.close(s.stream)
    s.stream.sync()
    return distinct


def managed(s: Setting) -> bool:
    buffer = ManagedMemoryResource().allocate(4 * N, stream=s.stream)
    s.stream.sync()
    view(buffer)[:] = 7
    launch(s.stream, s.config, s.scale, buffer, np.float32(2), np.uint64(N))
    s.stream.sync()
    return bool((view(buffer) == 14).all())


def peers(s: Setting) -> bool:
    host = s.filled()
    here = s.device.allocate(4 * N, stream=s.stream)
    here.copy_from(host, stream=s.stream)
    s.stream.sync()
    other = Device(1)
    other.set_current()
    stream = other.create_stream()
    there = other.allocate(4 * N, stream=stream)
    there.copy_from(here, stream=stream)
    back = s.pinned.allocate(4 * N, stream=stream)
    there.copy_to(back, stream=stream)
    stream.sync()
    s.device.set_current()
    return bool((view(back) == view(host)).all())


def linked(s: Setting) -> bool:
    parts = [compiled(s.device, text, relocatable_device_code=True) for text in (MIX, HELPER)]
    code = Linker(*parts, options=LinkerOptions(arch=f"sm_{s.device.arch}")).link("cubin")
    out = s.pinned.allocate(4 * 32, stream=s.stream)
    launch(s.stream, LaunchConfig(grid=1, block=32), code.get_kernel("mixed"), out)
    s.stream.sync()
    return view(out, np.int32).tolist() == [3 * v + 1 for v in range(32)]


def captured(s: Setting) -> bool:
    """Two branches that fork and join, captured once and launched three times."""
    host = s.filled()
    before = view(host).copy()
    builder = s.device.create_graph_builder().begin_building()
    launch(builder, s.config, s.scale, host, np.float32(2), np.uint64(N))
    left, right = builder.split(2)
    launch(left, s.config, s.scale, host, np.float32(3), np.uint64(N))
    launch(right, s.config, s.scale, host, np.float32(0.5), np.uint64(N))
    joined = type(builder).join(left, right)
    untouched = bool((view(host) == before).all())
    graph = joined.end_building().complete()
    graph.upload(s.stream)
    for _ in range(3):
        graph.launch(s.stream)
    s.stream.sync()
    return untouched and np.allclose(view(host), 27 * before)


def properties(s: Setting) -> bool:
    known = s.device.properties
    kernel = s.sums.attributes
    return bool(
        known.multiprocessor_count > 0
        and known.max_threads_per_block == 1024
        and kernel.max_threads_per_block == 1024
        and kernel.shared_size_bytes == 1024
        and s.sums.num_arguments == 2
        and s.sums.occupancy.max_active_blocks_per_multiprocessor(256, 0) > 0
    )


CASES = (kernels, reductions, doubles, two_streams, events, pools, managed, peers, linked, captured, properties)


def main() -> None:
    setting = Setting()
    results = {}
    for case in CASES:
        try:
            results[case.__name__] = "ok" if case(setting) else "differs"
        except Exception as error:
            results[case.__name__] = f"{type(error).__name__}: {error}"[:300]
    print(json.dumps(results))


if __name__ == "__main__":
    main()
