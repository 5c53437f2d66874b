/* What the parts of the remote libnvidia-ml.so.1 share. */
#pragma once
#include "nvmlapi.h"
#include "link.h"

#define stream_number handle_number
enum { STATUS_INVALID_VALUE = NVML_ERROR_INVALID_ARGUMENT };
