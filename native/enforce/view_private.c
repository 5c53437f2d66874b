/* A function of NVML that no header declares. nvidia-smi asks it for private tables of the driver and does not start
 * without them. What they hold is not known here, so they are passed on as they are. */
#include "view.h"

API nvmlInternalGetExportTable(const void **table, const void *id);

API nvmlInternalGetExportTable(const void **table, const void *id)
{
    __typeof__(&nvmlInternalGetExportTable) next = nvmlapi_next("nvmlInternalGetExportTable");
    return next ? next(table, id) : NVML_ERROR_FUNCTION_NOT_FOUND;
}
