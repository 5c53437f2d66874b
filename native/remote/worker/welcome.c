/* The handshake. The driver is opened only when the client has proved itself. */
#include "worker.h"
#include <dlfcn.h>
#include <openssl/crypto.h>
#include <stdio.h>
#include <stdlib.h>

static int not_there(void)
{
    return CUDA_ERROR_NOT_SUPPORTED;
}

static int not_there_nvml(void)
{
    return NVML_ERROR_FUNCTION_NOT_FOUND;
}

/* A client may call functions of both APIs, and opens the driver of one. */
void drivers_begin(void)
{
    void **cuda = (void **)&real_cuda, **nvml = (void **)&real_nvml;
    for (unsigned i = 0; i < real_cuda_count; i++)
        cuda[i] = (void *)not_there;
    for (unsigned i = 0; i < real_nvml_count; i++)
        nvml[i] = (void *)not_there_nvml;
}

static bool open_driver(const char *name, void **table, const char *const *names, unsigned count)
{
    void *driver = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (!driver)
        fprintf(stderr, "worker: %s\n", dlerror());
    for (unsigned i = 0; driver && i < count; i++) {
        void *found = dlsym(driver, names[i]);
        table[i] = found ? found : table[i];
    }
    return driver;
}

static int start_cuda(void)
{
    bool is_open = open_driver("libcuda.so.1", (void **)&real_cuda, real_cuda_names, real_cuda_count);
    return is_open ? (int)real_cuda.cuInit(0) : (int)CUDA_ERROR_NO_DEVICE;
}

static int start_nvml(void)
{
    bool is_open = open_driver("libnvidia-ml.so.1", (void **)&real_nvml, real_nvml_names, real_nvml_count);
    return is_open ? (int)real_nvml.nvmlInit_v2() : (int)NVML_ERROR_DRIVER_NOT_LOADED;
}

static void describe(struct wire_device *device, int number, int count)
{
    CUuuid uuid;
    size_t memory = 0;
    real_cuda.cuDeviceGetName(device->name, sizeof device->name, number);
    if (!real_cuda.cuDeviceGetUuid_v2(&uuid, number))
        memcpy(device->uuid, &uuid, sizeof device->uuid);
    real_cuda.cuDeviceTotalMem_v2(&memory, number);
    device->memory = memory;
    for (int i = 1; i < FACT_ATTRIBUTES; i++)
        device->statuses[i] = (int)real_cuda.cuDeviceGetAttribute(&device->attributes[i], i, number);
    for (int i = 0; i < count; i++)
        if (i != number)
            real_cuda.cuDeviceCanAccessPeer(&device->peers[i], number, i);
}

static void answer_devices(struct request *r, struct wire_welcome *about)
{
    int count = 0, version = 0;
    real_cuda.cuDeviceGetCount(&count);
    real_cuda.cuDriverGetVersion(&version);
    count = count > FACT_DEVICES ? FACT_DEVICES : count;
    about->driver = (uint32_t)(version < CUDA_VERSION ? version : CUDA_VERSION);
    about->devices = (uint32_t)count;
    answer_put(r, about, sizeof *about);
    for (int i = 0; i < count; i++) {
        struct wire_device device;
        memset(&device, 0, sizeof device);
        describe(&device, i, count);
        answer_put(r, &device, sizeof device);
    }
}

static uint32_t common_version(const struct wire_hello *hello)
{
    uint32_t version = hello->version < WIRE_VERSION ? hello->version : WIRE_VERSION;
    return version >= hello->version_min && version >= WIRE_VERSION_MIN ? version : 0;
}

void welcome(struct request *r, const unsigned char *key)
{
    struct wire_hello hello;
    drivers_begin();
    if (r->head.op != OP_hello)
        end("the first message is no hello");
    take(r, &hello, sizeof hello);
    struct wire_welcome about = {.version = common_version(&hello), .device_size = sizeof(struct wire_device)};
    if (r->status || hello.magic != WIRE_MAGIC)
        end("the first message is not valid");
    if (CRYPTO_memcmp(hello.key, key, KEY_SIZE))
        r->status = CUDA_ERROR_NOT_PERMITTED;
    else if (!about.version)
        r->status = CUDA_ERROR_SYSTEM_DRIVER_MISMATCH;
    else
        r->status = hello.api == API_NVML ? start_nvml() : start_cuda();
    if (!r->status && hello.api == API_NVML)
        answer_put(r, &about, sizeof about);
    else if (!r->status)
        answer_devices(r, &about);
    int refused = r->status;
    out_reply(r);
    if (refused)
        end("the client was refused");
}
