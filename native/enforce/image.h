/* Reading modules; separate, so that tests can call it. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The size of an image that the caller does not know. PTX ends with a zero byte, others say their size. */
#define IMAGE_UNKNOWN SIZE_MAX

struct image_need {
    uint64_t bytes; /* the variables and, where visible, the code; UINT64_MAX: more than can be said */
    bool unread;    /* a part could not be read: its size in the image was taken instead */
};

/* What a module in memory takes on a GPU of this compute capability, such as 86. */
struct image_need image_need(const void *image, size_t size, unsigned capability);

/* The variables of PTX, which ends with a zero byte. */
uint64_t ptx_bytes(const char *text);

/* A fat binary without its wrapper. */
struct image_need fatbin_need(const uint8_t *image, size_t size, unsigned capability);
/* One module of a fat binary, uncompressed: PTX is followed by a zero byte. */
struct image_need module_need(const uint8_t *image, size_t size);
