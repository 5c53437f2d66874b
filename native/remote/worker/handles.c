/* The client's numbers for what the driver knows by pointers. A client can name nothing but what is in its tables. */
#include "worker.h"
#include <pthread.h>
#include <stdlib.h>

struct table {
    void **rows;
    size_t room;
};
static struct table chosen_by_client, chosen_here;
static struct {
    void *real;
    uint64_t number;
} *numbers; /* by pointer; open addressing */
static size_t number_room, number_count;
static uint64_t next_here;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static size_t place_of(const void *real)
{
    size_t at = (uintptr_t)real * UINT64_C(0x9e3779b97f4a7c15) >> 30 & (number_room - 1);
    while (numbers[at].real && numbers[at].real != real)
        at = (at + 1) & (number_room - 1);
    return at;
}

static void *allocate(size_t count, size_t each)
{
    void *memory = calloc(count, each);
    if (!memory)
        end("no memory for handles");
    return memory;
}

static void number_set(void *real, uint64_t number)
{
    if ((number_count + 1) * 2 > number_room) {
        __typeof__(numbers) old = numbers;
        size_t room = number_room;
        number_room = room ? room * 2 : 1024;
        numbers = allocate(number_room, sizeof *numbers);
        for (size_t i = 0; i < room; i++)
            if (old[i].real)
                numbers[place_of(old[i].real)] = old[i];
        free(old);
    }
    size_t at = place_of(real);
    number_count += !numbers[at].real;
    numbers[at].real = real;
    numbers[at].number = number;
}

static void row_set(struct table *table, uint64_t row, void *real)
{
    if (row >= HANDLES_MAX)
        end("more handles than a client may have");
    if (row >= table->room) {
        size_t room = table->room ? table->room : 1024;
        while (room <= row)
            room *= 2;
        void **larger = allocate(room, sizeof *larger);
        if (table->rows)
            memcpy(larger, table->rows, table->room * sizeof *larger);
        free(table->rows);
        table->rows = larger;
        table->room = room;
    }
    table->rows[row] = real;
}

void handle_set(uint64_t number, void *real)
{
    if (number < HANDLE_CLIENT || number >= HANDLE_SERVER || number % HANDLE_STEP)
        end("a handle that no client chooses");
    pthread_mutex_lock(&lock);
    row_set(&chosen_by_client, (number - HANDLE_CLIENT) / HANDLE_STEP, real);
    if (real)
        number_set(real, number);
    pthread_mutex_unlock(&lock);
}

uint64_t handle_find(void *real)
{
    uint64_t number = (uintptr_t)real;
    if (number < HANDLE_STEP)
        return number;
    pthread_mutex_lock(&lock);
    size_t at = number_room ? place_of(real) : 0;
    if (number_room && numbers[at].real)
        number = numbers[at].number;
    else {
        row_set(&chosen_here, next_here, real);
        number = HANDLE_SERVER + HANDLE_STEP * next_here++;
        number_set(real, number);
    }
    pthread_mutex_unlock(&lock);
    return number;
}

static void *handle_of(struct request *r, uint64_t number)
{
    if (number < HANDLE_STEP)
        return (void *)(uintptr_t)number;
    bool here = number >= HANDLE_SERVER;
    const struct table *table = here ? &chosen_here : &chosen_by_client;
    uint64_t row = (number - (here ? HANDLE_SERVER : HANDLE_CLIENT)) / HANDLE_STEP;
    pthread_mutex_lock(&lock);
    void *real = number >= HANDLE_CLIENT && row < table->room ? table->rows[row] : NULL;
    pthread_mutex_unlock(&lock);
    if (!real && !r->status)
        r->status = CUDA_ERROR_INVALID_HANDLE;
    return real;
}

void *take_handle(struct request *r)
{
    return handle_of(r, take_u64(r));
}

void **take_handles(struct request *r, size_t *count)
{
    *count = take_u64(r);
    require(r, *count <= (r->end - r->at) / sizeof(uint64_t));
    if (r->status)
        *count = 0;
    void **all = request_room(r, *count, sizeof *all);
    for (size_t i = 0; i < *count && all; i++)
        all[i] = take_handle(r);
    return all;
}

/* The per-thread default stream of a client's thread is a stream of its lane, as all lanes share our threads. */
CUstream take_stream(struct request *r)
{
    uint64_t number = take_u64(r);
    if (number != (uintptr_t)CU_STREAM_PER_THREAD)
        return handle_of(r, number);
    if (!r->lane->own_stream && !r->status)
        r->status = (int)real_cuda.cuStreamCreate(&r->lane->own_stream, CU_STREAM_DEFAULT);
    return r->lane->own_stream;
}
