/* Opens the tenant's pages and the driver's library. If anything is missing or invalid, this process has no device. */
#include "enforce.h"
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

/* Programs that close descriptors by number close low ones. */
enum { HIGH_DESCRIPTOR = 512 };

const struct mg_limits_page *tenant_limits;
struct mg_usage_page *tenant_usage;
int tenant_usage_file = -1;

static int high_descriptor(int file)
{
    int high = file < 0 ? -1 : fcntl(file, F_DUPFD_CLOEXEC, HIGH_DESCRIPTOR);
    if (high < 0)
        return file;
    close(file);
    return high;
}

static const char *open_usage(void)
{
    tenant_usage_file = high_descriptor(folder_open("usage", O_RDWR));
    struct mg_usage_page *page = folder_map(tenant_usage_file, sizeof *page, PROT_READ | PROT_WRITE);
    if (!page)
        return "the usage page cannot be opened";
    if (page->magic != MG_USAGE_MAGIC || page->version != MG_PAGES_VERSION || page->slot_count != MG_USAGE_SLOTS)
        return "the usage page is not valid";
    tenant_usage = page;
    return 0;
}

/* The function behind every symbol if there is no driver. Called with any arguments; it reads none. */
static CUresult no_device(void)
{
    return CUDA_ERROR_NO_DEVICE;
}
static CUresult not_supported(void)
{
    return CUDA_ERROR_NOT_SUPPORTED;
}

static void fill_table(void *driver)
{
    void **table = (void **)&cudaapi_real;
    for (unsigned at = 0; at < CUDAAPI_REAL_COUNT; at++) {
        void *found = driver ? dlsym(driver, cudaapi_real_names[at]) : (void *)&no_device;
        table[at] = found ? found : (void *)&not_supported;
    }
}

static void before_fork(void)
{
    ledger_before_fork();
    virtual_before_fork();
    pools_before_fork();
    granules_before_fork();
    account_before_fork();
}

static void in_parent(void)
{
    account_in_parent();
    granules_in_parent();
    pools_in_parent();
    virtual_in_parent();
    ledger_in_parent();
}

static void in_child(void)
{
    account_in_child();
    granules_in_child();
    pools_in_child();
    virtual_in_child();
    ledger_in_child();
    contexts_in_child();
    devices_in_child();
}

/* The loader runs this when it has loaded the library, before the program can call anything. */
__attribute__((constructor)) static void tenant_open(void)
{
    void *driver = 0;
    folder_find();
    const char *problem = folder_limits(&tenant_limits);
    if (!problem)
        problem = open_usage();
    if (!problem && !(driver = folder_library("libcuda.so.1")))
        problem = dlerror();
    if (problem) {
        tenant_limits = 0;
        say("no GPU for this process: %s (%s)", problem, tenant_folder);
    }
    fill_table(problem ? 0 : driver);
    pthread_atfork(before_fork, in_parent, in_child);
}
