/* Reading modules; by itself, so that tests can drive it. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

/* What the variables (and, where it can be seen, the code) of a module in memory take. PTX ends with a zero. */
uint64_t image_bytes(const void *image);
