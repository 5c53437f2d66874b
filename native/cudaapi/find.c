/* Look-ups in the generated tables, shared by every library with this symbol set. */
#include "cudaapi.h"
#include <string.h>

static int better(const struct cudaapi_proc *candidate, const struct cudaapi_proc *best, int per_thread)
{
    if (!best)
        return 1;
    if (per_thread && candidate->per_thread != best->per_thread)
        return candidate->per_thread;
    return candidate->release > best->release;
}

/* The first row of `name`; rows of one name are adjacent. */
static unsigned first_row(const char *name)
{
    unsigned low = 0, high = cudaapi_proc_count;
    while (low < high) {
        unsigned middle = (low + high) / 2;
        if (strcmp(cudaapi_procs[middle].name, name) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

const struct cudaapi_proc *cudaapi_find(const char *name, int release, cuuint64_t flags, int *known)
{
    int per_thread = (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0;
    const struct cudaapi_proc *best = 0;
    *known = 0;
    for (unsigned at = first_row(name); at < cudaapi_proc_count && !strcmp(cudaapi_procs[at].name, name); at++) {
        const struct cudaapi_proc *row = &cudaapi_procs[at];
        *known = 1;
        if (row->release <= release && (per_thread || !row->per_thread) && better(row, best, per_thread))
            best = row;
    }
    return best;
}

static const struct cudaapi_error *find_error(CUresult error)
{
    for (unsigned at = 0; at < cudaapi_error_count; at++)
        if (cudaapi_errors[at].value == (int)error)
            return &cudaapi_errors[at];
    return 0;
}

CUresult cudaapi_error_string(CUresult error, const char **text)
{
    const struct cudaapi_error *found = find_error(error);
    if (text)
        *text = found ? found->words : 0;
    return found && text ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cudaapi_error_name(CUresult error, const char **text)
{
    const struct cudaapi_error *found = find_error(error);
    if (text)
        *text = found ? found->name : 0;
    return found && text ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
