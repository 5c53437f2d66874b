/* Modules contain variables, which take memory as an allocation does. */
#include "enforce.h"
#include "image.h"
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

/* Modules without a context are charged on the first GPU if none is current. */
static int loading_gpu(void)
{
    int gpu = current_gpu();
    return gpu >= 0 ? gpu : device_gpu(0);
}

static unsigned capability(void)
{
    int gpu = loading_gpu(), major = 0, minor = 0;
    CUdevice device = gpu < 0 ? 0 : gpu_device((unsigned)gpu);
    cudaapi_real.cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device);
    cudaapi_real.cuDeviceGetAttribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device);
    return 10 * (unsigned)major + (unsigned)minor;
}

static uint64_t sized_bytes(const void *image, size_t size)
{
    static _Atomic bool told;
    struct image_need need = image_need(image, size, capability());
    if (need.unread && !told) {
        told = true;
        say("a module has a part that cannot be read; it is charged %llu bytes by its size",
            (unsigned long long)need.bytes);
    }
    return need.bytes;
}

static uint64_t bytes_of(const void *image)
{
    return sized_bytes(image, IMAGE_UNKNOWN);
}

/* The image in a file, followed by the zero byte that ends PTX. */
static uint64_t file_bytes(const char *path)
{
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    off_t length = file < 0 ? -1 : lseek(file, 0, SEEK_END);
    uint64_t bytes = 0;
    if (length > 0) {
        size_t room = (size_t)length + 1;
        char *text = mmap(0, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (text != MAP_FAILED) {
            if (pread(file, text, (size_t)length, 0) == length && length >= 4)
                bytes = sized_bytes(text, (size_t)length);
            munmap(text, room);
        }
    }
    if (file >= 0)
        close(file);
    return bytes;
}

API cuModuleLoad(CUmodule *made, const char *path)
{
    return ALLOCATE(HOLDING_MODULE, "cuModuleLoad", file_bytes(path), made, cudaapi_real.cuModuleLoad(made, path));
}

API cuModuleLoadData(CUmodule *made, const void *image)
{
    return ALLOCATE(HOLDING_MODULE, "cuModuleLoadData", bytes_of(image), made,
                    cudaapi_real.cuModuleLoadData(made, image));
}

API cuModuleLoadDataEx(CUmodule *made, const void *image, unsigned count, CUjit_option *options, void **values)
{
    return ALLOCATE(HOLDING_MODULE, "cuModuleLoadDataEx", bytes_of(image), made,
                    cudaapi_real.cuModuleLoadDataEx(made, image, count, options, values));
}

API cuModuleLoadFatBinary(CUmodule *made, const void *image)
{
    return ALLOCATE(HOLDING_MODULE, "cuModuleLoadFatBinary", bytes_of(image), made,
                    cudaapi_real.cuModuleLoadFatBinary(made, image));
}

API cuModuleUnload(CUmodule module)
{
    return GIVE_BACK(HOLDING_MODULE, module, cudaapi_real.cuModuleUnload(module));
}

/* ---- libraries: modules without a context; charged on the GPU that is current when they are loaded ---- */
static CUresult library_begin(struct charge *charge, uint64_t bytes)
{
    return charge_begin_on(charge, "cuLibraryLoad", loading_gpu(), bytes);
}

static CUresult library_end(struct charge charge, CUresult status, const CUlibrary *made)
{
    if (status || charge.gpu < 0 || !charge.bytes)
        return charge_end(charge, status, HOLDING_LIBRARY, 0);
    ledger_put((struct holding){
        .kind = HOLDING_LIBRARY, .gpu = (unsigned)charge.gpu, .handle = (uintptr_t)*made, .bytes = charge.bytes});
    return CUDA_SUCCESS;
}

API cuLibraryLoadData(CUlibrary *made, const void *code, CUjit_option *options, void **values, unsigned count,
                      CUlibraryOption *library_options, void **library_values, unsigned library_count)
{
    struct charge charge;
    CUresult status = library_begin(&charge, bytes_of(code));
    if (status)
        return status;
    status = cudaapi_real.cuLibraryLoadData(made, code, options, values, count, library_options, library_values,
                                            library_count);
    return library_end(charge, status, made);
}

API cuLibraryLoadFromFile(CUlibrary *made, const char *path, CUjit_option *options, void **values, unsigned count,
                          CUlibraryOption *library_options, void **library_values, unsigned library_count)
{
    struct charge charge;
    CUresult status = library_begin(&charge, file_bytes(path));
    if (status)
        return status;
    status = cudaapi_real.cuLibraryLoadFromFile(made, path, options, values, count, library_options, library_values,
                                                library_count);
    return library_end(charge, status, made);
}

API cuLibraryUnload(CUlibrary library)
{
    return GIVE_BACK(HOLDING_LIBRARY, library, cudaapi_real.cuLibraryUnload(library));
}
