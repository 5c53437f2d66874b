/* What the generated half of an NVML library needs from the written half. */
#pragma once
#define NVML_NO_UNVERSIONED_FUNC_DEFS
#include <nvml.h>

/* The result of functions that are not implemented, in a library that implements NVML. */
nvmlReturn_t nvmlapi_missing(const char *symbol);

/* The real library's function, or null, in a library that wraps it. */
void *nvmlapi_next(const char *symbol);
