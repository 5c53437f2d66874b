/* The linker: joins pieces of PTX into one. The result is the joined text, which loads like any other PTX; machine code
 * is not supported. */
#include "softgpu.h"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct linker {
    struct context *context;
    char *text;
    size_t size;
    /* Where the log is written: the caller keeps these buffers until the linker is destroyed. */
    unsigned options;
    CUjit_option *names;
    void **values;
    bool complete;
};

API cuLinkCreate_v2(unsigned count, CUjit_option *options, void **values, CUlinkState *made)
{
    struct context *context;
    CUresult status = context_current(&context);
    if (status)
        return status;
    if (!made || (count && (!options || !values)))
        return CUDA_ERROR_INVALID_VALUE;
    struct linker *linker = calloc(1, sizeof *linker);
    if (linker && count && !(linker->names = malloc(count * sizeof *options))) {
        free(linker);
        linker = 0;
    }
    if (!linker || !(*made = handle_new(HANDLE_LINKER, linker))) {
        free(linker);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    linker->context = context;
    linker->options = count;
    linker->values = values;
    if (count)
        memcpy(linker->names, options, count * sizeof *options);
    return CUDA_SUCCESS;
}

/* A module declares its PTX version and target once; later pieces must not repeat them. */
static const char *without_head(const char *text)
{
    const char *size = strstr(text, ".address_size"), *target = strstr(text, ".target");
    const char *last = size ? size : target;
    const char *end = last ? strchr(last, '\n') : 0;
    return end ? end : text;
}

static CUresult append(struct linker *linker, const char *text)
{
    const char *piece = linker->size ? without_head(text) : text;
    size_t length = strlen(piece);
    char *larger = realloc(linker->text, linker->size + length + 2);
    if (!larger)
        return CUDA_ERROR_OUT_OF_MEMORY;
    memcpy(larger + linker->size, piece, length);
    memcpy(larger + linker->size + length, "\n", 2);
    linker->text = larger;
    linker->size += length + 1;
    return CUDA_SUCCESS;
}

API cuLinkAddData_v2(CUlinkState handle, CUjitInputType type, void *data, size_t size, const char *name, unsigned count,
                     CUjit_option *options, void **values)
{
    struct linker *linker = handle_get(HANDLE_LINKER, handle);
    (void)name;
    (void)count;
    (void)options;
    (void)values;
    if (!linker || linker->complete)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!data || !size)
        return CUDA_ERROR_INVALID_VALUE;
    if (type != CU_JIT_INPUT_PTX)
        return CUDA_ERROR_NO_BINARY_FOR_GPU;
    char *text = calloc(1, size + 4);
    if (!text)
        return CUDA_ERROR_OUT_OF_MEMORY;
    memcpy(text, data, size);
    CUresult status = append(linker, text);
    free(text);
    return status;
}

API cuLinkAddFile_v2(CUlinkState handle, CUjitInputType type, const char *path, unsigned count, CUjit_option *options,
                     void **values)
{
    CUresult status;
    char *text = read_text(path, &status);
    if (!status)
        status = cuLinkAddData_v2(handle, type, text, strlen(text), path, count, options, values);
    free(text);
    return status;
}

/* Compile now, so that errors appear here as with the real linker; loading then finds the result in the cache. */
API cuLinkComplete(CUlinkState handle, void **image, size_t *size)
{
    struct linker *linker = handle_get(HANDLE_LINKER, handle);
    int descriptor;
    if (!linker)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!image || !linker->text)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult status = module_compile(linker->context->card, linker->text, linker->options, linker->names,
                                     linker->values, &descriptor);
    if (status)
        return status;
    close(descriptor);
    linker->complete = true;
    *image = linker->text;
    if (size)
        *size = linker->size + 1; /* including the zero byte at its end, which callers copy too */
    return CUDA_SUCCESS;
}

API cuLinkDestroy(CUlinkState handle)
{
    struct linker *linker = handle_drop(HANDLE_LINKER, handle);
    if (!linker)
        return CUDA_ERROR_INVALID_HANDLE;
    free(linker->text);
    free(linker->names);
    free(linker);
    return CUDA_SUCCESS;
}
