/* The driver on which the worker is fuzzed. */
#pragma once
#include "worker.h"

void *driver_handle(void);                              /* a new one */
void driver_check(const void *handle, const char *who); /* ends the process if the driver did not make it */
CUresult driver_status(void);
void driver_start(void);
void driver_start_by_hand(void);
