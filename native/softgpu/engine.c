/* Runs grids. A block runs on one CPU thread; large grids are divided among helper threads, one for each additional
 * CPU. */
#include "engine.h"
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* With fewer CUDA threads than this, a second CPU costs more than it gains. */
enum { WORTH_SHARING = 8192 };
enum { MOST_HELPERS = 15 };
enum { ALTERNATE_STACK = 64 << 10 };

static _Thread_local struct engine *mine;
static struct sigaction before[NSIG];

/* ---- faults: a wild pointer in a kernel ends the grid, not the process ---- */
static void on_fault(int signal, siginfo_t *information, void *context)
{
    if (mine && mine->running)
        siglongjmp(mine->out,
                   signal == SIGSEGV || signal == SIGBUS ? CUDA_ERROR_ILLEGAL_ADDRESS : CUDA_ERROR_LAUNCH_FAILED);
    const struct sigaction *old = &before[signal];
    if (old->sa_flags & SA_SIGINFO)
        old->sa_sigaction(signal, information, context);
    else if (old->sa_handler != SIG_DFL && old->sa_handler != SIG_IGN)
        old->sa_handler(signal);
    else
        sigaction(signal, old, 0); /* the fault repeats and ends the process as it would have without the handler */
}

static void guard_process(void)
{
    static const int signals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL};
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER};
    for (unsigned at = 0; at < sizeof signals / sizeof *signals; at++)
        sigaction(signals[at], &action, &before[signals[at]]);
}

void fault_guard(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, guard_process);
    /* A kernel may have exhausted its stack, so the handler needs its own. */
    void *memory = mmap(0, ALTERNATE_STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    stack_t stack = {.ss_sp = memory, .ss_size = ALTERNATE_STACK};
    if (memory != MAP_FAILED)
        sigaltstack(&stack, 0);
}

void fault_raise(int failure)
{
    siglongjmp(mine->out, failure);
}

struct engine *engine_of_thread(void)
{
    if (mine)
        return mine;
    struct engine *engine = mmap(0, sizeof *engine, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (engine == MAP_FAILED)
        return 0;
    /* The end of the window is protected: an offset that is far out faults. */
    char *window = mmap(0, 2 * (size_t)SG_SHARED_WINDOW, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (window == MAP_FAILED || mprotect(window, SG_SHARED_WINDOW, PROT_READ | PROT_WRITE)) {
        munmap(engine, sizeof *engine);
        return 0;
    }
    engine->block.shared = window;
    for (uint32_t at = 0; at < SG_MOST_THREADS; at++) {
        engine->fibers[at].engine = engine;
        engine->fibers[at].linear = at;
    }
    fault_guard();
    return mine = engine;
}

static int run_blocks(struct engine *engine, uint64_t first, uint64_t end)
{
    struct sg_block *block = &engine->block;
    block->index[0] = (uint32_t)(first % block->grid[0]);
    block->index[1] = (uint32_t)(first / block->grid[0] % block->grid[1]);
    block->index[2] = (uint32_t)(first / block->grid[0] / block->grid[1]);
    for (uint64_t at = first; at < end; at++) {
        if (!engine->kernel->fibers) {
            ((sg_loop)engine->kernel->code)(block, 0);
            tally_add(&engine->tally, &(struct tally){block->total, block->longest, block->sleep});
        } else {
            int failure = fibers_run(engine);
            if (failure)
                return failure;
        }
        if (++block->index[0] == block->grid[0]) {
            block->index[0] = 0;
            if (++block->index[1] == block->grid[1]) {
                block->index[1] = 0;
                block->index[2]++;
            }
        }
    }
    return 0;
}

void tally_add(struct tally *tally, const struct tally *more)
{
    tally->total += more->total;
    tally->longest = more->longest > tally->longest ? more->longest : tally->longest;
    tally->sleep = more->sleep > tally->sleep ? more->sleep : tally->sleep;
}

int engine_run(struct engine *engine, const struct grid *grid, const unsigned char *parameters, uint64_t first,
               uint64_t end)
{
    struct sg_block *block = &engine->block;
    memcpy(block->grid, grid->blocks, sizeof block->grid);
    memcpy(block->block, grid->threads, sizeof block->block);
    block->threads = grid->threads[0] * grid->threads[1] * grid->threads[2];
    block->dynamic_shared = grid->dynamic_shared;
    block->parameters = parameters;
    block->total = block->longest = block->sleep = 0;
    block->start = grid->start;
    block->clock_khz = grid->clock_khz;
    engine->tally = (struct tally){0};
    engine->kernel = grid->kernel;
    if (grid->kernel->fibers && fibers_prepare(engine))
        return CUDA_ERROR_OUT_OF_MEMORY;
    int failure = sigsetjmp(engine->out, 0);
    if (!failure) {
        engine->running = true;
        failure = run_blocks(engine, first, end);
    }
    engine->running = false;
    return failure;
}

/* ---- dividing a grid ---- */
static struct {
    pthread_mutex_t lock; /* one divided grid at a time; meanwhile other grids run on one thread */
    pthread_mutex_t state;
    pthread_cond_t begin, finished;
    unsigned helpers, busy;
    uint64_t round;
    const struct grid *grid;
    const unsigned char *parameters;
    uint64_t total, step;
    _Atomic uint64_t next;
    atomic_int failure;
    struct tally tally;
    pthread_once_t once;
} pool = {.lock = PTHREAD_MUTEX_INITIALIZER,
          .state = PTHREAD_MUTEX_INITIALIZER,
          .begin = PTHREAD_COND_INITIALIZER,
          .finished = PTHREAD_COND_INITIALIZER,
          .once = PTHREAD_ONCE_INIT};

static void take_part(void)
{
    struct engine *engine = engine_of_thread();
    while (engine && !atomic_load(&pool.failure)) {
        uint64_t first = atomic_fetch_add(&pool.next, pool.step);
        if (first >= pool.total)
            return;
        uint64_t end = first + pool.step < pool.total ? first + pool.step : pool.total;
        int failure = engine_run(engine, pool.grid, pool.parameters, first, end), none = 0;
        if (failure)
            atomic_compare_exchange_strong(&pool.failure, &none, failure);
        pthread_mutex_lock(&pool.state);
        tally_add(&pool.tally, &engine->tally);
        pthread_mutex_unlock(&pool.state);
    }
}

static void *helper(void *argument)
{
    uint64_t seen = 0;
    (void)argument;
    pthread_mutex_lock(&pool.state);
    for (;;) {
        while (pool.round == seen)
            pthread_cond_wait(&pool.begin, &pool.state);
        seen = pool.round;
        pthread_mutex_unlock(&pool.state);
        take_part();
        pthread_mutex_lock(&pool.state);
        if (!--pool.busy)
            pthread_cond_signal(&pool.finished);
    }
    return 0;
}

static void start_helpers(void)
{
    cpu_set_t set;
    int cpus = sched_getaffinity(0, sizeof set, &set) ? 1 : CPU_COUNT(&set);
    for (int at = 1; at < cpus && at <= MOST_HELPERS; at++) {
        pthread_t thread;
        if (pthread_create(&thread, 0, helper, 0))
            break;
        pthread_detach(thread);
        pool.helpers++;
    }
}

static int run_shared(const struct grid *grid, const unsigned char *parameters, uint64_t total)
{
    pool.grid = grid;
    pool.parameters = parameters;
    pool.total = total;
    pool.step = total / (8 * (pool.helpers + 1)) + 1;
    atomic_store(&pool.next, 0);
    atomic_store(&pool.failure, 0);
    pool.tally = (struct tally){0};
    pthread_mutex_lock(&pool.state);
    pool.busy = pool.helpers;
    pool.round++;
    pthread_cond_broadcast(&pool.begin);
    pthread_mutex_unlock(&pool.state);
    take_part();
    pthread_mutex_lock(&pool.state);
    while (pool.busy)
        pthread_cond_wait(&pool.finished, &pool.state);
    pthread_mutex_unlock(&pool.state);
    return atomic_load(&pool.failure);
}

int grid_run(const struct grid *grid, const unsigned char *parameters, struct tally *tally)
{
    uint64_t total = (uint64_t)grid->blocks[0] * grid->blocks[1] * grid->blocks[2];
    uint64_t threads = total * grid->threads[0] * grid->threads[1] * grid->threads[2];
    struct engine *engine = engine_of_thread();
    if (!engine)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (total > 1 && threads >= WORTH_SHARING && !pthread_mutex_trylock(&pool.lock)) {
        pthread_once(&pool.once, start_helpers);
        int failure = pool.helpers ? run_shared(grid, parameters, total)
                                   : engine_run(engine, grid, parameters, 0, total);
        *tally = pool.helpers ? pool.tally : engine->tally;
        pthread_mutex_unlock(&pool.lock);
        return failure;
    }
    int failure = engine_run(engine, grid, parameters, 0, total);
    *tally = engine->tally;
    return failure;
}
