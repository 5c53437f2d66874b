/* Loading modules and libraries: the program goes once, later only its hash. */
#define _GNU_SOURCE
#include "client.h"
#include "jit.h"
#include <fcntl.h>
#include <openssl/sha.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

enum { WRAPPER_MAGIC = 0x466243b1, FATBIN_MAGIC = (int)0xba55ed50 };

static uint64_t word_at(const void *image, size_t at, size_t size)
{
    uint64_t value = 0;
    memcpy(&value, (const char *)image + at, size);
    return value;
}

/* The length of an image, which only its own header knows. A wrapper is replaced by what it points to. */
static size_t image_size(const void **image)
{
    if ((uint32_t)word_at(*image, 0, 4) == (uint32_t)WRAPPER_MAGIC)
        *image = (const void *)(uintptr_t)word_at(*image, 8, 8);
    if ((uint32_t)word_at(*image, 0, 4) == (uint32_t)FATBIN_MAGIC)
        return word_at(*image, 6, 2) + word_at(*image, 8, 8);
    if (!memcmp(*image, "\177ELF", 4)) /* its section headers are at the end */
        return word_at(*image, 40, 8) + word_at(*image, 58, 2) * word_at(*image, 60, 2);
    return strlen(*image) + 1;
}

static int send_image(struct message *m, int op, uint64_t owner, const struct jit_options *options,
                      const unsigned char *hash, int how, const void *image, size_t size)
{
    int status = message_begin(m, op);
    if (status)
        return status;
    put_u64(m, owner);
    jit_put(m, options);
    put_u64(m, (uint64_t)how);
    put(m, hash, HASH_SIZE);
    put_u64(m, how == IMAGE_FULL ? size : 0);
    return how == IMAGE_FULL ? message_call_with(m, image, size) : message_call(m);
}

static CUresult load(int op, uint64_t *owner, const void *image, const struct jit_options *options)
{
    struct message m;
    unsigned char hash[HASH_SIZE] = {0};
    if (!facts)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (!image)
        return CUDA_ERROR_INVALID_VALUE;
    size_t size = image_size(&image);
    if (size > WIRE_FRAME_MAX / 2)
        return CUDA_ERROR_INVALID_IMAGE;
    int how = size >= IMAGE_HASH_FROM ? IMAGE_HASH : IMAGE_FULL;
    SHA256(image, size, hash);
    *owner = handle_new();
    int status = send_image(&m, op, *owner, options, hash, how, image, size);
    if (status == STATUS_NO_IMAGE)
        status = send_image(&m, op, *owner, options, hash, IMAGE_FULL, image, size);
    if (status != link_status_lost)
        jit_get_logs(&m, options);
    if (!status && !functions_learn(&m, *owner))
        return CUDA_ERROR_INVALID_IMAGE;
    return (CUresult)status;
}

API cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned int count, CUjit_option *names, void **values)
{
    uint64_t owner = 0;
    const struct jit_options options = {count, names, values};
    if (!module)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult status = load(OP_module_load, &owner, image, &options);
    if (!status)
        *module = (CUmodule)(uintptr_t)owner;
    return status;
}

API cuModuleLoadData(CUmodule *module, const void *image)
{
    return cuModuleLoadDataEx(module, image, 0, NULL, NULL);
}

API cuModuleLoadFatBinary(CUmodule *module, const void *image)
{
    return cuModuleLoadDataEx(module, image, 0, NULL, NULL);
}

/* The file is this machine's, so it is read here. */
API cuModuleLoad(CUmodule *module, const char *path)
{
    struct stat about;
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0)
        return path ? CUDA_ERROR_FILE_NOT_FOUND : CUDA_ERROR_INVALID_VALUE;
    char *image = fstat(file, &about) || about.st_size <= 0 ? NULL : calloc(1, (size_t)about.st_size + 1);
    bool is_read = image && read(file, image, (size_t)about.st_size) == about.st_size;
    close(file);
    CUresult status = is_read ? cuModuleLoadData(module, image) : CUDA_ERROR_INVALID_IMAGE;
    free(image);
    return status;
}

API cuLibraryLoadData(CUlibrary *library, const void *image, CUjit_option *names, void **values, unsigned int count,
                      CUlibraryOption *more, void **more_values, unsigned int more_count)
{
    uint64_t owner = 0;
    const struct jit_options options = {count, names, values};
    (void)more; /* whether the driver keeps the image: here it is always sent */
    (void)more_values;
    (void)more_count;
    if (!library)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult status = load(OP_library_load, &owner, image, &options);
    if (!status)
        *library = (CUlibrary)(uintptr_t)owner;
    return status;
}
