/* How long a modelled card takes for what the CPU has just done. Simple on purpose: proportional to the work, so that
 * shares and latencies can be reasoned about; docs/softgpu.md has the formula. */
#include "softgpu.h"

/* What a card needs to begin anything. */
static const double OVERHEAD = 2000.0;

/* How many threads a multiprocessor advances per cycle, from the programming guide's table of throughputs. */
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

/* Bytes that the card's own memory moves; two transfers per clock. */
uint64_t pace_device(const struct wire_device *device, size_t bytes)
{
    double per_nanosecond = 2.0 * device->memory_clock_khz * (device->bus_width / 8.0) * 1e-6;
    return (uint64_t)(OVERHEAD + (double)bytes / per_nanosecond);
}

/* Bytes over PCIe x16: what is left of the third generation's 16 GB/s, and of the fourth's 32 from Ampere on. */
uint64_t pace_host(const struct wire_device *device, size_t bytes)
{
    return (uint64_t)(OVERHEAD + (double)bytes / (device->major >= 8 ? 24.0 : 12.0));
}
