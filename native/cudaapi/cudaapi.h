/* The interface between the generated and the written half of a driver library. */
#pragma once
#include <cuda.h>

struct cudaapi_proc {
    const char *name; /* as passed to cuGetProcAddress */
    int release;      /* the CUDA release that introduced this variant */
    int per_thread;   /* for the per-thread default stream */
    int implemented;
    const char *symbol; /* the exported name */
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

/* What a null stream means in this thread, in a library that is a driver: CU_STREAM_PER_THREAD within function variants
 * for the per-thread default stream, otherwise CU_STREAM_LEGACY. */
extern _Thread_local CUstream cudaapi_null_stream;

/* Every stub calls this; the library decides what to do with the name. */
CUresult cudaapi_missing(const char *symbol);

/* The result of cuGetProcAddress: the newest variant not newer than `release`, by the stream rule of `flags`. */
const struct cudaapi_proc *cudaapi_find(const char *name, int release, cuuint64_t flags, int *known);

/* The results of cuGetErrorString and cuGetErrorName, which need no driver. */
CUresult cudaapi_error_string(CUresult error, const char **text);
CUresult cudaapi_error_name(CUresult error, const char **text);
