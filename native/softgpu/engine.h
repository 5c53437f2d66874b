/* State of one CPU thread that runs blocks: its fibers and the exit from a fault. */
#pragma once
#include "softgpu.h"
#include <setjmp.h>

enum { MOST_BARRIERS = 17, WARP = 32 }; /* sixteen, plus the cluster's */
enum fiber_state { FIBER_READY, FIBER_AT_BARRIER, FIBER_AT_WARP, FIBER_ASKS_WHO, FIBER_DONE };

struct sg_fiber {
    void *stack; /* where it continues */
    struct engine *engine;
    enum fiber_state state;
    uint32_t linear;
    uint32_t barrier, how;
    uint32_t op, mask, a, c;
    uint64_t value, result;
};

struct warp {
    uint32_t live, arrived;
};

struct engine {
    sigjmp_buf out;
    volatile bool running;
    struct sg_block block;
    const struct sg_kernel *kernel;
    struct tally tally;
    /* For kernels whose threads synchronize. */
    struct sg_fiber fibers[SG_MOST_THREADS];
    struct warp warps[SG_MOST_THREADS / WARP];
    uint32_t barrier_arrived[MOST_BARRIERS], barrier_wanted[MOST_BARRIERS];
    uint32_t live, current;
    void *scheduler;
    char *stacks;
    size_t stack_size;
};

int fibers_prepare(struct engine *engine); /* allocates large enough stacks */
int fibers_run(struct engine *engine);     /* runs one block */
void fiber_pause(struct sg_fiber *fiber);  /* until its state is ready again */
void warp_check(struct engine *engine, uint32_t warp);
bool warp_tell_active(struct engine *engine); /* if no thread can continue; whether this let one continue */
void warp_matrix(struct sg_fiber *first, uint32_t product);
void fault_guard(void); /* once per thread, before it runs kernels */
_Noreturn void fault_raise(int failure);
