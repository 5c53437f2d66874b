/* What the generated half of a driver library offers to the written half, and wants from it. */
#pragma once
#include <cuda.h>

struct cudaapi_proc {
    const char *name;   /* as asked of cuGetProcAddress */
    int release;        /* the CUDA release this variant came with */
    int per_thread;     /* for the per-thread default stream */
    int implemented;
    const char *symbol; /* the name it is exported under */
    void (*function)(void);
};

struct cudaapi_error {
    int value;
    const char *name;
    const char *words;
};

/* Sorted by name, then release. */
extern const struct cudaapi_proc cudaapi_procs[];
extern const unsigned cudaapi_proc_count;
extern const struct cudaapi_error cudaapi_errors[];
extern const unsigned cudaapi_error_count;

/* What a null stream stands for in this thread, of a library that is a driver: CU_STREAM_LEGACY, and within the variants
 * of functions that are for the per-thread default stream CU_STREAM_PER_THREAD. */
extern _Thread_local CUstream cudaapi_null_stream;

/* Every stub ends here; the library decides what to do with the name. */
CUresult cudaapi_missing(const char *symbol);

/* The answer to cuGetProcAddress: the newest variant not newer than `release`, by the stream rule of `flags`. */
const struct cudaapi_proc *cudaapi_find(const char *name, int release, cuuint64_t flags, int *known);
