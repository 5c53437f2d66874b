/* The software GPU from C, beside the same loop compiled for the CPU; run by softgpu.py. Prints name and value. */
#include <cuda.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { COUNT = 16 << 20, ROUNDS = 7, LAUNCHES = 20000, BATCHES = 101 };

static const char *text =
    ".version 8.0\n.target sm_80\n.address_size 64\n"
    ".visible .entry empty() { ret; }\n"
    ".visible .entry meet() { bar.sync 0; ret; }\n"
    ".visible .entry saxpy(.param .f32 a, .param .u64 x, .param .u64 y, .param .u64 o, .param .u32 n) {\n"
    ".reg .f32 %f<5>; .reg .b32 %r<6>; .reg .b64 %rd<9>; .reg .pred %p<2>;\n"
    "ld.param.f32 %f1, [a]; ld.param.u64 %rd1, [x]; ld.param.u64 %rd2, [y]; ld.param.u64 %rd3, [o];\n"
    "ld.param.u32 %r1, [n]; mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x; mov.u32 %r4, %tid.x;\n"
    "mad.lo.s32 %r5, %r2, %r3, %r4; setp.ge.s32 %p1, %r5, %r1; @%p1 bra DONE;\n"
    "mul.wide.s32 %rd4, %r5, 4; add.s64 %rd5, %rd1, %rd4; ld.global.f32 %f2, [%rd5];\n"
    "add.s64 %rd6, %rd2, %rd4; ld.global.f32 %f3, [%rd6]; fma.rn.f32 %f4, %f1, %f2, %f3;\n"
    "add.s64 %rd7, %rd3, %rd4; st.global.f32 [%rd7], %f4;\nDONE: ret;\n}\n";

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static void check(CUresult status, const char *what)
{
    if (status) {
        fprintf(stderr, "%s: error %d\n", what, status);
        exit(1);
    }
}
#define CHECK(call) check(call, #call)

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, int count)
{
    qsort(values, (size_t)count, sizeof *values, ascending);
    return values[count / 2];
}

struct part { float *x, *y, *o; int first, end; };

static void *cpu_saxpy(void *argument)
{
    struct part *part = argument;
    float *x = part->x, *y = part->y, *o = part->o;
    for (int at = part->first; at < part->end; at++)
        o[at] = 2.0f * x[at] + y[at];
    return 0;
}

static double cpu_round(float *x, float *y, float *o)
{
    pthread_t thread;
    struct part halves[2] = {{x, y, o, 0, COUNT / 2}, {x, y, o, COUNT / 2, COUNT}};
    double start = now();
    pthread_create(&thread, 0, cpu_saxpy, &halves[0]);
    cpu_saxpy(&halves[1]);
    pthread_join(thread, 0);
    return now() - start;
}

int main(void)
{
    CUcontext context;
    CUmodule module;
    CUfunction empty, meet, saxpy;
    CUdeviceptr x, y, o;
    CHECK(cuInit(0));
    CHECK(cuDevicePrimaryCtxRetain(&context, 0));
    CHECK(cuCtxSetCurrent(context));
    CHECK(cuModuleLoadData(&module, text));
    CHECK(cuModuleGetFunction(&empty, module, "empty"));
    CHECK(cuModuleGetFunction(&meet, module, "meet"));
    CHECK(cuModuleGetFunction(&saxpy, module, "saxpy"));

    double launches[BATCHES];
    for (int batch = 0; batch < BATCHES; batch++) {
        double begin = now();
        for (int at = 0; at < LAUNCHES / 10; at++)
            CHECK(cuLaunchKernel(empty, 1, 1, 1, 32, 1, 1, 0, 0, 0, 0));
        CHECK(cuCtxSynchronize());
        launches[batch] = (now() - begin) / (LAUNCHES / 10) * 1e6;
    }
    double middle = median(launches, BATCHES); /* sorts them */
    printf("empty_launch_us %.3f\nempty_launch_best_us %.3f\n", middle, launches[0]);

    double start = now();
    for (int at = 0; at < LAUNCHES / 10; at++)
        CHECK(cuLaunchKernel(meet, 1, 1, 1, 256, 1, 1, 0, 0, 0, 0));
    CHECK(cuCtxSynchronize());
    printf("barrier_block_us %.3f\n", (now() - start) / (LAUNCHES / 10) * 1e6);

    start = now();
    for (int at = 0; at < 500; at++) {
        CHECK(cuMemAlloc(&x, 1 << 20));
        CHECK(cuMemFree(x));
    }
    printf("allocate_free_us %.3f\n", (now() - start) / 500 * 1e6);

    size_t bytes = COUNT * sizeof(float);
    float *host = calloc(1, 3 * bytes), a = 2;
    for (int at = 0; at < 2 * COUNT; at++)
        host[at] = (float)(at % 1000);
    memset(host + 2 * COUNT, 1, bytes);
    CHECK(cuMemAlloc(&x, bytes));
    CHECK(cuMemAlloc(&y, bytes));
    CHECK(cuMemAlloc(&o, bytes));
    CHECK(cuMemcpyHtoD(x, host, bytes));
    CHECK(cuMemcpyHtoD(y, host + COUNT, bytes));
    CHECK(cuMemsetD8(o, 1, bytes));
    int count = COUNT;
    void *values[] = {&a, &x, &y, &o, &count};
    double card[ROUNDS], cpu[ROUNDS];
    for (int at = 0; at < ROUNDS; at++) {
        start = now();
        CHECK(cuLaunchKernel(saxpy, COUNT / 256, 1, 1, 256, 1, 1, 0, 0, values, 0));
        CHECK(cuCtxSynchronize());
        card[at] = now() - start;
        cpu[at] = cpu_round(host, host + COUNT, host + 2 * COUNT);
    }
    double ours = median(card, ROUNDS), theirs = median(cpu, ROUNDS);
    printf("saxpy_16m_ms %.2f\nsaxpy_16m_cpu_ms %.2f\nsaxpy_ratio %.2f\n", ours * 1e3, theirs * 1e3, ours / theirs);
    return 0;
}
