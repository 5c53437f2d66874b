/* A program that keeps a GPU busy in a known way, for measurements: `milligpu-load KIND key=value…`.
 *
 * It is an ordinary CUDA program: it opens libcuda.so.1, loads PTX and launches kernels. The kernels sleep for an exact
 * time, so they cost almost no CPU on a software GPU with modeled time. The program prints "ready", waits for a line on
 * stdin, works until stdin is closed, and prints its results as JSON.
 *
 *   train     kernel=US [graph=N] [period=US busy=US]   launches as fast as possible
 *             [after=N then=US]                         from the Nth launch on with kernels of another length
 *   sync      kernel=US gap=US                          launches, waits for the end, pauses, repeats
 *   requests  kernel=US count=N load=PERCENT            answers requests that arrive at random
 *   launches  [streams=N]                               times empty launches, on one stream after the other
 *   calibrate kernel=US                                 finds how many turns of a loop take this long
 *   work      turns=N                                   launches loops of N turns; counts those that ended
 *   slices                                              measures the pauses in which other programs have the GPU
 *
 * The last three are for real GPUs, where sleeping kernels are not exact: a loop of N turns is a fixed amount of work.
 */
#define _GNU_SOURCE
#include <cuda.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

static const char SLEEP[] = ".version 7.0\n.target sm_70\n.address_size 64\n"
                            ".visible .entry nap(.param .u32 ns)\n{\n.reg .b32 %r<2>;\n"
                            "ld.param.u32 %r1, [ns];\nnanosleep.u32 %r1;\nret;\n}\n"
                            ".visible .entry nothing()\n{\nret;\n}\n"
                            /* A loop that no compiler shortens; then counts itself in the host's memory. */
                            ".visible .entry work(.param .u64 count, .param .u32 turns)\n{\n"
                            ".reg .pred %p;\n.reg .b32 %r<4>;\n.reg .b64 %d<3>;\n"
                            "ld.param.u64 %d1, [count];\nld.param.u32 %r1, [turns];\nmov.u32 %r2, 1;\n"
                            "again:\nmul.lo.u32 %r2, %r2, 1664525;\nadd.u32 %r2, %r2, 1013904223;\n"
                            "shr.u32 %r3, %r2, 7;\nxor.b32 %r2, %r2, %r3;\n"
                            "sub.u32 %r1, %r1, 1;\nsetp.ne.u32 %p, %r1, 0;\n@%p bra again;\n"
                            "st.global.u32 [%d1+8], %r2;\nld.global.u64 %d2, [%d1];\nadd.u64 %d2, %d2, 1;\n"
                            "st.global.u64 [%d1], %d2;\nret;\n}\n"
                            /* Reads the GPU's clock for 20 ms and stores each pause of more than 0.2 ms. */
                            ".visible .entry pauses(.param .u64 found)\n{\n"
                            ".reg .pred %p;\n.reg .b64 %d<8>;\n"
                            "ld.param.u64 %d1, [found];\nadd.u64 %d6, %d1, 8;\nmov.u64 %d2, %globaltimer;\n"
                            "add.u64 %d3, %d2, 20000000;\n"
                            "again:\nmov.u64 %d4, %globaltimer;\nsub.u64 %d5, %d4, %d2;\nmov.u64 %d2, %d4;\n"
                            "setp.lt.u64 %p, %d5, 200000;\n@%p bra next;\n"
                            "ld.global.u64 %d7, [%d1];\nsetp.ge.u64 %p, %d7, 64;\n@%p bra next;\n"
                            "add.u64 %d7, %d7, 1;\nst.global.u64 [%d1], %d7;\n"
                            "st.global.u64 [%d6], %d5;\nadd.u64 %d6, %d6, 8;\n"
                            "next:\nsetp.lt.u64 %p, %d4, %d3;\n@%p bra again;\nret;\n}\n";
/* The time that a modeled GPU adds to every kernel. */
enum { KERNEL_START_NS = 2000 };
enum { MOST_LATENCIES = 1 << 20, ROUNDS = 400, ROUND = 250, STREAMS_MAX = 64 };
/* Samples of finished work, ten per second: more than an hour. */
enum { MOST_SAMPLES = 40000, SAMPLE_NS = 100000000, PAUSES_MAX = 64 };

/* clang-format off */
#define FUNCTIONS(X) \
    X(cuInit) X(cuDeviceGet) X(cuDevicePrimaryCtxRetain) X(cuCtxSetCurrent) X(cuCtxSynchronize) \
    X(cuModuleLoadData) X(cuModuleGetFunction) X(cuLaunchKernel) X(cuGraphCreate) \
    X(cuGraphAddKernelNode_v2) X(cuGraphLaunch) X(cuGraphInstantiateWithFlags) X(cuStreamCreate) \
    X(cuMemHostAlloc) X(cuMemHostGetDevicePointer_v2) X(cuDeviceGetUuid_v2)
/* clang-format on */
#define POINTER(name) static __typeof__(&name) p_##name;
#undef cuGraphAddKernelNode
FUNCTIONS(POINTER)

static volatile int stopping;
static CUstream stream, streams[STREAMS_MAX];
static CUfunction nap, nothing, work_loop, pauses;
static CUuuid gpu;
static uint64_t launches;
static struct {
    int64_t time;
    uint64_t count;
} samples[MOST_SAMPLES];
static unsigned sample_count;
static long turns_found;
static int64_t latencies[MOST_LATENCIES];
static unsigned latency_count;

static void check(CUresult status, const char *what)
{
    if (status == CUDA_SUCCESS)
        return;
    fprintf(stderr, "milligpu-load: %s: error %d\n", what, (int)status);
    exit(1);
}

static int64_t now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * INT64_C(1000000000) + time.tv_nsec;
}

static void sleep_until(int64_t when)
{
    struct timespec time = {when / 1000000000, when % 1000000000};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &time, NULL) && !stopping) {
    }
}

static long option(int count, char **values, const char *name, long otherwise)
{
    size_t length = strlen(name);
    for (int i = 0; i < count; i++)
        if (strncmp(values[i], name, length) == 0 && values[i][length] == '=')
            return atol(values[i] + length + 1);
    return otherwise;
}

static void open_driver(void)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!driver) {
        fprintf(stderr, "milligpu-load: %s\n", dlerror());
        exit(1);
    }
#define FIND(name)                                                                                                     \
    if (!(p_##name = (__typeof__(p_##name))dlsym(driver, #name)))                                                      \
        check(CUDA_ERROR_NOT_FOUND, #name);
    FUNCTIONS(FIND)
}

static void open_gpu(int index)
{
    CUdevice device;
    CUcontext context;
    CUmodule module;
    check(p_cuInit(0), "cuInit");
    check(p_cuDeviceGet(&device, index), "cuDeviceGet");
    check(p_cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain");
    check(p_cuCtxSetCurrent(context), "cuCtxSetCurrent");
    check(p_cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    check(p_cuModuleLoadData(&module, SLEEP), "cuModuleLoadData");
    check(p_cuModuleGetFunction(&nap, module, "nap"), "cuModuleGetFunction");
    check(p_cuModuleGetFunction(&nothing, module, "nothing"), "cuModuleGetFunction");
    check(p_cuModuleGetFunction(&work_loop, module, "work"), "cuModuleGetFunction");
    check(p_cuModuleGetFunction(&pauses, module, "pauses"), "cuModuleGetFunction");
    check(p_cuDeviceGetUuid_v2(&gpu, device), "cuDeviceGetUuid");
}

static unsigned nap_ns(long microseconds)
{
    return microseconds * 1000 > KERNEL_START_NS ? (unsigned)(microseconds * 1000 - KERNEL_START_NS) : 0;
}

static void launch(unsigned nanoseconds)
{
    void *values[] = {&nanoseconds};
    check(p_cuLaunchKernel(nap, 1, 1, 1, 1, 1, 1, 0, stream, values, NULL), "cuLaunchKernel");
    launches++;
}

static void launch_nothing(CUstream where)
{
    check(p_cuLaunchKernel(nothing, 1, 1, 1, 1, 1, 1, 0, where, NULL, NULL), "cuLaunchKernel");
}

/* Zeroed memory of the host that kernels can write, and its address for them. */
static volatile uint64_t *host_words(size_t count, CUdeviceptr *address)
{
    void *words;
    check(p_cuMemHostAlloc(&words, count * sizeof(uint64_t), CU_MEMHOSTALLOC_DEVICEMAP), "cuMemHostAlloc");
    memset(words, 0, count * sizeof(uint64_t));
    check(p_cuMemHostGetDevicePointer_v2(address, words, 0), "cuMemHostGetDevicePointer");
    return words;
}

static void launch_work(CUdeviceptr count, unsigned turns)
{
    void *values[] = {&count, &turns};
    check(p_cuLaunchKernel(work_loop, 1, 1, 1, 1, 1, 1, 0, stream, values, NULL), "cuLaunchKernel");
    launches++;
}

static CUgraphExec make_graph(long kernels, unsigned nanoseconds)
{
    void *values[] = {&nanoseconds};
    CUDA_KERNEL_NODE_PARAMS node = {.func = nap,
                                    .gridDimX = 1,
                                    .gridDimY = 1,
                                    .gridDimZ = 1,
                                    .blockDimX = 1,
                                    .blockDimY = 1,
                                    .blockDimZ = 1,
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

static void train(int count, char **values)
{
    unsigned kernel = nap_ns(option(count, values, "kernel", 1000));
    long graph_size = option(count, values, "graph", 0);
    int64_t period = option(count, values, "period", 0) * 1000, busy = option(count, values, "busy", 0) * 1000;
    CUgraphExec graph = graph_size ? make_graph(graph_size, kernel) : NULL;
    uint64_t after = (uint64_t)option(count, values, "after", -1);
    int64_t start = now();
    while (!stopping) {
        if (launches == after)
            kernel = nap_ns(option(count, values, "then", 1000));
        int64_t phase = period ? (now() - start) % period : 0;
        if (period && phase >= busy)
            sleep_until(now() + period - phase);
        if (graph)
            check(p_cuGraphLaunch(graph, stream), "cuGraphLaunch"), launches++;
        else
            launch(kernel);
    }
}

static void synchronous(int count, char **values)
{
    unsigned kernel = nap_ns(option(count, values, "kernel", 1000));
    int64_t gap = option(count, values, "gap", 200) * 1000;
    while (!stopping) {
        int64_t start = now();
        launch(kernel);
        check(p_cuCtxSynchronize(), "cuCtxSynchronize");
        if (latency_count < MOST_LATENCIES)
            latencies[latency_count++] = now() - start;
        sleep_until(now() + gap);
    }
}

static void requests(int count, char **values)
{
    unsigned kernel = nap_ns(option(count, values, "kernel", 100));
    long kernels = option(count, values, "count", 20);
    double between = 1e5 * (double)option(count, values, "kernel", 100) * (double)kernels
                     / (double)option(count, values, "load", 30);
    struct drand48_data dice;
    srand48_r(7, &dice);
    for (int64_t arrived = now(); !stopping;) {
        double random;
        drand48_r(&dice, &random);
        arrived += (int64_t)(-log(1 - random) * between);
        if (now() < arrived)
            sleep_until(arrived);
        for (long i = 0; i < kernels; i++)
            launch(kernel);
        check(p_cuCtxSynchronize(), "cuCtxSynchronize");
        if (latency_count < MOST_LATENCIES)
            latencies[latency_count++] = now() - arrived;
    }
}

/* Memory that the processes of a team share; all zero at first. */
struct team {
    uint64_t arrived; /* how often a process has ended a step */
    uint64_t last;    /* the last step, set by the first process */
};

static struct team *open_team(const char *path)
{
    int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    void *team = MAP_FAILED;
    if (file >= 0 && ftruncate(file, sizeof(struct team)) == 0)
        team = mmap(NULL, sizeof(struct team), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (team == MAP_FAILED)
        check(CUDA_ERROR_FILE_NOT_FOUND, path);
    return team;
}

/* Wait until all processes of the team have ended their step. A sleep is short next to a step. */
static void meet(struct team *team, uint64_t members, uint64_t step)
{
    __atomic_add_fetch(&team->arrived, 1, __ATOMIC_ACQ_REL);
    while (__atomic_load_n(&team->arrived, __ATOMIC_ACQUIRE) < members * step)
        sleep_until(now() + 20000);
}

/* One process of a program on several GPUs: in each step its kernels, and then it waits for the others. */
static void steps(int count, char **values)
{
    unsigned kernel = nap_ns(option(count, values, "kernel", 1000));
    long kernels = option(count, values, "count", 10), members = option(count, values, "members", 1);
    int is_first = option(count, values, "gpu", 0) == 0;
    struct team *team = open_team(values[2]);
    for (uint64_t step = 1; !team->last || step <= __atomic_load_n(&team->last, __ATOMIC_ACQUIRE); step++) {
        int64_t start = now();
        if (is_first && stopping && !team->last)
            __atomic_store_n(&team->last, step, __ATOMIC_RELEASE);
        for (long i = 0; i < kernels; i++)
            launch(kernel);
        check(p_cuCtxSynchronize(), "cuCtxSynchronize");
        meet(team, (uint64_t)members, step);
        if (latency_count < MOST_LATENCIES)
            latencies[latency_count++] = now() - start;
    }
}

/* Rounds are short and start with an idle GPU, so the call is timed and not the queue behind it. */
static void time_launches(int count, char **values)
{
    long used = option(count, values, "streams", 1);
    if (used < 1 || used > STREAMS_MAX)
        check(CUDA_ERROR_INVALID_VALUE, "streams");
    streams[0] = stream;
    for (long i = 1; i < used; i++)
        check(p_cuStreamCreate(&streams[i], CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    for (int round = 0; round < ROUNDS; round++) {
        int64_t start = now();
        for (int i = 0; i < ROUND; i++)
            launch_nothing(streams[i % used]);
        latencies[latency_count++] = (now() - start) / ROUND;
        check(p_cuCtxSynchronize(), "cuCtxSynchronize");
    }
}

/* Doubles the turns until they take long enough to be timed, then scales; the best of five counts. */
static void calibrate(int count, char **values)
{
    CUdeviceptr address;
    int64_t wanted = option(count, values, "kernel", 1000) * 1000, best = 0;
    long turns = 1024;
    (void)host_words(2, &address);
    while (best < wanted * 4) {
        best = INT64_MAX;
        for (int i = 0; i < 5; i++) {
            int64_t start = now();
            launch_work(address, (unsigned)turns);
            check(p_cuCtxSynchronize(), "cuCtxSynchronize");
            best = now() - start < best ? now() - start : best;
        }
        turns *= 2;
    }
    turns_found = (long)((double)(turns / 2) * (double)wanted / (double)best);
}

static void *watch_count(void *count)
{
    for (int64_t next = now(); !stopping; next += SAMPLE_NS) {
        sleep_until(next);
        if (sample_count < MOST_SAMPLES) {
            samples[sample_count].time = now();
            samples[sample_count++].count = *(volatile uint64_t *)count;
        }
    }
    return NULL;
}

/* What ended counts, not what was launched: a driver queues a thousand kernels. */
static void work(int count, char **values)
{
    CUdeviceptr address;
    pthread_t sampler;
    unsigned turns = (unsigned)option(count, values, "turns", 1000);
    volatile uint64_t *done = host_words(2, &address);
    pthread_create(&sampler, NULL, watch_count, (void *)done);
    while (!stopping)
        launch_work(address, turns);
    pthread_join(sampler, NULL);
}

static void slices(void)
{
    CUdeviceptr address;
    volatile uint64_t *found = host_words(1 + PAUSES_MAX, &address);
    void *values[] = {&address};
    while (!stopping) {
        found[0] = 0;
        check(p_cuLaunchKernel(pauses, 1, 1, 1, 1, 1, 1, 0, stream, values, NULL), "cuLaunchKernel");
        check(p_cuCtxSynchronize(), "cuCtxSynchronize");
        for (uint64_t i = 0; i < found[0] && latency_count < MOST_LATENCIES; i++)
            latencies[latency_count++] = (int64_t)found[1 + i];
    }
}

static void *watch_stdin(void *unused)
{
    char byte;
    while (read(STDIN_FILENO, &byte, 1) > 0) {
    }
    stopping = 1;
    return unused;
}

static int ascending(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x < y ? -1 : x > y;
}

static void report(double seconds)
{
    qsort(latencies, latency_count, sizeof *latencies, ascending);
    int64_t p50 = latency_count ? latencies[latency_count / 2] : 0;
    int64_t p99 = latency_count ? latencies[(size_t)latency_count * 99 / 100] : 0;
    printf("{\"launches\": %llu, \"seconds\": %.6f, \"answers\": %u, \"p50_ns\": %lld, \"p99_ns\": %lld",
           (unsigned long long)launches, seconds, latency_count, (long long)p50, (long long)p99);
    if (turns_found)
        printf(", \"turns\": %ld", turns_found);
    if (sample_count) {
        printf(", \"gpu\": \"");
        for (unsigned i = 0; i < sizeof gpu.bytes; i++)
            printf("%02x", (unsigned char)gpu.bytes[i]);
        printf("\", \"samples\": [");
        for (unsigned i = 0; i < sample_count; i++)
            printf("%s[%lld, %llu]", i ? ", " : "", (long long)samples[i].time, (unsigned long long)samples[i].count);
        printf("]");
    }
    printf("}\n");
}

int main(int count, char **values)
{
    if (count < 2) {
        fprintf(stderr,
                "usage: milligpu-load train|sync|requests|steps FILE|launches|calibrate|work|slices [key=value…]\n");
        return 2;
    }
    pthread_t watcher;
    char line[16];
    prctl(PR_SET_TIMERSLACK, 1000UL, 0, 0, 0);
    open_driver();
    open_gpu((int)option(count, values, "gpu", 0));
    launch_nothing(stream);
    check(p_cuCtxSynchronize(), "cuCtxSynchronize");
    printf("ready\n");
    fflush(stdout);
    if (!fgets(line, sizeof line, stdin))
        return 0;
    pthread_create(&watcher, NULL, watch_stdin, NULL);
    int64_t start = now();
    if (!strcmp(values[1], "train"))
        train(count, values);
    else if (!strcmp(values[1], "sync"))
        synchronous(count, values);
    else if (!strcmp(values[1], "requests"))
        requests(count, values);
    else if (!strcmp(values[1], "steps") && count > 2)
        steps(count, values);
    else if (!strcmp(values[1], "launches"))
        time_launches(count, values);
    else if (!strcmp(values[1], "calibrate"))
        calibrate(count, values);
    else if (!strcmp(values[1], "work"))
        work(count, values);
    else if (!strcmp(values[1], "slices"))
        slices();
    else
        return 2;
    report((double)(now() - start) / 1e9);
    fflush(stdout);
    _exit(0); /* queued work does not matter any more */
}
