/* Decompression of what fat binaries contain; separate, so that tests can call it. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Decompress into `out`, which has `room` bytes. False if the input is damaged or does not fit. */
bool unpack_lz4(const uint8_t *in, size_t size, uint8_t *out, size_t room, size_t *made);
bool unpack_zstd(const uint8_t *in, size_t size, uint8_t *out, size_t room, size_t *made);
