/* Zstandard frames without dictionaries, by RFC 8878. The names of the parts are the RFC's.
 *
 * The library cannot use libzstd: it is loaded into any container, and an image need not have it. */
#include "unpack.h"
#include <stdlib.h>
#include <string.h>

enum {
    MAGIC = (int)0xFD2FB528,
    SKIPPABLE = 0x184D2A50,
    BLOCK_MAX = 128 << 10,
    HUFFMAN_BITS = 11,
    FSE_BITS = 9,
    SYMBOLS = 256,
};

/* ---- bits ---- */

/* `count` bits from bit `at` upwards, at most 56; bits before the first and after the last are zero. */
static uint64_t bits_at(const uint8_t *data, size_t size, int64_t at, unsigned count)
{
    uint64_t value = 0;
    if (at < 0)
        return (uint64_t)-at >= count ? 0 : bits_at(data, size, 0, count - (unsigned)-at) << -at;
    size_t byte = (size_t)at / 8, there = byte < size ? size - byte : 0;
    if (there)
        memcpy(&value, data + byte, there < 8 ? there : 8);
    return value >> (at & 7) & ((UINT64_C(1) << count) - 1);
}

static unsigned highest_bit(uint64_t value)
{
    return 63u - (unsigned)__builtin_clzll(value);
}

/* A stream that is read from its end. The highest bit that is set marks the end. */
struct backward {
    const uint8_t *data;
    size_t size;
    int64_t left; /* bits; below zero after reading too many */
};

static bool backward_open(struct backward *bits, const uint8_t *data, size_t size)
{
    *bits = (struct backward){data, size, 0};
    if (!size || !data[size - 1])
        return false;
    bits->left = (int64_t)(size - 1) * 8 + highest_bit(data[size - 1]);
    return true;
}

static uint64_t take(struct backward *bits, unsigned count)
{
    bits->left -= count;
    return bits_at(bits->data, bits->size, bits->left, count);
}

/* ---- FSE tables ---- */

struct fse_state {
    uint16_t base;
    uint8_t symbol, bits;
};
struct fse {
    unsigned log;
    bool known;
    struct fse_state states[1 << FSE_BITS];
};

static bool fse_build(struct fse *table, const int16_t *counts, unsigned symbols, unsigned log)
{
    unsigned size = 1u << log, high = size, at = 0, step = (size >> 1) + (size >> 3) + 3;
    uint16_t next[SYMBOLS];
    for (unsigned symbol = 0; symbol < symbols; symbol++) {
        if (counts[symbol] == -1)
            table->states[--high].symbol = (uint8_t)symbol;
        next[symbol] = counts[symbol] == -1 ? 1 : (uint16_t)counts[symbol];
    }
    for (unsigned symbol = 0; symbol < symbols; symbol++)
        for (int copy = 0; copy < counts[symbol]; copy++) {
            table->states[at].symbol = (uint8_t)symbol;
            do
                at = (at + step) & (size - 1);
            while (at >= high);
        }
    if (at)
        return false;
    for (unsigned state = 0; state < size; state++) {
        struct fse_state *made = &table->states[state];
        unsigned value = next[made->symbol]++;
        if (!value)
            return false;
        made->bits = (uint8_t)(log - highest_bit(value));
        made->base = (uint16_t)((value << made->bits) - size);
    }
    table->log = log;
    return table->known = true;
}

/* The description of a table; `*used` is its length in bytes. */
static bool fse_read(struct fse *table, const uint8_t *in, size_t size, unsigned most_log, unsigned most_symbols,
                     size_t *used)
{
    int16_t counts[SYMBOLS];
    int64_t at = 4;
    unsigned symbols = 0, log = 5 + (unsigned)bits_at(in, size, 0, 4);
    if (log > most_log)
        return false;
    int left = 1 << log;
    while (left > 0) {
        /* values up to left + 1; the smaller ones take one bit less */
        unsigned width = highest_bit((unsigned)left + 1) + 1, less = (1u << (width - 1)) - 1;
        unsigned value = (unsigned)bits_at(in, size, at, width), few = (1u << width) - 2 - (unsigned)left;
        at += width;
        if ((value & less) < few) {
            value &= less;
            at--;
        } else if (value > less)
            value -= few;
        int count = (int)value - 1;
        if (symbols >= most_symbols || at > (int64_t)size * 8)
            return false;
        counts[symbols++] = (int16_t)count;
        left -= count < 0 ? 1 : count;
        for (unsigned zeros = count ? 0 : 3; zeros == 3;) {
            zeros = (unsigned)bits_at(in, size, at, 2);
            at += 2;
            if (symbols + zeros > most_symbols || at > (int64_t)size * 8)
                return false;
            memset(counts + symbols, 0, zeros * sizeof *counts);
            symbols += zeros;
        }
    }
    *used = (size_t)(at + 7) / 8;
    return left == 0 && fse_build(table, counts, symbols, log);
}

static void fse_next(const struct fse *table, unsigned *state, struct backward *bits)
{
    const struct fse_state *now = &table->states[*state];
    *state = now->base + (unsigned)take(bits, now->bits);
}

/* ---- Huffman codes, of literals ---- */

struct huffman {
    unsigned log; /* 0: none yet */
    struct {
        uint8_t symbol, bits;
    } codes[1 << HUFFMAN_BITS];
};

/* Each weight is that of the next symbol; the last one completes the sum to a power of two and is not stored. */
static bool huffman_build(struct huffman *table, uint8_t *weights, unsigned count)
{
    unsigned sum = 0, at = 0;
    for (unsigned symbol = 0; symbol < count; symbol++) {
        if (weights[symbol] > HUFFMAN_BITS)
            return false;
        sum += weights[symbol] ? 1u << (weights[symbol] - 1) : 0;
    }
    unsigned log = sum ? highest_bit(sum) + 1 : 0, rest = (1u << log) - sum;
    if (!log || log > HUFFMAN_BITS || rest & (rest - 1))
        return false;
    weights[count++] = (uint8_t)(highest_bit(rest) + 1);
    for (unsigned weight = 1; weight <= log; weight++)
        for (unsigned symbol = 0; symbol < count; symbol++)
            for (unsigned copy = 0; weights[symbol] == weight && copy < 1u << (weight - 1); copy++, at++) {
                table->codes[at].symbol = (uint8_t)symbol;
                table->codes[at].bits = (uint8_t)(log + 1 - weight);
            }
    table->log = log;
    return true;
}

/* Weights that two alternating states of one FSE table give, until the stream has no more bits. */
static bool compressed_weights(const uint8_t *in, size_t size, uint8_t *weights, unsigned *count)
{
    struct fse *table = malloc(sizeof *table);
    struct backward bits;
    size_t used;
    bool good = table && fse_read(table, in, size, 6, HUFFMAN_BITS + 1, &used) && used < size
                && backward_open(&bits, in + used, size - used);
    if (good) {
        unsigned state[2];
        state[0] = (unsigned)take(&bits, table->log);
        state[1] = (unsigned)take(&bits, table->log);
        good = bits.left >= 0;
        for (unsigned turn = 0; good; turn ^= 1) {
            if (*count >= SYMBOLS - 2) {
                good = false;
                break;
            }
            weights[(*count)++] = table->states[state[turn]].symbol;
            fse_next(table, &state[turn], &bits);
            if (bits.left < 0) {
                weights[(*count)++] = table->states[state[turn ^ 1]].symbol;
                break;
            }
        }
    }
    free(table);
    return good;
}

static bool huffman_read(struct huffman *table, const uint8_t *in, size_t size, size_t *used)
{
    uint8_t weights[SYMBOLS];
    unsigned count = 0;
    if (!size)
        return false;
    if (in[0] < 128) {
        *used = 1 + (size_t)in[0];
        if (*used > size || !compressed_weights(in + 1, in[0], weights, &count))
            return false;
    } else {
        unsigned there = in[0] - 127u;
        *used = 1 + (there + 1) / 2;
        if (*used > size)
            return false;
        for (; count < there; count++)
            weights[count] = count % 2 ? in[1 + count / 2] & 15 : in[1 + count / 2] >> 4;
    }
    return huffman_build(table, weights, count);
}

static bool huffman_stream(const struct huffman *table, const uint8_t *in, size_t size, uint8_t *out, size_t count)
{
    struct backward bits;
    if (!backward_open(&bits, in, size))
        return false;
    for (size_t made = 0; made < count; made++) {
        size_t code = bits_at(in, size, bits.left - table->log, table->log);
        out[made] = table->codes[code].symbol;
        bits.left -= table->codes[code].bits;
    }
    return bits.left == 0;
}

/* ---- a frame ---- */

struct frame {
    struct huffman huffman;
    struct fse tables[3]; /* of literal lengths, offsets and match lengths */
    uint64_t recent[3];   /* offsets */
    uint8_t literals[BLOCK_MAX];
    size_t literal_count;
    uint8_t *out;
    size_t room, end;
};

static uint64_t little(const uint8_t *in, unsigned bytes)
{
    uint64_t value = 0;
    for (unsigned at = 0; at < bytes; at++)
        value |= (uint64_t)in[at] << 8 * at;
    return value;
}

/* Four streams make a quarter each, after a table of the first three streams' sizes. */
static bool four_streams(struct frame *frame, const uint8_t *in, size_t size)
{
    size_t quarter = (frame->literal_count + 3) / 4, at = 6;
    if (size < at || 3 * quarter > frame->literal_count)
        return false;
    for (unsigned stream = 0; stream < 4; stream++) {
        size_t length = stream < 3 ? little(in + 2 * (size_t)stream, 2) : size - at;
        size_t count = stream < 3 ? quarter : frame->literal_count - 3 * quarter;
        if (length > size - at
            || !huffman_stream(&frame->huffman, in + at, length, frame->literals + stream * quarter, count))
            return false;
        at += length;
    }
    return true;
}

static bool compressed_literals(struct frame *frame, const uint8_t *in, size_t size, size_t *used)
{
    unsigned format = in[0] >> 2 & 3, bytes = format < 2 ? 3 : format + 2, width = format < 2 ? 10 : 4 * format + 6;
    if (size < bytes)
        return false;
    uint64_t head = little(in, bytes) >> 4;
    size_t packed = head >> width & ((1u << width) - 1), at = bytes, table = 0;
    frame->literal_count = head & ((1u << width) - 1);
    *used = bytes + packed;
    if (*used > size || frame->literal_count > BLOCK_MAX)
        return false;
    if ((in[0] & 3) == 2) {
        if (!huffman_read(&frame->huffman, in + at, packed, &table))
            return false;
        at += table;
        packed -= table;
    } else if (!frame->huffman.log)
        return false;
    return format ? four_streams(frame, in + at, packed)
                  : huffman_stream(&frame->huffman, in + at, packed, frame->literals, frame->literal_count);
}

static bool read_literals(struct frame *frame, const uint8_t *in, size_t size, size_t *used)
{
    if (!size)
        return false;
    unsigned type = in[0] & 3, format = in[0] >> 2 & 3, bytes = format == 3 ? 3 : format == 1 ? 2 : 1;
    if (type >= 2)
        return compressed_literals(frame, in, size, used);
    if (size < bytes)
        return false;
    frame->literal_count = little(in, bytes) >> (bytes == 1 ? 3 : 4);
    *used = bytes + (type ? 1 : frame->literal_count);
    if (*used > size || frame->literal_count > BLOCK_MAX)
        return false;
    if (type)
        memset(frame->literals, in[bytes], frame->literal_count);
    else
        memcpy(frame->literals, in + bytes, frame->literal_count);
    return true;
}

/* ---- sequences: literals, then a copy of earlier output ---- */

enum { LITERALS, OFFSETS, MATCHES, LITERAL_CODES = 36, OFFSET_CODES = 32, MATCH_CODES = 53 };

static const struct {
    unsigned codes, most_log, usual_codes, usual_log;
    int8_t usual[MATCH_CODES];
} kinds[3] = {
    {LITERAL_CODES, 9, 36, 6, {4, 3, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 1, 1,  1,  2,  2,
                               2, 2, 2, 2, 2, 2, 2, 3, 2, 1, 1, 1, 1, 1, -1, -1, -1, -1}},
    {OFFSET_CODES, 8, 29, 5, {1, 1, 1, 1, 1, 1, 2, 2, 2, 1,  1,  1,  1,  1, 1,
                              1, 1, 1, 1, 1, 1, 1, 1, 1, -1, -1, -1, -1, -1}},
    {MATCH_CODES, 9, 53, 6, {1, 4, 3, 2, 2, 2, 2, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,  1,  1,  1,  1,  1,  1, 1,
                             1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, -1, -1, -1, -1, -1, -1, -1}},
};

static bool read_table(struct frame *frame, unsigned kind, unsigned mode, const uint8_t *in, size_t size, size_t *used)
{
    struct fse *table = &frame->tables[kind];
    int16_t counts[MATCH_CODES];
    *used = 0;
    switch (mode) {
    case 0:
        for (unsigned code = 0; code < kinds[kind].usual_codes; code++)
            counts[code] = kinds[kind].usual[code];
        return fse_build(table, counts, kinds[kind].usual_codes, kinds[kind].usual_log);
    case 1:
        if (!size || in[0] >= kinds[kind].codes)
            return false;
        *used = 1;
        table->states[0] = (struct fse_state){.symbol = in[0]};
        table->log = 0;
        return table->known = true;
    case 2: return fse_read(table, in, size, kinds[kind].most_log, kinds[kind].codes, used) && *used <= size;
    default: return table->known;
    }
}

/* The first lengths have a code each; later codes stand for a range, whose width in bits grows. */
static uint64_t literal_length(unsigned code, struct backward *bits)
{
    static const uint8_t widths[] = {1, 1, 1, 1, 2, 2, 3, 3, 4, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};
    static const uint32_t bases[] = {16,  18,  20,  22,   24,   28,   32,   40,    48,    64,
                                     128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536};
    return code < 16 ? code : bases[code - 16] + take(bits, widths[code - 16]);
}

static uint64_t match_length(unsigned code, struct backward *bits)
{
    static const uint8_t widths[] = {1, 1, 1, 1, 2, 2, 3, 3, 4, 4, 5, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};
    static const uint32_t bases[] = {35,  37,  39,  41,   43,   47,   51,   59,    67,    83,   99,
                                     131, 259, 515, 1027, 2051, 4099, 8195, 16387, 32771, 65539};
    return code < 32 ? code + 3 : bases[code - 32] + take(bits, widths[code - 32]);
}

/* Small values stand for recent offsets; with no literals before them, for others of these. */
static uint64_t offset_of(struct frame *frame, uint64_t value, bool literals)
{
    uint64_t *recent = frame->recent, offset;
    unsigned which = (unsigned)(value > 3 ? 3 : value - (literals ? 1 : 0));
    if (value > 3)
        offset = value - 3;
    else if (which == 3)
        offset = recent[0] - 1;
    else
        offset = recent[which];
    if (which >= 2)
        recent[2] = recent[1];
    if (which >= 1) {
        recent[1] = recent[0];
        recent[0] = offset;
    }
    return offset;
}

static bool copy(struct frame *frame, size_t *taken, uint64_t literals, uint64_t offset, uint64_t length)
{
    if (literals > frame->literal_count - *taken || literals > frame->room - frame->end)
        return false;
    memcpy(frame->out + frame->end, frame->literals + *taken, literals);
    *taken += literals;
    frame->end += literals;
    if (length > frame->room - frame->end || (length && (!offset || offset > frame->end)))
        return false;
    for (; length; length--, frame->end++)
        frame->out[frame->end] = frame->out[frame->end - offset];
    return true;
}

static bool run_sequences(struct frame *frame, size_t count, struct backward *bits, size_t *taken)
{
    unsigned states[3];
    for (unsigned kind = 0; kind < 3; kind++)
        states[kind] = (unsigned)take(bits, frame->tables[kind].log);
    for (; count && bits->left >= 0; count--) {
        unsigned codes[3];
        for (unsigned kind = 0; kind < 3; kind++)
            codes[kind] = frame->tables[kind].states[states[kind]].symbol;
        uint64_t value = (UINT64_C(1) << codes[OFFSETS]) + take(bits, codes[OFFSETS]);
        uint64_t length = match_length(codes[MATCHES], bits), literals = literal_length(codes[LITERALS], bits);
        if (bits->left < 0 || !copy(frame, taken, literals, offset_of(frame, value, literals != 0), length))
            return false;
        if (count > 1) {
            fse_next(&frame->tables[LITERALS], &states[LITERALS], bits);
            fse_next(&frame->tables[MATCHES], &states[MATCHES], bits);
            fse_next(&frame->tables[OFFSETS], &states[OFFSETS], bits);
        }
    }
    return bits->left == 0;
}

static bool compressed_block(struct frame *frame, const uint8_t *in, size_t size)
{
    size_t at, taken = 0, count, used;
    struct backward bits;
    if (!read_literals(frame, in, size, &at) || at >= size)
        return false;
    count = in[at++];
    if (count >= 128) {
        unsigned bytes = count == 255 ? 2 : 1;
        if (size - at < bytes)
            return false;
        count = count == 255 ? little(in + at, 2) + 0x7F00 : (count - 128) << 8 | in[at];
        at += bytes;
    }
    if (count) {
        if (at >= size)
            return false;
        unsigned modes = in[at++];
        for (unsigned kind = 0; kind < 3; kind++, at += used)
            if (!read_table(frame, kind, modes >> (6 - 2 * kind) & 3, in + at, size - at, &used))
                return false;
        if (!backward_open(&bits, in + at, size - at) || !run_sequences(frame, count, &bits, &taken))
            return false;
    }
    return copy(frame, &taken, frame->literal_count - taken, 0, 0);
}

static bool block(struct frame *frame, unsigned type, const uint8_t *in, size_t size)
{
    if (type == 2)
        return compressed_block(frame, in, size);
    if (size > frame->room - frame->end)
        return false;
    if (type)
        memset(frame->out + frame->end, in[0], size);
    else
        memcpy(frame->out + frame->end, in, size);
    frame->end += size;
    return true;
}

/* Everything after the magic number; `*at` moves to the end of the frame. */
static bool read_frame(struct frame *frame, const uint8_t *in, size_t size, size_t *at)
{
    static const uint8_t id_bytes[] = {0, 1, 2, 4}, size_bytes[] = {0, 2, 4, 8};
    if (*at >= size)
        return false;
    unsigned head = in[(*at)++], single = head >> 5 & 1;
    *at += (single ? 0u : 1u) + id_bytes[head & 3] + (head >> 6 ? size_bytes[head >> 6] : single);
    frame->huffman.log = 0;
    for (unsigned kind = 0; kind < 3; kind++)
        frame->tables[kind].known = false;
    frame->recent[0] = 1;
    frame->recent[1] = 4;
    frame->recent[2] = 8;
    for (bool last = false; !last;) {
        if (*at > size || size - *at < 3)
            return false;
        uint64_t word = little(in + *at, 3);
        unsigned type = word >> 1 & 3;
        size_t length = (size_t)(word >> 3), there = type == 1 ? 1 : length;
        *at += 3;
        last = word & 1;
        if (type == 3 || there > size - *at || length > BLOCK_MAX || !block(frame, type, in + *at, length))
            return false;
        *at += there;
    }
    *at += head & 4; /* a checksum, which is the driver's to check */
    return *at <= size;
}

bool unpack_zstd(const uint8_t *in, size_t size, uint8_t *out, size_t room, size_t *made)
{
    struct frame *frame = malloc(sizeof *frame);
    bool good = frame && size;
    size_t at = 0;
    if (!good) {
        free(frame);
        return false;
    }
    frame->out = out;
    frame->room = room;
    frame->end = 0;
    while (good && at < size) {
        uint64_t magic = size - at < 8 ? size - at < 4 ? 0 : little(in + at, 4) : little(in + at, 8);
        at += 4;
        if ((magic & 0xFFFFFFF0u) == SKIPPABLE) {
            good = size - at >= 4 && magic >> 32 <= size - at - 4;
            at += 4 + (size_t)(magic >> 32);
        } else
            good = (uint32_t)magic == (uint32_t)MAGIC && read_frame(frame, in, size, &at);
    }
    *made = frame->end;
    free(frame);
    return good;
}
