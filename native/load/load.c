/* A program that keeps a GPU busy in a known way, for measurements: `milligpu-load KIND key=value…`.
 *
 * It is an ordinary CUDA program: opens libcuda.so.1, loads PTX, launches. Its kernels sleep for an exact time, so that
 * on a card with modelled time they cost the CPU next to nothing. It says "ready", waits for a line on stdin, works
 * until stdin is closed, and prints what it did as JSON.
 *
 *   train     kernel=US [graph=N] [period=US busy=US]   launches as fast as it may
 *             [after=N then=US]                         and from the Nth on kernels of another length
 *   sync      kernel=US gap=US                          launches, waits for the end, thinks, again
 *   requests  kernel=US count=N load=PERCENT            answers requests that arrive at random
 *   launches                                            times empty launches
 */
#define _GNU_SOURCE
#include <cuda.h>
#include <dlfcn.h>
#include <math.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

static const char SLEEP[] = ".version 7.0\n.target sm_70\n.address_size 64\n"
                            ".visible .entry nap(.param .u32 ns)\n{\n.reg .b32 %r<2>;\n"
                            "ld.param.u32 %r1, [ns];\nnanosleep.u32 %r1;\nret;\n}\n"
                            ".visible .entry nothing()\n{\nret;\n}\n";
/* What the modelled card adds to every kernel. */
enum { KERNEL_START_NS = 2000 };
enum { MOST_LATENCIES = 1 << 20, ROUNDS = 400, ROUND = 250 };

#define FUNCTIONS(X)                                                                                                  \
    X(cuInit) X(cuDeviceGet) X(cuDevicePrimaryCtxRetain) X(cuCtxSetCurrent) X(cuCtxSynchronize) X(cuModuleLoadData)   \
    X(cuModuleGetFunction) X(cuLaunchKernel) X(cuGraphCreate) X(cuGraphAddKernelNode_v2) X(cuGraphLaunch)             \
    X(cuGraphInstantiateWithFlags) X(cuStreamCreate)
#define POINTER(name) static __typeof__(&name) p_##name;
#undef cuGraphAddKernelNode
FUNCTIONS(POINTER)

static volatile int stopping;
static CUstream stream;
static CUfunction nap, nothing;
static uint64_t launches;
static int64_t latencies[MOST_LATENCIES];
static unsigned latency_count;

static void check(CUresult status, const char *what) {
    if (status == CUDA_SUCCESS) return;
    fprintf(stderr, "milligpu-load: %s: error %d\n", what, (int)status);
    exit(1);
}

static int64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * INT64_C(1000000000) + time.tv_nsec;
}

static void sleep_until(int64_t when) {
    struct timespec time = {when / 1000000000, when % 1000000000};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &time, NULL) && !stopping) {}
}

static long option(int count, char **values, const char *name, long otherwise) {
    size_t length = strlen(name);
    for (int i = 0; i < count; i++)
        if (strncmp(values[i], name, length) == 0 && values[i][length] == '=') return atol(values[i] + length + 1);
    return otherwise;
}

static void open_driver(void) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!driver) {
        fprintf(stderr, "milligpu-load: %s\n", dlerror());
        exit(1);
    }
#define FIND(name)                                                                                                    \
    if (!(p_##name = (__typeof__(p_##name))dlsym(driver, #name))) check(CUDA_ERROR_NOT_FOUND, #name);
    FUNCTIONS(FIND)
}

static void open_card(void) {
    CUdevice device;
    CUcontext context;
    CUmodule module;
    check(p_cuInit(0), "cuInit");
    check(p_cuDeviceGet(&device, 0), "cuDeviceGet");
    check(p_cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain");
    check(p_cuCtxSetCurrent(context), "cuCtxSetCurrent");
    check(p_cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    check(p_cuModuleLoadData(&module, SLEEP), "cuModuleLoadData");
    check(p_cuModuleGetFunction(&nap, module, "nap"), "cuModuleGetFunction");
    check(p_cuModuleGetFunction(&nothing, module, "nothing"), "cuModuleGetFunction");
}

static unsigned nap_ns(long microseconds) {
    return microseconds * 1000 > KERNEL_START_NS ? (unsigned)(microseconds * 1000 - KERNEL_START_NS) : 0;
}

static void launch(unsigned nanoseconds) {
    void *values[] = {&nanoseconds};
    check(p_cuLaunchKernel(nap, 1, 1, 1, 1, 1, 1, 0, stream, values, NULL), "cuLaunchKernel");
    launches++;
}

static void launch_nothing(void) {
    check(p_cuLaunchKernel(nothing, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL), "cuLaunchKernel");
}

static CUgraphExec make_graph(long kernels, unsigned nanoseconds) {
    void *values[] = {&nanoseconds};
    CUDA_KERNEL_NODE_PARAMS node = {
        .func = nap, .gridDimX = 1, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 1, .blockDimY = 1, .blockDimZ = 1,
        .kernelParams = values};
    CUgraph graph;
    CUgraphExec made;
    CUgraphNode before = NULL, next;
    check(p_cuGraphCreate(&graph, 0), "cuGraphCreate");
    for (long i = 0; i < kernels; i++, before = next)
        check(p_cuGraphAddKernelNode_v2(&next, graph, before ? &before : NULL, before != NULL, &node),
              "cuGraphAddKernelNode");
    check(p_cuGraphInstantiateWithFlags(&made, graph, 0), "cuGraphInstantiate");
    return made;
}

static void train(int count, char **values) {
    unsigned kernel = nap_ns(option(count, values, "kernel", 1000));
    long graph_size = option(count, values, "graph", 0);
    int64_t period = option(count, values, "period", 0) * 1000, busy = option(count, values, "busy", 0) * 1000;
    CUgraphExec graph = graph_size ? make_graph(graph_size, kernel) : NULL;
    uint64_t after = (uint64_t)option(count, values, "after", -1);
    int64_t start = now();
    while (!stopping) {
        if (launches == after) kernel = nap_ns(option(count, values, "then", 1000));
        int64_t phase = period ? (now() - start) % period : 0;
        if (period && phase >= busy) sleep_until(now() + period - phase);
        if (graph) check(p_cuGraphLaunch(graph, stream), "cuGraphLaunch"), launches++;
        else launch(kernel);
    }
}

static void synchronous(int count, char **values) {
    unsigned kernel = nap_ns(option(count, values, "kernel", 1000));
    int64_t gap = option(count, values, "gap", 200) * 1000;
    while (!stopping) {
        launch(kernel);
        check(p_cuCtxSynchronize(), "cuCtxSynchronize");
        sleep_until(now() + gap);
    }
}

static void requests(int count, char **values) {
    unsigned kernel = nap_ns(option(count, values, "kernel", 100));
    long kernels = option(count, values, "count", 20);
    double between = 1e5 * (double)option(count, values, "kernel", 100) * (double)kernels /
                     (double)option(count, values, "load", 30);
    struct drand48_data dice;
    srand48_r(7, &dice);
    for (int64_t arrived = now(); !stopping;) {
        double random;
        drand48_r(&dice, &random);
        arrived += (int64_t)(-log(1 - random) * between);
        if (now() < arrived) sleep_until(arrived);
        for (long i = 0; i < kernels; i++) launch(kernel);
        check(p_cuCtxSynchronize(), "cuCtxSynchronize");
        if (latency_count < MOST_LATENCIES) latencies[latency_count++] = now() - arrived;
    }
}

/* Rounds are short and start with an idle GPU: what is timed is the call, not the queue behind it. */
static void time_launches(void) {
    for (int round = 0; round < ROUNDS; round++) {
        int64_t start = now();
        for (int i = 0; i < ROUND; i++) launch_nothing();
        latencies[latency_count++] = (now() - start) / ROUND;
        check(p_cuCtxSynchronize(), "cuCtxSynchronize");
    }
}

static void *watch_stdin(void *unused) {
    char byte;
    while (read(STDIN_FILENO, &byte, 1) > 0) {}
    stopping = 1;
    return unused;
}

static int ascending(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x < y ? -1 : x > y;
}

static void report(double seconds) {
    qsort(latencies, latency_count, sizeof *latencies, ascending);
    int64_t p50 = latency_count ? latencies[latency_count / 2] : 0;
    int64_t p99 = latency_count ? latencies[(size_t)latency_count * 99 / 100] : 0;
    printf("{\"launches\": %llu, \"seconds\": %.6f, \"answers\": %u, \"p50_ns\": %lld, \"p99_ns\": %lld}\n",
           (unsigned long long)launches, seconds, latency_count, (long long)p50, (long long)p99);
}

int main(int count, char **values) {
    if (count < 2) {
        fprintf(stderr, "usage: milligpu-load train|sync|requests|launches [key=value…]\n");
        return 2;
    }
    pthread_t watcher;
    char line[16];
    prctl(PR_SET_TIMERSLACK, 1000UL, 0, 0, 0);
    open_driver();
    open_card();
    launch_nothing();
    check(p_cuCtxSynchronize(), "cuCtxSynchronize");
    printf("ready\n");
    fflush(stdout);
    if (!fgets(line, sizeof line, stdin)) return 0;
    pthread_create(&watcher, NULL, watch_stdin, NULL);
    int64_t start = now();
    if (!strcmp(values[1], "train")) train(count, values);
    else if (!strcmp(values[1], "sync")) synchronous(count, values);
    else if (!strcmp(values[1], "requests")) requests(count, values);
    else if (!strcmp(values[1], "launches")) time_launches();
    else return 2;
    report((double)(now() - start) / 1e9);
    fflush(stdout);
    _exit(0); /* what is queued does not matter any more */
}
