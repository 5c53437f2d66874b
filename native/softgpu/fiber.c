/* One fiber per CUDA thread, for kernels whose threads synchronize at barriers or in warp operations. */
#include "engine.h"
#include <string.h>
#include <sys/mman.h>

#ifndef __x86_64__
#error "fiber_switch is written for x86-64"
#endif

/* What a thread needs in addition to its local variables: frames of the functions it calls. */
enum { STACK_SPARE = 64 << 10, PAGE = 4096 };

/* Save the callee-saved registers and continue on the other stack. */
void fiber_switch(void **save, void *to);
__asm__(".text\n"
        ".hidden fiber_switch\n"
        ".globl fiber_switch\n"
        ".type fiber_switch, @function\n"
        "fiber_switch:\n"
        "  push %rbp\n  push %rbx\n  push %r12\n  push %r13\n  push %r14\n  push %r15\n"
        "  mov %rsp, (%rdi)\n"
        "  mov %rsi, %rsp\n"
        "  pop %r15\n  pop %r14\n  pop %r13\n  pop %r12\n  pop %rbx\n  pop %rbp\n"
        "  ret\n"
        ".size fiber_switch, . - fiber_switch\n");

static _Thread_local struct engine *running;

int fibers_prepare(struct engine *engine)
{
    size_t need = ((engine->kernel->local + STACK_SPARE + PAGE - 1) & ~(size_t)(PAGE - 1)) + PAGE;
    if (need <= engine->stack_size)
        return 0;
    if (engine->stacks)
        munmap(engine->stacks, engine->stack_size * SG_MOST_THREADS);
    engine->stack_size = 0;
    engine->stacks = mmap(0, need * SG_MOST_THREADS, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (engine->stacks == MAP_FAILED) {
        engine->stacks = 0;
        return -1;
    }
    engine->stack_size = need;
    return 0;
}

void fiber_pause(struct sg_fiber *fiber)
{
    fiber_switch(&fiber->stack, fiber->engine->scheduler);
}

/* ---- barriers ---- */
static void barrier_check(struct engine *engine, uint32_t barrier)
{
    uint32_t wanted = engine->barrier_wanted[barrier] ? engine->barrier_wanted[barrier] : engine->live;
    if (!engine->barrier_arrived[barrier] || engine->barrier_arrived[barrier] < wanted)
        return;
    uint32_t present = 0, truths = 0;
    for (uint32_t at = 0; at < engine->block.threads; at++) {
        struct sg_fiber *fiber = &engine->fibers[at];
        if (fiber->state == FIBER_AT_BARRIER && fiber->barrier == barrier) {
            present++;
            truths += fiber->value != 0;
        }
    }
    for (uint32_t at = 0; at < engine->block.threads; at++) {
        struct sg_fiber *fiber = &engine->fibers[at];
        if (fiber->state == FIBER_AT_BARRIER && fiber->barrier == barrier) {
            fiber->result = fiber->how == 0 ? truths : fiber->how == 1 ? truths == present : truths != 0;
            fiber->state = FIBER_READY;
        }
    }
    engine->barrier_arrived[barrier] = 0;
}

uint32_t sg_barrier_reduce(struct sg_fiber *fiber, uint32_t barrier, uint32_t count, uint32_t how, uint32_t truth)
{
    struct engine *engine = fiber->engine;
    if (barrier >= MOST_BARRIERS)
        fault_raise(CUDA_ERROR_ILLEGAL_INSTRUCTION);
    fiber->barrier = barrier;
    fiber->how = how;
    fiber->value = truth;
    fiber->state = FIBER_AT_BARRIER;
    engine->barrier_arrived[barrier]++;
    engine->barrier_wanted[barrier] = count;
    barrier_check(engine, barrier);
    if (fiber->state != FIBER_READY)
        fiber_pause(fiber);
    return (uint32_t)fiber->result;
}

void sg_barrier_arrive(struct sg_fiber *fiber, uint32_t barrier, uint32_t count)
{
    if (barrier >= MOST_BARRIERS)
        fault_raise(CUDA_ERROR_ILLEGAL_INSTRUCTION);
    fiber->engine->barrier_arrived[barrier]++;
    fiber->engine->barrier_wanted[barrier] = count;
    barrier_check(fiber->engine, barrier);
}

void sg_barrier(struct sg_fiber *fiber, uint32_t barrier, uint32_t count)
{
    sg_barrier_reduce(fiber, barrier, count, 0, 0);
}

/* ---- a block ---- */
/* A thread that has ended no longer counts where others wait. */
static void finish(struct sg_fiber *fiber)
{
    struct engine *engine = fiber->engine;
    uint32_t warp = fiber->linear / WARP;
    fiber->state = FIBER_DONE;
    engine->live--;
    engine->warps[warp].live &= ~(1u << fiber->linear % WARP);
    for (uint32_t barrier = 0; barrier < MOST_BARRIERS; barrier++)
        barrier_check(engine, barrier);
    if (engine->warps[warp].arrived)
        warp_check(engine, warp);
}

void sg_work(struct sg_fiber *fiber, uint64_t instructions, uint64_t sleep)
{
    tally_add(&fiber->engine->tally, &(struct tally){instructions, instructions, sleep});
}

void sg_exit(struct sg_fiber *fiber)
{
    finish(fiber);
    fiber_pause(fiber);
}

static void fiber_main(void)
{
    struct engine *engine = running;
    struct sg_fiber *fiber = &engine->fibers[engine->current];
    const uint32_t *size = engine->block.block;
    uint32_t linear = fiber->linear;
    ((sg_thread)engine->kernel->code)(&engine->block, 0, linear % size[0], linear / size[0] % size[1],
                                      linear / size[0] / size[1], linear, fiber);
    finish(fiber);
    fiber_pause(fiber);
    __builtin_unreachable();
}

static void begin_block(struct engine *engine)
{
    uint32_t threads = engine->block.threads;
    engine->live = threads;
    memset(engine->barrier_arrived, 0, sizeof engine->barrier_arrived);
    for (uint32_t at = 0; at < threads; at++) {
        struct sg_fiber *fiber = &engine->fibers[at];
        /* Stacks begin at different cache sets, otherwise all of them would compete for the same few lines. */
        char *top = engine->stacks + (at + 1) * engine->stack_size - 64 * (at % 32);
        void **stack = (void **)(top - 64) - 1; /* aligned as after a call */
        *--stack = (void *)fiber_main;
        for (int saved = 0; saved < 6; saved++)
            *--stack = 0;
        fiber->stack = stack;
        fiber->state = FIBER_READY;
    }
    for (uint32_t warp = 0; warp * WARP < threads; warp++) {
        uint32_t lanes = threads - warp * WARP;
        engine->warps[warp] = (struct warp){.live = lanes >= WARP ? ~0u : (1u << lanes) - 1};
    }
}

int fibers_run(struct engine *engine)
{
    running = engine;
    begin_block(engine);
    while (engine->live) {
        bool moved = false;
        for (uint32_t at = 0; at < engine->block.threads; at++)
            if (engine->fibers[at].state == FIBER_READY) {
                moved = true;
                engine->current = at;
                fiber_switch(&engine->scheduler, engine->fibers[at].stack);
            }
        /* The threads wait for each other in a deadlock that a real GPU could not resolve either: report an error
         * instead of hanging. */
        if (!moved && !warp_tell_active(engine))
            return CUDA_ERROR_LAUNCH_TIMEOUT;
    }
    return 0;
}
