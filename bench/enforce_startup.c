/* A program's first steps on a GPU: opens the driver (argument 1), starts it, makes a context, allocates a page.
 * Prints the status and how long that took in microseconds; with a second argument stays until its input ends. */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <time.h>

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e6 + (double)time.tv_nsec * 1e-3;
}

int main(int count, char **arguments)
{
    void *context = 0;
    unsigned long long pointer = 0;
    double start = now();
    void *driver = dlopen(arguments[1], RTLD_NOW);
    int (*init)(unsigned) = driver ? (int (*)(unsigned))dlsym(driver, "cuInit") : 0;
    int (*retain)(void **, int) = driver ? (int (*)(void **, int))dlsym(driver, "cuDevicePrimaryCtxRetain") : 0;
    int (*current)(void *) = driver ? (int (*)(void *))dlsym(driver, "cuCtxSetCurrent") : 0;
    int (*allocate)(unsigned long long *, size_t) =
        driver ? (int (*)(unsigned long long *, size_t))dlsym(driver, "cuMemAlloc_v2") : 0;
    int status = init ? init(0) : -1;
    status = status ? status : retain(&context, 0);
    status = status ? status : current(context);
    status = status ? status : allocate(&pointer, 4096);
    printf("%d %.1f\n", status, now() - start);
    fflush(stdout);
    if (count > 2)
        while (getchar() != EOF) {}
    return status != 0;
}
