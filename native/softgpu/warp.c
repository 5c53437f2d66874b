/* Warp operations: lanes arrive one by one, and the last of those named in the mask serves them all. */
#include "engine.h"
#include <string.h>

static bool is_shuffle(uint32_t op)
{
    return op <= SG_SHUFFLE_INDEX;
}

/* The lane a shuffle reads from, or -1 when it lies outside the segment. */
static int shuffle_source(const struct sg_fiber *fiber, int lane)
{
    int clamp = fiber->c & 31, segment = fiber->c >> 8 & 31, delta = fiber->a & 31;
    int limit = (lane & segment) | (clamp & ~segment), base = lane & segment, source;
    switch (fiber->op) {
    case SG_SHUFFLE_UP:
        source = lane - delta;
        return source >= limit ? source : -1;
    case SG_SHUFFLE_DOWN: source = lane + delta; break;
    case SG_SHUFFLE_BUTTERFLY: source = lane ^ delta; break;
    default: source = base | (delta & ~segment); break;
    }
    return source <= limit ? source : -1;
}

static uint64_t shuffle(const struct sg_fiber *lanes, uint32_t members, int lane)
{
    int source = shuffle_source(&lanes[lane], lane);
    bool valid = source >= 0;
    if (!valid || !(members >> source & 1))
        source = lane;
    return (uint32_t)lanes[source].value | (uint64_t)valid << 32;
}

static uint32_t reduce(const struct sg_fiber *lanes, uint32_t members, uint32_t op)
{
    uint32_t total = 0;
    bool first = true;
    for (int lane = 0; lane < WARP; lane++) {
        if (!(members >> lane & 1))
            continue;
        uint32_t value = (uint32_t)lanes[lane].value;
        if (first)
            total = value;
        else
            switch (op) {
            case SG_REDUCE_ADD: total += value; break;
            case SG_REDUCE_MIN: total = value < total ? value : total; break;
            case SG_REDUCE_MAX: total = value > total ? value : total; break;
            case SG_REDUCE_SMIN: total = (int32_t)value < (int32_t)total ? value : total; break;
            case SG_REDUCE_SMAX: total = (int32_t)value > (int32_t)total ? value : total; break;
            case SG_REDUCE_AND: total &= value; break;
            case SG_REDUCE_OR: total |= value; break;
            default: total ^= value; break;
            }
        first = false;
    }
    return total;
}

static uint32_t ballot(const struct sg_fiber *lanes, uint32_t members)
{
    uint32_t votes = 0;
    for (int lane = 0; lane < WARP; lane++)
        if (members >> lane & 1 && lanes[lane].value)
            votes |= 1u << lane;
    return votes;
}

static uint32_t matching(const struct sg_fiber *lanes, uint32_t members, uint64_t value)
{
    uint32_t same = 0;
    for (int lane = 0; lane < WARP; lane++)
        if (members >> lane & 1 && lanes[lane].value == value)
            same |= 1u << lane;
    return same;
}

static uint64_t answer(const struct sg_fiber *lanes, uint32_t members, int lane)
{
    uint32_t op = lanes[lane].op, votes, same;
    switch (op) {
    case SG_VOTE_ALL: return ballot(lanes, members) == members;
    case SG_VOTE_ANY: return ballot(lanes, members) != 0;
    case SG_VOTE_UNIFORM: return (votes = ballot(lanes, members)) == members || !votes;
    case SG_BALLOT: return ballot(lanes, members);
    case SG_MATCH_ANY: return matching(lanes, members, lanes[lane].value);
    case SG_MATCH_ALL:
        same = matching(lanes, members, lanes[lane].value);
        return same == members ? members | 1ull << 32 : 0;
    case SG_SYNC: return 0;
    default: return is_shuffle(op) ? shuffle(lanes, members, lane) : op < SG_MMA ? reduce(lanes, members, op) : 0;
    }
}

static void serve(struct sg_fiber *lanes, struct warp *warp, uint32_t members)
{
    uint32_t op = lanes[__builtin_ctz(members)].op;
    if (op >= SG_MMA)
        warp_matrix(lanes, op - SG_MMA);
    for (int lane = 0; lane < WARP; lane++)
        if (members >> lane & 1)
            lanes[lane].result = answer(lanes, members, lane);
    for (int lane = 0; lane < WARP; lane++)
        if (members >> lane & 1)
            lanes[lane].state = FIBER_READY;
    warp->arrived &= ~members;
}

void warp_check(struct engine *engine, uint32_t index)
{
    struct warp *warp = &engine->warps[index];
    struct sg_fiber *lanes = &engine->fibers[index * WARP];
    for (int lane = 0; lane < WARP; lane++) {
        if (!(warp->arrived >> lane & 1))
            continue;
        uint32_t wanted = lanes[lane].mask & warp->live;
        if ((warp->arrived & wanted) == wanted)
            serve(lanes, warp, wanted);
    }
}

uint64_t sg_warp(struct sg_fiber *fiber, uint32_t op, uint32_t mask, uint64_t value, uint32_t a, uint32_t c)
{
    struct engine *engine = fiber->engine;
    uint32_t index = fiber->linear / WARP, lane = fiber->linear % WARP;
    if (op == SG_ACTIVE)
        return engine->warps[index].live;
    fiber->op = op;
    fiber->mask = mask | 1u << lane;
    fiber->value = value;
    fiber->a = a;
    fiber->c = c;
    fiber->state = FIBER_AT_WARP;
    engine->warps[index].arrived |= 1u << lane;
    warp_check(engine, index);
    if (fiber->state != FIBER_READY)
        fiber_pause(fiber);
    return fiber->result;
}

/* ---- matrix products ---- */
struct fragments {
    void *d;
    const void *a, *b, *c;
};

enum { M = 16, N = 8, MOST_K = 16 };
enum product { F16_K16 = 1, F16_K16_HALF = 2, BF16_K16 = 3, F16_K8 = 4, F16_K8_HALF = 5, TF32_K8 = 6 };

static float half_value(const void *from, int at)
{
    _Float16 value;
    memcpy(&value, (const char *)from + 2 * at, sizeof value);
    return (float)value;
}

static float bfloat_value(const void *from, int at)
{
    uint16_t half;
    memcpy(&half, (const char *)from + 2 * at, sizeof half);
    uint32_t bits = (uint32_t)half << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static float float_value(const void *from, int at)
{
    float value;
    memcpy(&value, (const char *)from + 4 * at, sizeof value);
    return value;
}

/* Which element of A and B a lane holds at each place: as the PTX manual draws the fragments. */
static void gather(const struct fragments *part, int lane, enum product product, float a[M][MOST_K],
                   float b[MOST_K][N], float c[M][N])
{
    int group = lane >> 2, member = lane & 3;
    bool half_sum = product == F16_K16_HALF || product == F16_K8_HALF;
    if (product == TF32_K8) {
        for (int at = 0; at < 4; at++)
            a[group + (at & 1) * 8][member + (at >> 1) * 4] = float_value(part->a, at);
        for (int at = 0; at < 2; at++)
            b[member + at * 4][group] = float_value(part->b, at);
    } else {
        bool wide = product <= BF16_K16;
        float (*value)(const void *, int) = product == BF16_K16 ? bfloat_value : half_value;
        for (int at = 0; at < (wide ? 8 : 4); at++)
            a[group + (at >> 1 & 1) * 8][member * 2 + (at & 1) + (at >> 2) * 8] = value(part->a, at);
        for (int at = 0; at < (wide ? 4 : 2); at++)
            b[member * 2 + (at & 1) + (at >> 1) * 8][group] = value(part->b, at);
    }
    for (int at = 0; at < 4; at++)
        c[group + (at >> 1) * 8][member * 2 + (at & 1)] = half_sum ? half_value(part->c, at)
                                                                    : float_value(part->c, at);
}

static void scatter(const struct fragments *part, int lane, bool half_sum, float c[M][N])
{
    int group = lane >> 2, member = lane & 3;
    for (int at = 0; at < 4; at++) {
        float value = c[group + (at >> 1) * 8][member * 2 + (at & 1)];
        _Float16 half = (_Float16)value;
        if (half_sum)
            memcpy((char *)part->d + 2 * at, &half, sizeof half);
        else
            memcpy((char *)part->d + 4 * at, &value, sizeof value);
    }
}

void warp_matrix(struct sg_fiber *lanes, uint32_t product)
{
    float a[M][MOST_K], b[MOST_K][N], c[M][N];
    int depth = product <= BF16_K16 ? 16 : 8;
    for (int lane = 0; lane < WARP; lane++)
        gather((const struct fragments *)(uintptr_t)lanes[lane].value, lane, (enum product)product, a, b, c);
    for (int row = 0; row < M; row++)
        for (int at = 0; at < depth; at++)
            for (int column = 0; column < N; column++)
                c[row][column] += a[row][at] * b[at][column];
    bool half_sum = product == F16_K16_HALF || product == F16_K8_HALF;
    for (int lane = 0; lane < WARP; lane++)
        scatter((const struct fragments *)(uintptr_t)lanes[lane].value, lane, half_sum, c);
}

void sg_mma(struct sg_fiber *fiber, uint32_t product, void *d, const void *a, const void *b, const void *c)
{
    struct fragments part = {d, a, b, c};
    struct engine *engine = fiber->engine;
    /* Every lane of the warp must be there; a card would hang or compute nonsense otherwise. */
    if (engine->warps[fiber->linear / WARP].live != ~0u)
        fault_raise(CUDA_ERROR_ILLEGAL_INSTRUCTION);
    sg_warp(fiber, SG_MMA + product, ~0u, (uint64_t)(uintptr_t)&part, 0, 0);
}
