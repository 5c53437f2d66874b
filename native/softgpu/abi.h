/* The interface between the runtime and code from the GPU's compiler; mirrored by src/milligpu/softgpu/llvm. */
#pragma once
#include <stddef.h>
#include <stdint.h>

enum { SG_IMAGE_VERSION = 3, SG_SHARED_WINDOW = 1 << 20, SG_MOST_THREADS = 1024 };

/* Shared by all threads of a block. */
struct sg_block {
    uint32_t grid[3];
    uint32_t block[3];
    uint32_t index[3];
    uint32_t threads;
    uint32_t dynamic_shared;
    uint32_t reserved;
    char *shared;
    const unsigned char *parameters;
    /* Written by code that counts: what the block's threads did, in instructions and in nanoseconds of sleep. */
    uint64_t total, longest, sleep;
    /* Read by that code, for its clocks. */
    uint64_t start;
    uint32_t clock_khz, reserved_too;
};
_Static_assert(offsetof(struct sg_block, block) == 12, "mirrors llvm/special.py");
_Static_assert(offsetof(struct sg_block, index) == 24, "mirrors llvm/special.py");
_Static_assert(offsetof(struct sg_block, threads) == 36, "mirrors llvm/special.py");
_Static_assert(offsetof(struct sg_block, dynamic_shared) == 40, "mirrors llvm/special.py");
_Static_assert(offsetof(struct sg_block, shared) == 48, "mirrors llvm/special.py");
_Static_assert(offsetof(struct sg_block, parameters) == 56, "mirrors llvm/special.py");
_Static_assert(offsetof(struct sg_block, total) == 64, "mirrors llvm/special.py");
_Static_assert(sizeof(struct sg_block) == 104, "mirrors llvm/special.py");

struct sg_fiber;

/* `memory` is always null: device addresses are offsets from it, so LLVM's analyses still see pointers. */
typedef void (*sg_loop)(const struct sg_block *block, char *memory);
typedef void (*sg_thread)(const struct sg_block *block, char *memory, uint32_t x, uint32_t y, uint32_t z,
                          uint32_t linear, struct sg_fiber *fiber);

struct sg_kernel {
    const char *name;
    void (*code)(void); /* an sg_thread if `fibers`, otherwise an sg_loop over the block's threads */
    const uint32_t *offsets;
    const uint32_t *sizes;
    uint32_t parameters;
    uint32_t parameter_bytes;
    uint32_t shared;
    uint32_t local;
    uint32_t fibers;
    uint32_t max_threads;
};
_Static_assert(sizeof(struct sg_kernel) == 56, "mirrors llvm/module.py");

struct sg_global {
    const char *name;
    void *address;
    uint64_t size;
};

struct sg_image {
    uint32_t version;
    uint32_t kernel_count;
    uint32_t global_count;
    uint32_t reserved;
    const struct sg_kernel *kernels;
    const struct sg_global *globals;
};

/* Warp operations: mirrored by llvm/warp.py. Related operations share a line. */
/* clang-format off */
enum sg_warp_op {
    SG_SHUFFLE_UP, SG_SHUFFLE_DOWN, SG_SHUFFLE_BUTTERFLY, SG_SHUFFLE_INDEX,
    SG_VOTE_ALL, SG_VOTE_ANY, SG_VOTE_UNIFORM, SG_BALLOT,
    SG_SYNC, SG_ACTIVE,
    SG_REDUCE_ADD, SG_REDUCE_MIN, SG_REDUCE_MAX, SG_REDUCE_SMIN, SG_REDUCE_SMAX,
    SG_REDUCE_AND, SG_REDUCE_OR, SG_REDUCE_XOR,
    SG_MATCH_ANY, SG_MATCH_ALL,
    SG_MMA,
};
/* clang-format on */

/* Functions that compiled code calls. */
void sg_barrier(struct sg_fiber *fiber, uint32_t barrier, uint32_t count);
uint32_t sg_barrier_reduce(struct sg_fiber *fiber, uint32_t barrier, uint32_t count, uint32_t how, uint32_t truth);
void sg_barrier_arrive(struct sg_fiber *fiber, uint32_t barrier, uint32_t count);
void sg_mbarrier_init(uint64_t *barrier, uint32_t count);
uint64_t sg_mbarrier_arrive(uint64_t *barrier, uint32_t count, uint32_t drop, int32_t bytes);
uint32_t sg_mbarrier_wait(struct sg_fiber *fiber, const uint64_t *barrier, uint32_t phase);
uint64_t sg_warp(struct sg_fiber *fiber, uint32_t op, uint32_t mask, uint64_t value, uint32_t a, uint32_t c);
void sg_mma(struct sg_fiber *fiber, uint32_t product, void *d, const void *a, const void *b, const void *c);
void sg_exit(struct sg_fiber *fiber);
void sg_trap(void);
uint32_t sg_find_nth_set(uint32_t mask, uint32_t base, int32_t offset);
void sg_assert(uint64_t message, uint64_t file, uint32_t line, uint64_t function);
int32_t sg_printf(uint64_t format, uint64_t arguments);
uint64_t sg_malloc(uint64_t size);
void sg_free(uint64_t pointer);
uint64_t sg_clock(void);
uint64_t sg_modelled_clock(const struct sg_block *block, uint64_t instructions, uint64_t sleep, uint32_t cycles);
void sg_work(struct sg_fiber *fiber, uint64_t instructions, uint64_t sleep);
