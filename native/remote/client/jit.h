/* Options of the driver's compiler: numbers go to the worker, logs come back. */
#pragma once
#include "client.h"

struct jit_options {
    unsigned count;
    CUjit_option *names;
    void **values;
};

void jit_put(struct message *m, const struct jit_options *options);
void jit_get_logs(struct message *m, const struct jit_options *options);
