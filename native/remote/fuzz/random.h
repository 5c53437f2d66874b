/* Random numbers that depend on nothing but a seed, so that every input can be made again. */
#pragma once
#include "wire.h"
#include <stddef.h>
#include <stdint.h>

static uint64_t random_state;

static inline void random_seed(uint64_t seed, uint64_t number)
{
    random_state = (seed + 1) * UINT64_C(0x9e3779b97f4a7c15) ^ (number + 1) * UINT64_C(0xbf58476d1ce4e5b9);
}

static inline uint64_t random_u64(void)
{
    uint64_t z = random_state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

static inline uint64_t random_below(uint64_t limit)
{
    return random_u64() % limit;
}

/* A value as decoders meet them: small numbers, sizes, handles, addresses, and the ends of the range. */
static inline uint64_t random_value(void)
{
    switch (random_below(12)) {
    case 0: return 0;
    case 1: return UINT64_MAX - random_below(16);
    case 2: return UINT64_C(1) << random_below(64);
    case 3: return HANDLE_CLIENT + HANDLE_STEP * random_below(64);
    case 4: return HANDLE_SERVER + HANDLE_STEP * random_below(16);
    case 5: return HOST_BASE + 4096 * random_below(64);
    case 6: return 4096 * random_below(32);
    case 7: return 8 * random_below(64);
    case 8: return random_u64();
    default: return random_below(20);
    }
}
