/* One LZ4 block: literals, then a copy of earlier output, repeatedly. */
#include "unpack.h"
#include <string.h>

/* A length continues while bytes are 255. */
static bool read_length(const uint8_t *in, size_t size, size_t *at, size_t *length)
{
    if (*length != 15)
        return true;
    for (uint8_t more = 255; more == 255; *length += more) {
        if (*at >= size)
            return false;
        more = in[(*at)++];
    }
    return true;
}

bool unpack_lz4(const uint8_t *in, size_t size, uint8_t *out, size_t room, size_t *made)
{
    size_t at = 0, end = 0;
    while (at < size) {
        uint8_t token = in[at++];
        size_t length = token >> 4;
        if (!read_length(in, size, &at, &length) || length > size - at || length > room - end)
            return false;
        memcpy(out + end, in + at, length);
        at += length;
        end += length;
        if (at == size)
            break;
        if (size - at < 2)
            return false;
        size_t distance = in[at] | (size_t)in[at + 1] << 8;
        at += 2;
        length = token & 15;
        if (!read_length(in, size, &at, &length) || !distance || distance > end || room - end < 4
            || length > room - end - 4)
            return false;
        for (length += 4; length; length--, end++)
            out[end] = out[end - distance];
    }
    *made = end;
    return true;
}
