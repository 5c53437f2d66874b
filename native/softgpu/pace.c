/* How long a modeled GPU takes for work that the CPU has just done. The model is proportional to the work, so that
 * shares and latencies can be predicted; docs/softgpu.md has the formula. */
#include "softgpu.h"

/* The time that a GPU needs to begin any work. */
static const double OVERHEAD = 2000.0;

/* How many threads a multiprocessor advances per cycle, from the throughput table of the programming guide. */
static unsigned lanes(const struct wire_device *device)
{
    unsigned capability = 10 * device->major + device->minor;
    if (capability < 50)
        return 192;
    return capability == 60 || capability / 10 == 7 || capability == 80 ? 64 : 128;
}

uint64_t pace_grid(const struct wire_device *device, const struct tally *tally)
{
    double longest = (double)tally->longest * PACE_LATENCY;
    double all = (double)tally->total / ((double)device->multiprocessors * lanes(device));
    double cycles = longest > all ? longest : all;
    return (uint64_t)(OVERHEAD + cycles * 1e6 / device->clock_khz + (double)tally->sleep);
}

/* Bytes per second of the GPU's own memory, with two transfers per clock. */
uint64_t pace_device(const struct wire_device *device, size_t bytes)
{
    double per_nanosecond = 2.0 * device->memory_clock_khz * (device->bus_width / 8.0) * 1e-6;
    return (uint64_t)(OVERHEAD + (double)bytes / per_nanosecond);
}

/* Bytes per second over PCIe x16: the usable part of 16 GB/s, and of 32 GB/s from Ampere on. */
uint64_t pace_host(const struct wire_device *device, size_t bytes)
{
    return (uint64_t)(OVERHEAD + (double)bytes / (device->major >= 8 ? 24.0 : 12.0));
}
