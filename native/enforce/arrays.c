/* Arrays and mipmapped arrays. The driver does not report how much memory an array takes, so the charge is what its
 * elements need in rows like those of pitched memory. Sparse and deferred arrays take nothing by themselves: they are
 * mapped to memory that cuMemCreate was charged for. */
#include "enforce.h"

enum { ROW = 512, MOST_LEVELS = 32 };

static uint64_t element_bytes(CUarray_format format, unsigned channels)
{
    switch ((int)format) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
    case CU_AD_FORMAT_SIGNED_INT8: return channels;
    case CU_AD_FORMAT_UNSIGNED_INT16:
    case CU_AD_FORMAT_SIGNED_INT16:
    case CU_AD_FORMAT_HALF: return 2ull * channels;
    case CU_AD_FORMAT_UNSIGNED_INT32:
    case CU_AD_FORMAT_SIGNED_INT32:
    case CU_AD_FORMAT_FLOAT: return 4ull * channels;
    default: return 8; /* the largest of the normalized, compressed and video formats */
    }
}

static uint64_t times(uint64_t a, uint64_t b)
{
    uint64_t product;
    return __builtin_mul_overflow(a, b, &product) ? UINT64_MAX : product;
}

static uint64_t at_least_one(uint64_t value)
{
    return value ? value : 1;
}

static uint64_t level_bytes(uint64_t element, uint64_t width, uint64_t height, uint64_t depth)
{
    uint64_t row = times(at_least_one(width), element);
    row = row > UINT64_MAX - ROW ? row : (row + ROW - 1) / ROW * ROW;
    return times(times(row, at_least_one(height)), at_least_one(depth));
}

static uint64_t box_bytes(const CUDA_ARRAY3D_DESCRIPTOR *box, unsigned levels)
{
    uint64_t element = element_bytes(box->Format, box->NumChannels), sum = 0;
    bool layered = box->Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP);
    if (box->Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING))
        return 0;
    for (unsigned level = 0; level < levels && level < MOST_LEVELS; level++) {
        uint64_t depth = layered ? box->Depth : box->Depth >> level;
        uint64_t bytes = level_bytes(element, box->Width >> level, box->Height >> level, depth);
        sum = bytes > UINT64_MAX - sum ? UINT64_MAX : sum + bytes;
    }
    return sum;
}

API cuArrayCreate_v2(CUarray *made, const CUDA_ARRAY_DESCRIPTOR *wanted)
{
    uint64_t element = wanted ? element_bytes(wanted->Format, wanted->NumChannels) : 0;
    return ALLOCATE(HOLDING_ARRAY, "cuArrayCreate", wanted ? level_bytes(element, wanted->Width, wanted->Height, 1) : 0,
                    made, cudaapi_real.cuArrayCreate_v2(made, wanted));
}

API cuArrayCreate(CUarray *made, const CUDA_ARRAY_DESCRIPTOR_v1 *wanted)
{
    uint64_t element = wanted ? element_bytes(wanted->Format, wanted->NumChannels) : 0;
    return ALLOCATE(HOLDING_ARRAY, "cuArrayCreate", wanted ? level_bytes(element, wanted->Width, wanted->Height, 1) : 0,
                    made, cudaapi_real.cuArrayCreate(made, wanted));
}

API cuArray3DCreate_v2(CUarray *made, const CUDA_ARRAY3D_DESCRIPTOR *wanted)
{
    return ALLOCATE(HOLDING_ARRAY, "cuArray3DCreate", wanted ? box_bytes(wanted, 1) : 0, made,
                    cudaapi_real.cuArray3DCreate_v2(made, wanted));
}

API cuArray3DCreate(CUarray *made, const CUDA_ARRAY3D_DESCRIPTOR_v1 *wanted)
{
    CUDA_ARRAY3D_DESCRIPTOR box = {0};
    if (wanted)
        box = (CUDA_ARRAY3D_DESCRIPTOR){wanted->Width,  wanted->Height,      wanted->Depth,
                                        wanted->Format, wanted->NumChannels, wanted->Flags};
    return ALLOCATE(HOLDING_ARRAY, "cuArray3DCreate", wanted ? box_bytes(&box, 1) : 0, made,
                    cudaapi_real.cuArray3DCreate(made, wanted));
}

API cuArrayDestroy(CUarray array)
{
    return GIVE_BACK(HOLDING_ARRAY, array, cudaapi_real.cuArrayDestroy(array));
}

API cuMipmappedArrayCreate(CUmipmappedArray *made, const CUDA_ARRAY3D_DESCRIPTOR *wanted, unsigned levels)
{
    return ALLOCATE(HOLDING_MIPMAP, "cuMipmappedArrayCreate", wanted ? box_bytes(wanted, levels) : 0, made,
                    cudaapi_real.cuMipmappedArrayCreate(made, wanted, levels));
}

API cuMipmappedArrayDestroy(CUmipmappedArray array)
{
    return GIVE_BACK(HOLDING_MIPMAP, array, cudaapi_real.cuMipmappedArrayDestroy(array));
}
