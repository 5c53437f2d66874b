/* The device library that kernels call. */
#include "engine.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void sg_trap(void)
{
    fault_raise(CUDA_ERROR_LAUNCH_FAILED);
}

void sg_assert(uint64_t message, uint64_t file, uint32_t line, uint64_t function)
{
    fprintf(stderr, "%s:%u: %s: Assertion `%s` failed.\n", (const char *)(uintptr_t)file, line,
            (const char *)(uintptr_t)function, (const char *)(uintptr_t)message);
    fault_raise(CUDA_ERROR_ASSERT);
}

/* The position of the offset-th bit that is set, from `base` upwards or, for a negative offset, downwards. */
uint32_t sg_find_nth_set(uint32_t mask, uint32_t base, int32_t offset)
{
    int32_t step = offset < 0 ? -1 : 1, left = offset < 0 ? -offset : offset ? offset : 1;
    for (int64_t at = base; at >= 0 && at < 32; at += step) {
        if (mask >> at & 1 && !--left)
            return (uint32_t)at;
        if (!offset)
            break;
    }
    return ~0u;
}

uint64_t sg_clock(void)
{
    return now_nanoseconds();
}

/* A thread's own clock on a modeled GPU: the start of the kernel plus what the thread has done since. */
uint64_t sg_modelled_clock(const struct sg_block *block, uint64_t instructions, uint64_t sleep, uint32_t cycles)
{
    uint64_t since = instructions * PACE_LATENCY + (uint64_t)((double)sleep * block->clock_khz * 1e-6);
    if (cycles)
        return (uint64_t)((double)block->start * block->clock_khz * 1e-6) + since;
    return block->start + (uint64_t)((double)since * 1e6 / block->clock_khz);
}

uint64_t sg_malloc(uint64_t size)
{
    return (uint64_t)(uintptr_t)malloc(size);
}

void sg_free(uint64_t pointer)
{
    free((void *)(uintptr_t)pointer);
}

static const char *aligned(const char *at, size_t size)
{
    return (const char *)(((uintptr_t)at + size - 1) & ~(uintptr_t)(size - 1));
}

/* Print one value as its specification says, and return the position of the next one. */
static const char *print_value(const char *specification, char conversion, bool is_long, const char *at)
{
    if (strchr("fFeEgGaA", conversion)) {
        at = aligned(at, 8);
        printf(specification, *(const double *)at);
        return at + 8;
    }
    if (conversion == 's' || conversion == 'p') {
        at = aligned(at, 8);
        printf(specification, *(void *const *)at);
        return at + 8;
    }
    if (is_long) {
        at = aligned(at, 8);
        printf(specification, *(const long *)at);
        return at + 8;
    }
    printf(specification, *(const int *)at);
    return at + 4;
}

int32_t sg_printf(uint64_t format, uint64_t arguments)
{
    const char *text = (const char *)(uintptr_t)format, *at = (const char *)(uintptr_t)arguments;
    int32_t values = 0;
    while (*text) {
        size_t plain = strcspn(text, "%");
        fwrite(text, 1, plain, stdout);
        text += plain;
        if (!*text)
            break;
        char specification[32] = "%";
        size_t length = strcspn(text + 1, "diouxXcsfFeEgGaAp%");
        char conversion = text[1 + length];
        if (!conversion || length > 20)
            break;
        memcpy(specification + 1, text + 1, length + 1);
        if (conversion == '%')
            putchar('%');
        else if (strchr(specification, '*'))
            break; /* the format that devices print has no width from the arguments */
        else {
            at = print_value(specification, conversion, memchr(text, 'l', length + 1) != 0, at);
            values++;
        }
        text += length + 2;
    }
    fflush(stdout);
    return values;
}
