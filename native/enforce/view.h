/* The library that takes NVML's place: the interfaces between its parts. */
#pragma once
#define _GNU_SOURCE
#include "folder.h"
#include "nvmlapi.h"
#include <stdbool.h>

#define API __attribute__((visibility("default"))) nvmlReturn_t
/* The driver's own function; null if the driver's library is too old for it. */
#define REAL(symbol) ((__typeof__(&symbol))nvmlapi_next(#symbol))
#define ASK(symbol, ...) (REAL(symbol) ? REAL(symbol)(__VA_ARGS__) : NVML_ERROR_FUNCTION_NOT_FOUND)

extern const struct mg_limits_page *view_limits; /* null: no GPU is visible */
extern const struct mg_usage_page *view_usage;

int view_gpu(nvmlDevice_t device); /* the GPU's index in the page; -1: not this tenant's */
/* A process of this tenant that holds memory of a GPU; false after the last. */
struct view_process {
    unsigned pid;
    unsigned long long bytes;
};
bool view_next(unsigned gpu, unsigned *slot, struct view_process *found);
bool view_has_process(unsigned pid);
