/* A program for another architecture: what a tenant gets of the GPU, and that its limits hold. */
#include <dlfcn.h>
#include <stdio.h>

#define MIB (1ul << 20)
#define ASK(name, ...)                                                                                                 \
    do {                                                                                                               \
        int (*call)() = (int (*)())dlsym(cuda, name);                                                                  \
        printf("%s %d\n", name, call ? call(__VA_ARGS__) : -1);                                                        \
    } while (0)

int main(void)
{
    void *cuda = dlopen("libcuda.so.1", RTLD_NOW), *context = 0;
    if (!cuda) {
        puts(dlerror());
        return 1;
    }
    int count = 0;
    unsigned long free_bytes = 0, total = 0;
    unsigned long long small = 0, large = 0;
    ASK("cuInit", 0);
    ASK("cuDeviceGetCount", &count);
    ASK("cuDevicePrimaryCtxRetain", &context, 0);
    ASK("cuCtxSetCurrent", context);
    ASK("cuMemAlloc_v2", &small, 512 * MIB);
    ASK("cuMemAlloc_v2", &large, 512 * MIB);
    ASK("cuMemGetInfo_v2", &free_bytes, &total);
    ASK("cuMemFree_v2", small);
    ASK("cuMemAlloc_v2", &large, 600 * MIB);
    printf("%d GPUs, %lu MiB\n", count, total / MIB);
    return 0;
}
