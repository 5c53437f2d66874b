/* Default streams of many threads. Prints a line for each thing that must hold and whether it does; argument: how often
 * to try what is a race. */
#include <cuda.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

CUresult cuMemcpyHtoD_v2_ptds(CUdeviceptr to, const void *from, size_t size);
CUresult cuMemcpyDtoH_v2_ptds(void *to, CUdeviceptr from, size_t size);
CUresult cuStreamSynchronize_ptsz(CUstream stream);
CUresult cuLaunchKernel_ptsz(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                             unsigned block_y, unsigned block_z, unsigned shared, CUstream stream, void **values,
                             void **extra);

static const char *text =
    ".version 8.0\n.target sm_80\n.address_size 64\n"
    /* Adds 1 to a number n times, each time through memory. */
    ".visible .entry count(.param .u64 p, .param .u32 n) {\n"
    ".reg .b64 %rd<2>; .reg .b32 %r<3>; .reg .pred %p<2>;\n"
    "ld.param.u64 %rd1, [p]; ld.param.u32 %r1, [n];\n"
    "MORE: ld.volatile.global.u32 %r2, [%rd1]; add.u32 %r2, %r2, 1; st.volatile.global.u32 [%rd1], %r2;\n"
    "sub.u32 %r1, %r1, 1; setp.ne.u32 %p1, %r1, 0; @%p1 bra MORE; ret; }\n"
    ".visible .entry wait(.param .u64 p) {\n"
    ".reg .b64 %rd<2>; .reg .b32 %r<3>; .reg .pred %p<2>; ld.param.u64 %rd1, [p];\n"
    "MORE: ld.volatile.global.u32 %r2, [%rd1]; setp.eq.u32 %p1, %r2, 0; @%p1 bra MORE; ret; }\n";

enum { TIMES = 5000, LAUNCHES = 5, THREADS = 8 };

static CUcontext context;
static CUfunction count, wait_for;
static CUdeviceptr numbers;
static CUstream destroyed;
static volatile unsigned *flag;
static atomic_int stop;

static void check(CUresult status, const char *what)
{
    const char *name = "?";
    if (!status)
        return;
    cuGetErrorName(status, &name);
    printf("failed: %s: %s\n", what, name);
    exit(1);
}
#define CHECK(call) check(call, #call)

static void say(const char *what, int holds)
{
    printf("%s: %s\n", what, holds ? "yes" : "no");
    fflush(stdout);
}

static void launch_count(CUdeviceptr number, CUstream stream)
{
    unsigned times = TIMES;
    void *values[] = {&number, &times};
    CHECK(cuLaunchKernel(count, 1, 1, 1, 1, 1, 1, 0, stream, values, 0));
}

static void launch_wait(CUstream stream)
{
    void *pointer = (void *)flag;
    void *values[] = {&pointer};
    CHECK(cuLaunchKernel(wait_for, 1, 1, 1, 1, 1, 1, 0, stream, values, 0));
}

static unsigned read_number(CUdeviceptr number)
{
    unsigned value;
    CHECK(cuMemcpyDtoH(&value, number, sizeof value));
    return value;
}

static void run(void *(*function)(void *), void *argument)
{
    pthread_t thread;
    pthread_create(&thread, 0, function, argument);
    pthread_join(thread, 0);
}

/* ---- what other threads do ---- */
static void *submit_and_end(void *number)
{
    CHECK(cuCtxSetCurrent(context));
    for (int at = 0; at < LAUNCHES; at++)
        launch_count((CUdeviceptr)number, CU_STREAM_PER_THREAD);
    return 0;
}

static void *hold_back(void *unused)
{
    CHECK(cuCtxSetCurrent(context));
    launch_wait(CU_STREAM_PER_THREAD);
    return unused;
}

static void *work_alone(void *unused)
{
    unsigned zero = 0, value = 1;
    CUdeviceptr number = numbers + 4 * THREADS;
    unsigned times = TIMES;
    void *values[] = {&number, &times};
    CHECK(cuCtxSetCurrent(context));
    CHECK(cuMemcpyHtoD_v2_ptds(number, &zero, sizeof zero));
    CHECK(cuLaunchKernel_ptsz(count, 1, 1, 1, 1, 1, 1, 0, 0, values, 0));
    CHECK(cuStreamSynchronize_ptsz(0));
    CHECK(cuMemcpyDtoH_v2_ptds(&value, number, sizeof value));
    say("a thread's stream and copies do not wait for another thread's", value == TIMES);
    return unused;
}

static void *go_on_launching(void *number)
{
    CHECK(cuCtxSetCurrent(context));
    while (!atomic_load(&stop))
        launch_count((CUdeviceptr)number, CU_STREAM_PER_THREAD);
    return 0;
}

static void *outlive_a_context(void *argument)
{
    CUcontext own;
    CUdeviceptr memory;
    CHECK(cuCtxCreate(&own, 0, 0, 0));
    CHECK(cuMemAlloc(&memory, 4));
    CHECK(cuMemsetD32Async(memory, 0, 1, CU_STREAM_PER_THREAD));
    CHECK(cuCtxDestroy(own));
    CHECK(cuCtxSetCurrent(context));
    CHECK(cuMemsetD32Async((CUdeviceptr)argument, 0, 1, CU_STREAM_PER_THREAD));
    return 0;
}

/* ---- what must hold ---- */
static void threads_are_apart(void)
{
    *flag = 0;
    run(hold_back, 0);
    run(work_alone, 0);
    CUdeviceptr number = numbers;
    launch_count(number, 0);
    say("the legacy stream waits for a thread that has ended", cuStreamQuery(0) == CUDA_ERROR_NOT_READY);
    *flag = 1;
    CHECK(cuStreamSynchronize(0));
    say("and goes on after it", cuStreamQuery(0) == CUDA_SUCCESS);
}

static void ended_threads_are_waited_for(int rounds)
{
    int good = 1;
    for (int round = 0; good && round < rounds; round++) {
        pthread_t threads[THREADS];
        CHECK(cuMemsetD32(numbers, 0, THREADS));
        for (int at = 0; at < THREADS; at++)
            pthread_create(&threads[at], 0, submit_and_end, (void *)(numbers + 4 * at));
        for (int at = 0; at < THREADS; at++)
            pthread_join(threads[at], 0);
        for (int at = 0; at < THREADS; at++)
            good &= read_number(numbers + 4 * at) == LAUNCHES * TIMES;
    }
    say("what ended threads had submitted is there for the legacy stream", good);
}

static void destroyed_streams_are_waited_for(int rounds)
{
    int good = 1;
    for (int round = 0; good && round < rounds; round++) {
        CHECK(cuMemsetD32(numbers, 0, 1));
        CHECK(cuStreamCreate(&destroyed, CU_STREAM_DEFAULT));
        launch_count(numbers, destroyed);
        CHECK(cuStreamDestroy(destroyed));
        if (round % 2)
            CHECK(cuCtxSynchronize());
        good = read_number(numbers) == TIMES;
    }
    say("so is what a destroyed stream had", good);
}

static void synchronising_ends(void)
{
    pthread_t thread;
    pthread_create(&thread, 0, go_on_launching, (void *)numbers);
    for (int at = 0; at < 20; at++) {
        sched_yield();
        CHECK(cuCtxSynchronize());
        CHECK(cuStreamSynchronize(CU_STREAM_LEGACY));
    }
    atomic_store(&stop, 1);
    pthread_join(thread, 0);
    say("synchronising ends while others go on launching", 1);
}

static void CUDA_CB call_back(void *answer)
{
    *(CUresult *)answer = cuCtxSynchronize();
}

int main(int count_of_arguments, char **arguments)
{
    int rounds = count_of_arguments > 1 ? atoi(arguments[1]) : 10;
    CUmodule module;
    CUresult answer = CUDA_SUCCESS;
    CHECK(cuInit(0));
    CHECK(cuDevicePrimaryCtxRetain(&context, 0));
    CHECK(cuCtxSetCurrent(context));
    CHECK(cuModuleLoadData(&module, text));
    CHECK(cuModuleGetFunction(&count, module, "count"));
    CHECK(cuModuleGetFunction(&wait_for, module, "wait"));
    CHECK(cuMemHostAlloc((void **)&flag, 4096, 0));
    CHECK(cuMemAlloc(&numbers, 4096));
    threads_are_apart();
    ended_threads_are_waited_for(rounds);
    destroyed_streams_are_waited_for(rounds);
    synchronising_ends();
    for (int round = 0; round < rounds / 10; round++)
        run(outlive_a_context, (void *)numbers);
    say("a thread may outlive its streams' contexts", 1);
    CHECK(cuLaunchHostFunc(CU_STREAM_PER_THREAD, call_back, &answer));
    CHECK(cuStreamSynchronize(CU_STREAM_PER_THREAD));
    say("a host function that calls the driver is told off", answer == CUDA_ERROR_NOT_PERMITTED);
    CHECK(cuDevicePrimaryCtxRelease(0));
    return 0;
}
