/* What the parts of the worker share.
 *
 * The worker is one process per connection. It calls the driver that it finds, which for a share is the limits library.
 * One thread, the executor, starts operations in the order in which they came. Only operations that wait for the device
 * run beside it, so that one waiting thread of the client does not stop the others. */
#pragma once
#include "remote_operations.h"
#include "remote_real.h"
#include "wire.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct lane {
    CUcontext context;
    int kept; /* the first error of an operation without an answer */
    CUstream own_stream;
    struct helper *helper;
    bool used;
};

enum { ROOMS_MAX = 8 };
struct request {
    struct wire_head head;
    struct lane *lane;
    const char *data;
    size_t at, end;
    int status;
    char *reply;
    size_t used, room;
    void *rooms[ROOMS_MAX]; /* memory that lives as long as the request */
    int room_count;
};

struct operation {
    void (*run)(struct request *);
    int beside;
};
extern const struct operation generated_operations[OP_END];

/* request.c: what is in a request, and what goes into its answer. Malformed parts set the status. */
void require(struct request *r, bool holds);
void take(struct request *r, void *to, size_t size);
uint64_t take_u64(struct request *r);
void *take_block(struct request *r, size_t *size);
void *take_copy(struct request *r, size_t size);            /* to be changed; NULL if there was none */
void take_values(struct request *r, void *to, size_t size); /* a block of just that size, unless there is no `to` */
const char *take_string(struct request *r);
void *request_room(struct request *r, uint64_t count, size_t each);
void request_free_rooms(struct request *r);
void answer_put(struct request *r, const void *from, size_t size);
void answer_u64(struct request *r, uint64_t value);
void answer_block(struct request *r, const void *from, size_t size);
void answer_handles(struct request *r, void *const *handles, size_t count);

/* handles.c */
void handle_set(uint64_t number, void *real);
uint64_t handle_find(void *real);
void *take_handle(struct request *r);
void **take_handles(struct request *r, size_t *count);
CUstream take_stream(struct request *r);

/* out.c: what goes to the client */
struct line;
void out_start(struct line *line);
void out_reply(struct request *r);
void out_data(uint64_t cookie, uint64_t offset, const void *data, size_t size);
void out_beat(void);
_Noreturn void end(const char *why); /* the process; the driver frees everything that it held */

/* in.c: what comes from the client */
void in_start(struct line *line);
void in_read(void *to, size_t size);

/* copies.c */
void do_copy_in(struct request *r);
void do_copy_out(struct request *r);
void do_copy_out_later(struct request *r);
void copies_deliver(void);
char *copies_room(struct request *r, size_t size, CUstream stream); /* page-locked, until the stream has read it */

/* host.c */
void do_host_map(struct request *r);
void do_host_in(struct request *r);
void do_host_end(struct request *r);
void host_return(void);
bool host_has(uint64_t address, uint64_t size); /* it is all the client's, at its own address */

/* boxes.c */
void do_box(struct request *r);
void do_box_in(struct request *r);
void do_box_out(struct request *r);
void do_box_node(struct request *r);

/* capture.c */
void do_capture_info(struct request *r);

/* modules.c */
extern const char *module_cache; /* a directory, or NULL */
void do_load(struct request *r);
void do_link_create(struct request *r);
void do_link_add(struct request *r);
void do_link_complete(struct request *r);
void do_link_destroy(struct request *r);

/* launch.c */
void do_launch(struct request *r);
void do_kernel_node(struct request *r);
void do_synchronize(struct request *r);
void do_fence(struct request *r);
void do_pointer_attribute(struct request *r);
void do_pool_attribute(struct request *r);
void do_occupancy(struct request *r);

/* welcome.c */
void drivers_begin(void);
void welcome(struct request *r, const unsigned char *key);
