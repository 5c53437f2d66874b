/* What the generated functions of the strict NVML ask. */
#pragma once
#include "nvmlapi.h"

/* The index of a GPU, or -1. */
int strict_gpu(nvmlDevice_t device);
/* The code that a rule says, or -1; returns late if a rule says so. */
int strict_answer(const char *function, int gpu);
/* Whether a rule says that the GPU does not have this NVLink. */
int strict_no_link(int gpu, unsigned link);
