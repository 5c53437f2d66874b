/* Checkpoint and restore of a process from outside: the process is locked, its GPU's memory is released and later
 * taken again, possibly on another GPU of the same model. Device memory lives in this process's own pages all the
 * time, so addresses stay valid and nothing has to be copied; only the charge, the contexts and the connection move. */
#include "softgpu.h"
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* How often to check a process that is being locked. */
enum { LOOK_MILLISECONDS = 1 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t unlocked = PTHREAD_COND_INITIALIZER;
static atomic_int state = CU_PROCESS_STATE_RUNNING;
static pthread_t responder;
static int requests = -1;

/* ---- the locked process ---- */
void checkpoint_pass(void)
{
    if (atomic_load_explicit(&state, memory_order_acquire) == CU_PROCESS_STATE_RUNNING
        || (requests >= 0 && pthread_equal(pthread_self(), responder)))
        return;
    pthread_mutex_lock(&lock);
    while (atomic_load(&state) != CU_PROCESS_STATE_RUNNING)
        pthread_cond_wait(&unlocked, &lock);
    pthread_mutex_unlock(&lock);
}

static void set_state(CUprocessState next)
{
    pthread_mutex_lock(&lock);
    atomic_store(&state, next);
    pthread_cond_broadcast(&unlocked);
    pthread_mutex_unlock(&lock);
}

/* From now on calls wait; work submitted before is finished first. */
static CUresult do_lock(const void *body, size_t size)
{
    uint32_t milliseconds = 0;
    if (size == sizeof milliseconds)
        memcpy(&milliseconds, body, size);
    if (atomic_load(&state) != CU_PROCESS_STATE_RUNNING)
        return CUDA_ERROR_ILLEGAL_STATE;
    set_state(CU_PROCESS_STATE_LOCKED);
    uint64_t deadline = now_nanoseconds() + (uint64_t)milliseconds * 1000000u;
    while (!contexts_idle()) {
        if (milliseconds && now_nanoseconds() > deadline) {
            set_state(CU_PROCESS_STATE_RUNNING);
            return CUDA_ERROR_NOT_READY;
        }
        usleep(1000 * LOOK_MILLISECONDS);
    }
    return CUDA_SUCCESS;
}

static CUresult do_checkpoint(void)
{
    if (atomic_load(&state) != CU_PROCESS_STATE_LOCKED)
        return CUDA_ERROR_ILLEGAL_STATE;
    for (int at = 0; at < MOST_CARDS; at++)
        if (sg_cards[at].activity) {
            card_release(&sg_cards[at], memory_charged(&sg_cards[at]));
            contexts_close(&sg_cards[at]);
        }
    set_state(CU_PROCESS_STATE_CHECKPOINTED);
    return CUDA_SUCCESS;
}

/* Where a GPU's contexts and memory go: as the pairs say, or back to the same GPU. */
static const CUuuid *destination(const struct card *card, const CUcheckpointGpuPair *pairs, size_t count)
{
    for (size_t at = 0; at < count; at++)
        if (!memcmp(pairs[at].oldUuid.bytes, card->device.uuid, sizeof card->device.uuid))
            return &pairs[at].newUuid;
    return 0;
}

/* Take a GPU's memory and contexts, here or on the new GPU, and use it from then on. */
static CUresult restore_card(struct card *card, const CUuuid *uuid)
{
    struct card fresh = {.socket = -1};
    bool moves = uuid && memcmp(uuid->bytes, card->device.uuid, sizeof uuid->bytes);
    if (moves && !card_open_uuid(&fresh, uuid))
        return CUDA_ERROR_INVALID_VALUE;
    if (moves && strcmp(fresh.device.name, card->device.name)) {
        close(fresh.socket);
        return CUDA_ERROR_INVALID_VALUE;
    }
    struct card *target = moves ? &fresh : card;
    CUresult status = card_reserve(target, memory_charged(card));
    if (!status && (status = contexts_open(card, target)))
        card_release(target, memory_charged(card));
    if (!moves)
        return status;
    int leaves = status ? fresh.socket : card->socket;
    if (!status) {
        pthread_mutex_lock(&card->lock);
        card->socket = fresh.socket;
        card->device = fresh.device;
        card->activity = fresh.activity;
        pthread_mutex_unlock(&card->lock);
    }
    close(leaves);
    return status;
}

static CUresult do_restore(const void *body, size_t size)
{
    const CUcheckpointGpuPair *pairs = body;
    CUresult status = CUDA_SUCCESS;
    if (atomic_load(&state) != CU_PROCESS_STATE_CHECKPOINTED)
        return CUDA_ERROR_ILLEGAL_STATE;
    int done = 0;
    for (; done < MOST_CARDS && !status; done++)
        if (sg_cards[done].activity)
            status = restore_card(&sg_cards[done], destination(&sg_cards[done], pairs, size / sizeof *pairs));
    if (!status) {
        set_state(CU_PROCESS_STATE_LOCKED);
        return CUDA_SUCCESS;
    }
    /* All or nothing: if one GPU has no room, what was taken on the GPUs before it is given back. */
    for (int at = 0; at < done - 1; at++)
        if (sg_cards[at].activity) {
            card_release(&sg_cards[at], memory_charged(&sg_cards[at]));
            contexts_close(&sg_cards[at]);
        }
    return status;
}

static CUresult do_unlock(void)
{
    if (atomic_load(&state) != CU_PROCESS_STATE_LOCKED)
        return CUDA_ERROR_ILLEGAL_STATE;
    set_state(CU_PROCESS_STATE_RUNNING);
    return CUDA_SUCCESS;
}

static CUresult carry_out(uint32_t kind, const void *body, size_t size)
{
    switch (kind) {
    case CHECKPOINT_LOCK: return do_lock(body, size);
    case CHECKPOINT_SAVE: return do_checkpoint();
    case CHECKPOINT_RESTORE: return do_restore(body, size);
    case CHECKPOINT_UNLOCK: return do_unlock();
    default: return CUDA_SUCCESS; /* only the state was requested */
    }
}

static void *respond(void *argument)
{
    struct wire_request request;
    char body[MOST_CARDS * sizeof(CUcheckpointGpuPair)];
    (void)argument;
    while (wire_receive(requests, &request, sizeof request) && request.size <= sizeof body
           && wire_receive(requests, body, request.size)) {
        struct {
            struct wire_reply reply;
            uint32_t state;
        } answer;
        answer.reply = (struct wire_reply){carry_out(request.kind, body, request.size), sizeof answer.state};
        answer.state = (uint32_t)atomic_load(&state);
        if (!wire_send(requests, &answer, sizeof answer))
            break;
    }
    /* The daemon is gone, and its GPUs with it: release the threads that wait. */
    for (int at = 0; at < MOST_CARDS; at++)
        atomic_store(&sg_cards[at].lost, true);
    set_state(CU_PROCESS_STATE_RUNNING);
    return 0;
}

/* A process accepts requests once it has GPUs; without a connection for them it cannot be checkpointed. */
void checkpoint_start(void)
{
    struct wire_request request = {WIRE_CHECKPOINT_CLIENT, 0};
    struct wire_reply reply;
    int fd = card_connect_any();
    if (fd < 0)
        return;
    if (!wire_send(fd, &request, sizeof request) || !wire_receive(fd, &reply, sizeof reply)) {
        close(fd);
        return;
    }
    sigset_t all, before;
    sigfillset(&all); /* signals are for the program's own threads */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    requests = fd;
    if (pthread_create(&responder, 0, respond, 0)) {
        close(fd);
        requests = -1;
    } else
        pthread_detach(responder);
    pthread_sigmask(SIG_SETMASK, &before, 0);
}

/* In a child of fork: connection and lock belong to the parent. */
void checkpoint_forget(void)
{
    if (requests >= 0)
        close(requests);
    requests = -1;
    atomic_store(&state, CU_PROCESS_STATE_RUNNING);
}

/* ---- the process that sends requests ---- */
static CUresult send_request(int pid, uint32_t kind, const void *body, size_t size, uint32_t *answer)
{
    struct {
        struct wire_request request;
        int32_t pid;
        uint32_t kind;
    } head = {{WIRE_CHECKPOINT_REQUEST, (uint32_t)(8 + size)}, pid, kind};
    struct wire_reply reply;
    uint32_t now = 0;
    if (pid <= 0)
        return CUDA_ERROR_INVALID_VALUE;
    int fd = card_connect_any();
    if (fd < 0)
        return CUDA_ERROR_NO_DEVICE;
    bool good = wire_send(fd, &head, sizeof head) && wire_send(fd, body, size) && wire_receive(fd, &reply, sizeof reply)
                && (reply.size != sizeof now || wire_receive(fd, &now, sizeof now));
    close(fd);
    if (answer)
        *answer = now;
    return good ? (CUresult)reply.status : CUDA_ERROR_DEVICE_UNAVAILABLE;
}

API cuCheckpointProcessLock(int pid, CUcheckpointLockArgs *wanted)
{
    uint32_t milliseconds = wanted ? wanted->timeoutMs : 0;
    return send_request(pid, CHECKPOINT_LOCK, &milliseconds, sizeof milliseconds, 0);
}

API cuCheckpointProcessCheckpoint(int pid, CUcheckpointCheckpointArgs *wanted)
{
    if (wanted && wanted->customStorageInfo_out)
        return CUDA_ERROR_NOT_SUPPORTED;
    return send_request(pid, CHECKPOINT_SAVE, 0, 0, 0);
}

API cuCheckpointProcessRestore(int pid, CUcheckpointRestoreArgs *wanted)
{
    unsigned count = wanted ? wanted->gpuPairsCount : 0;
    if (count > MOST_CARDS || (count && !wanted->gpuPairs))
        return CUDA_ERROR_INVALID_VALUE;
    if (wanted && wanted->customStorageInfo_out)
        return CUDA_ERROR_NOT_SUPPORTED;
    return send_request(pid, CHECKPOINT_RESTORE, count ? wanted->gpuPairs : 0, count * sizeof(CUcheckpointGpuPair), 0);
}

API cuCheckpointProcessUnlock(int pid, CUcheckpointUnlockArgs *wanted)
{
    (void)wanted;
    return send_request(pid, CHECKPOINT_UNLOCK, 0, 0, 0);
}

API cuCheckpointProcessGetState(int pid, CUprocessState *found)
{
    uint32_t now;
    if (!found)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult status = send_request(pid, CHECKPOINT_STATE, 0, 0, &now);
    if (!status)
        *found = (CUprocessState)now;
    return status;
}
