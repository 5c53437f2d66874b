/* Matrix products of a warp: gather the lanes' values, multiply, and give each lane its part of the result. */
#include "engine.h"
#include <math.h>
#include <string.h>

enum { MOST_MK = 1024, MOST_KN = 512, MOST_MN = 256 };

/* Mirrored by llvm/matrix.py. */
enum kind { F16, BF16, TF32, F32, F64, S8, U8, S4, U4, S32, E4M3, E5M2 };

struct fragments {
    void *d;
    const void *a, *b, *c;
};

/* The fields that the compiler packs into a word. */
struct product {
    int m, n, k;
    enum kind a, b, c, d;
    bool linear; /* the fragments of `wmma`, whose layout is free to choose: row by row, lane by lane */
    bool finite;
};

static struct product unpack(uint32_t code)
{
    return (struct product){
        .m = (code & 7) * 8,
        .n = (code >> 3 & 7) * 8,
        .k = (code >> 6 & 31) * 4,
        .a = code >> 11 & 15,
        .b = code >> 15 & 15,
        .c = code >> 19 & 15,
        .d = code >> 23 & 15,
        .linear = code >> 27 & 1,
        .finite = code >> 28 & 1,
    };
}

static int bits_of(enum kind kind)
{
    static const int bits[] = {16, 16, 32, 32, 64, 8, 8, 4, 4, 32, 8, 8};
    return bits[kind];
}

static double from_float_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static double from_half_bits(uint16_t bits)
{
    _Float16 value;
    memcpy(&value, &bits, sizeof value);
    return (double)value;
}

/* The i-th element of a lane's registers; all kinds are exact in a double. */
static double element(const void *from, int at, enum kind kind)
{
    int bits = bits_of(kind);
    uint64_t raw = 0;
    double whole;
    memcpy(&raw, (const char *)from + at * bits / 8, bits < 8 ? 1 : (size_t)bits / 8);
    switch (kind) {
    case F16: return from_half_bits((uint16_t)raw);
    case BF16: return from_float_bits((uint32_t)raw << 16);
    case TF32: return from_float_bits((uint32_t)raw & ~0x1fffu); /* the other bits are ignored */
    case F32: return from_float_bits((uint32_t)raw);
    case F64: memcpy(&whole, &raw, sizeof whole); return whole;
    case S8: return (int8_t)raw;
    case U8: return (uint8_t)raw;
    case S4: return (int8_t)((raw >> 4 * (at & 1)) << 4) >> 4;
    case U4: return raw >> 4 * (at & 1) & 15;
    case E5M2: return from_half_bits((uint16_t)(raw << 8));
    case E4M3:
        if ((raw & 127) == 127)
            return NAN;
        return from_half_bits((uint16_t)((raw & 128) << 8 | (raw & 127) << 7)) * 256;
    default: return (int32_t)raw;
    }
}

static int32_t to_integer(double value, bool finite)
{
    if (finite)
        return value > INT32_MAX ? INT32_MAX : value < INT32_MIN ? INT32_MIN : (int32_t)value;
    return (int32_t)(uint32_t)(int64_t)value;
}

static void put(void *to, int at, enum kind kind, double value, bool finite)
{
    _Float16 half = (_Float16)value;
    float single = (float)value;
    int32_t whole;
    char *place = (char *)to + at * bits_of(kind) / 8;
    switch (kind) {
    case F16: memcpy(place, &half, sizeof half); break;
    case F64: memcpy(place, &value, sizeof value); break;
    case S32:
        whole = to_integer(value, finite);
        memcpy(place, &whole, sizeof whole);
        break;
    default: memcpy(place, &single, sizeof single);
    }
}

/* How many elements of a matrix a lane holds; `wmma` holds f16 elements twice if the matrix is small. */
static int held(const struct product *p, int size, enum kind kind, bool factor)
{
    return p->linear && factor && kind == F16 ? 16 : size / WARP;
}

/* The position of a lane's i-th element, as the PTX manual shows it for the fragments of `mma`. */
static int place_a(const struct product *p, int lane, int at)
{
    if (p->linear)
        return (lane * held(p, p->m * p->k, p->a, true) + at) % (p->m * p->k);
    int packed = bits_of(p->a) > 32 ? 1 : 32 / bits_of(p->a), word = at / packed, tall = p->m == 16;
    int row = (lane >> 2) + (tall ? (word & 1) * 8 : 0), block = tall ? word >> 1 : word;
    return row * p->k + (lane & 3) * packed + at % packed + block * 4 * packed;
}

static int place_b(const struct product *p, int lane, int at)
{
    if (p->linear)
        return (lane * held(p, p->k * p->n, p->b, true) + at) % (p->k * p->n);
    int packed = bits_of(p->b) > 32 ? 1 : 32 / bits_of(p->b);
    int row = (lane & 3) * packed + at % packed + at / packed * 4 * packed;
    return row * p->n + (lane >> 2);
}

static int place_c(const struct product *p, int lane, int at)
{
    if (p->linear)
        return lane * held(p, p->m * p->n, p->c, false) + at;
    return ((lane >> 2) + (at >> 1) * 8) * p->n + (lane & 3) * 2 + (at & 1);
}

static void multiply(const struct product *p, const double *a, const double *b, double *c)
{
    for (int row = 0; row < p->m; row++)
        for (int at = 0; at < p->k; at++)
            for (int column = 0; column < p->n; column++) {
                double *sum = &c[row * p->n + column], x = a[row * p->k + at], y = b[at * p->n + column];
                /* Only a product of doubles is not exact by itself. */
                *sum = p->a == F64 ? fma(x, y, *sum) : *sum + x * y;
            }
}

void warp_matrix(struct sg_fiber *lanes, uint32_t code)
{
    struct product p = unpack(code);
    double a[MOST_MK], b[MOST_KN], c[MOST_MN];
    for (int lane = 0; lane < WARP; lane++) {
        const struct fragments *part = (const void *)(uintptr_t)lanes[lane].value;
        for (int at = 0; at < held(&p, p.m * p.k, p.a, true); at++)
            a[place_a(&p, lane, at)] = element(part->a, at, p.a);
        for (int at = 0; at < held(&p, p.k * p.n, p.b, true); at++)
            b[place_b(&p, lane, at)] = element(part->b, at, p.b);
        for (int at = 0; at < held(&p, p.m * p.n, p.c, false); at++)
            c[place_c(&p, lane, at)] = element(part->c, at, p.c);
    }
    multiply(&p, a, b, c);
    for (int lane = 0; lane < WARP; lane++) {
        const struct fragments *part = (const void *)(uintptr_t)lanes[lane].value;
        for (int at = 0; at < held(&p, p.m * p.n, p.c, false); at++)
            put(part->d, at, p.d, c[place_c(&p, lane, at)], p.finite);
    }
}

void sg_mma(struct sg_fiber *fiber, uint32_t product, void *d, const void *a, const void *b, const void *c)
{
    struct fragments part = {d, a, b, c};
    struct engine *engine = fiber->engine;
    /* Every lane of the warp must take part; otherwise a real GPU would hang or give wrong results. */
    if (engine->warps[fiber->linear / WARP].live != ~0u)
        fault_raise(CUDA_ERROR_ILLEGAL_INSTRUCTION);
    sg_warp(fiber, SG_MMA, ~0u, (uint64_t)(uintptr_t)&part, product, 0);
}
