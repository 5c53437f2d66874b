/* Shared by the recorder and its generated wrappers. */
#pragma once
#define __CUDA_API_VERSION_INTERNAL 1 /* every function under its exported name */
#include "cudaapi.h"
#include "cudaapi_real.h"
#include <stdint.h>

#define API __attribute__((visibility("default"))) CUresult

/* A number that a call was given, or was answered with, by its name in the header. */
struct record_size {
    const char *name;
    uint64_t value;
};

/* Write down a call that has returned. */
void record_call(const char *name, CUresult status, unsigned count, const struct record_size *sizes);
