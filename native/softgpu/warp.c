/* Warp operations: lanes arrive one by one, and the last of those named in the mask completes the operation for all. */
#include "engine.h"
#include <string.h>

static bool is_shuffle(uint32_t op)
{
    return op <= SG_SHUFFLE_INDEX;
}

/* The lane that a shuffle reads from, or -1 if it is outside the segment. */
static int shuffle_source(const struct sg_fiber *fiber, int lane)
{
    int clamp = fiber->c & 31, segment = fiber->c >> 8 & 31, delta = fiber->a & 31;
    int limit = (lane & segment) | (clamp & ~segment), base = lane & segment, source;
    switch (fiber->op) {
    case SG_SHUFFLE_UP: source = lane - delta; return source >= limit ? source : -1;
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
    default: return is_shuffle(op) ? shuffle(lanes, members, lane) : op == SG_MMA ? 0 : reduce(lanes, members, op);
    }
}

static void serve(struct sg_fiber *lanes, struct warp *warp, uint32_t members)
{
    uint32_t op = lanes[__builtin_ctz(members)].op;
    if (op == SG_MMA)
        warp_matrix(lanes, lanes[__builtin_ctz(members)].a);
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

/* The lanes that are active at an instruction: those that reach it before no other lane can continue, which is the best
 * convergence a real warp could have. Each lane asks with its position in the code. */
bool warp_tell_active(struct engine *engine)
{
    bool told = false;
    for (uint32_t at = 0; at < engine->block.threads; at++) {
        struct sg_fiber *lanes = &engine->fibers[at / WARP * WARP], *asking = &engine->fibers[at];
        if (asking->state != FIBER_ASKS_WHO)
            continue;
        uint32_t group = 0, place = asking->a;
        for (uint32_t lane = 0; lane < WARP; lane++)
            if (lanes[lane].state == FIBER_ASKS_WHO && lanes[lane].a == place)
                group |= 1u << lane;
        for (uint32_t lane = 0; lane < WARP; lane++)
            if (group >> lane & 1) {
                lanes[lane].result = group;
                lanes[lane].state = FIBER_READY;
            }
        told = true;
    }
    return told;
}

uint64_t sg_warp(struct sg_fiber *fiber, uint32_t op, uint32_t mask, uint64_t value, uint32_t a, uint32_t c)
{
    struct engine *engine = fiber->engine;
    uint32_t index = fiber->linear / WARP, lane = fiber->linear % WARP;
    fiber->op = op;
    fiber->mask = mask | 1u << lane;
    fiber->value = value;
    fiber->a = a;
    fiber->c = c;
    if (op == SG_ACTIVE) {
        fiber->state = FIBER_ASKS_WHO;
        fiber_pause(fiber);
        return fiber->result;
    }
    fiber->state = FIBER_AT_WARP;
    engine->warps[index].arrived |= 1u << lane;
    warp_check(engine, index);
    if (fiber->state != FIBER_READY)
        fiber_pause(fiber);
    return fiber->result;
}
