/* Reading modules; separate, so that tests can call it. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

/* The bytes that the variables (and, where visible, the code) of a module in memory take. PTX ends with a zero byte. */
uint64_t image_bytes(const void *image);
