/* For measurements and tests: how often the program waited for the server, and for what. */
#include "link_parts.h"
#include <stdio.h>
#include <stdlib.h>

static struct {
    uint64_t sent[OP_END], waited[OP_END], round_trips, bytes_out, bytes_in;
} counts;

static void add(uint64_t *count, uint64_t more)
{
    __atomic_fetch_add(count, more, __ATOMIC_RELAXED);
}

void count_sent(int op, size_t bytes)
{
    add(&counts.sent[op], 1);
    add(&counts.bytes_out, bytes);
}

void count_received(size_t bytes)
{
    add(&counts.bytes_in, bytes);
}

void count_waited(int op)
{
    add(&counts.waited[op], 1);
    add(&counts.round_trips, 1);
}

static void write_counts(void)
{
    static const char *const names[OP_END] = {OPERATION_NAMES};
    const char *path = getenv("MILLIGPU_REMOTE_COUNTS"), *comma = "";
    FILE *file = path && link_is_up() ? fopen(path, "w") : NULL; /* not in a child of fork */
    if (!file)
        return;
    fprintf(file, "{\"round_trips\": %llu, \"bytes_out\": %llu, \"bytes_in\": %llu, \"operations\": {",
            (unsigned long long)counts.round_trips, (unsigned long long)counts.bytes_out,
            (unsigned long long)counts.bytes_in);
    for (int op = 0; op < OP_END; op++)
        if (counts.sent[op]) {
            fprintf(file, "%s\"%s\": [%llu, %llu]", comma, names[op], (unsigned long long)counts.sent[op],
                    (unsigned long long)counts.waited[op]);
            comma = ", ";
        }
    fprintf(file, "}}\n");
    fclose(file);
}

void counts_write_at_exit(void)
{
    atexit(write_counts);
}
