/* Events and processes of the fake NVML: delivery, processes on a GPU, and memory limits.
 *
 * Invariant: an event is delivered once to each set that was registered before it happened. A GPU
 * that fell off the bus loses its registrations, even after it comes back.
 */
#define _GNU_SOURCE
#include "nvml.h"

#include <linux/futex.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { SUPPORTED_EVENTS = 1 | 2 | 8 }; /* ECC errors of both kinds, and critical XIDs */

struct registration { uint64_t types; uint32_t falls; };
struct set { uint64_t seen, epoch; struct registration cards[CARDS]; };

/* ------------------------------------------------------------------ events */

int nvmlEventSetCreate(Handle *out) {
    struct state *state;
    int code = begin(&state);
    if (code) return code;
    struct set *set = calloc(1, sizeof *set);
    set->seen = state->event_count;
    set->epoch = state->epoch;
    state->event_sets++;
    *out = set;
    return finish(state, OK);
}

int nvmlEventSetFree(struct set *set) {
    struct state *state;
    int code = begin(&state);
    if (!code) {
        if (set->epoch == state->epoch) state->event_sets--;
        finish(state, OK);
    }
    free(set);
    return code;
}

int nvmlDeviceGetSupportedEventTypes(Handle device, Long *out) {
    struct visit visit;
    int code = enter(device, FULL_DEVICE, &visit);
    if (code) return code;
    *out = visit.card->events_supported == SUPPORTED ? SUPPORTED_EVENTS : 0;
    return leave(&visit, OK);
}

int nvmlDeviceRegisterEvents(Handle device, Long types, struct set *set) {
    struct visit visit;
    int code = enter(device, FULL_DEVICE, &visit);
    if (code) return code;
    code = supported(visit.card->events_supported);
    if (code) return leave(&visit, code);
    if (set->epoch != visit.state->epoch) return leave(&visit, INVALID_ARGUMENT);
    struct registration *mine = &set->cards[visit.index];
    *mine = (struct registration){mine->types | types, visit.card->falls};
    return leave(&visit, OK);
}

/* The next event of the set, or TIMEOUT. The lock must be held. */
static int next(struct state *state, struct set *set, Event *out) {
    if (set->epoch != state->epoch) return INVALID_ARGUMENT;
    while (set->seen < state->event_count) {
        struct event *event = &state->events[set->seen++ % EVENTS];
        struct registration *mine = &set->cards[event->card];
        uint32_t falls = state->cards[event->card].falls;
        int known = mine->falls == falls || state->cards[event->card].lost;
        if (!(mine->types & event->type) || !known) continue;
        *out = (Event){handle_of(state, FULL_DEVICE, event->card, 0, 0), event->type, event->data,
                       event->instance ? event->instance : NO_ID,
                       event->instance ? event->compute : NO_ID};
        return OK;
    }
    for (unsigned card = 0; card < state->card_count; card++)
        if (set->cards[card].types && state->cards[card].lost) return GPU_IS_LOST;
    return TIMEOUT;
}

int nvmlEventSetWait_v2(struct set *set, Event *out, unsigned timeout_ms) {
    uint64_t until = now_us() + (uint64_t)timeout_ms * 1000;
    for (;;) {
        struct state *state;
        int code = begin(&state);
        if (code) return code;
        code = next(state, set, out);
        uint32_t changes = __atomic_load_n(&state->changes, __ATOMIC_ACQUIRE);
        finish(state, OK);
        uint64_t now = now_us();
        if (code != TIMEOUT || now >= until) return code;
        struct timespec left = {(time_t)((until - now) / 1000000),
                                (long)((until - now) % 1000000) * 1000};
        syscall(SYS_futex, &state->changes, FUTEX_WAIT, changes, &left, NULL, 0);
    }
}
int nvmlEventSetWait(struct set *set, Event *out, unsigned timeout_ms) {
    return nvmlEventSetWait_v2(set, out, timeout_ms);
}

/* ------------------------------------------------------------------ processes */

static int on_device(const struct visit *visit, const struct process *process) {
    return process->pid && process->card == visit->index &&
           (!visit->instance || (process->instance == visit->instance->id &&
                                 process->compute == visit->compute));
}

/* As in the driver: the count, and INSUFFICIENT_SIZE if the buffer is too small. */
static int list(Handle device, unsigned *count, Running *out, uint32_t kind) {
    struct visit visit;
    unsigned found = 0, room = out ? *count : 0;
    int code = enter(device, ANY_DEVICE, &visit);
    if (code) return code;
    process_reap(visit.state);
    struct process *each = visit.state->processes;
    for (; each < visit.state->processes + PROCESSES; each++) {
        if (!on_device(&visit, each) || !(each->kinds & kind)) continue;
        int mig = each->instance != 0;
        if (found < room)
            out[found] = (Running){each->pid, each->bytes, mig ? each->instance : NO_ID,
                                   mig ? each->compute : NO_ID};
        found++;
    }
    *count = found;
    return leave(&visit, found > room ? INSUFFICIENT_SIZE : OK);
}
int nvmlDeviceGetComputeRunningProcesses_v3(Handle device, unsigned *count, Running *out) {
    return list(device, count, out, KIND_COMPUTE);
}
/* The oldest version, which HAMi-core uses, has no instances. */
int nvmlDeviceGetComputeRunningProcesses(Handle device, unsigned *count, RunningWhole *out) {
    Running found[PROCESSES];
    unsigned room = out ? *count : 0;
    *count = room < PROCESSES ? room : PROCESSES;
    int code = list(device, count, out ? found : NULL, KIND_COMPUTE);
    for (unsigned at = 0; !code && at < *count; at++)
        out[at] = (RunningWhole){found[at].pid, found[at].used};
    return code;
}
int nvmlDeviceGetComputeRunningProcesses_v2(Handle device, unsigned *count, Running *out) {
    return list(device, count, out, KIND_COMPUTE);
}
int nvmlDeviceGetMPSComputeRunningProcesses_v3(Handle device, unsigned *count, Running *out) {
    return list(device, count, out, KIND_MPS);
}
int nvmlDeviceGetGraphicsRunningProcesses_v3(Handle device, unsigned *count, Running *out) {
    return list(device, count, out, KIND_GRAPHICS);
}

int nvmlDeviceGetProcessUtilization(Handle device, Sample *out, unsigned *count, Long since_us) {
    struct visit visit;
    unsigned found = 0, room = out ? *count : 0;
    Long now = now_us();
    int code = enter(device, FULL_DEVICE, &visit);
    if (code) return code;
    if (visit.card->mig == MIG_ON) return leave(&visit, NOT_SUPPORTED);
    process_reap(visit.state);
    struct process *each = visit.state->processes;
    for (; each < visit.state->processes + PROCESSES; each++) {
        uint32_t percent = process_percent(each);
        if (!on_device(&visit, each) || !percent || now <= since_us) continue;
        if (found < room)
            out[found] = (Sample){each->pid, now, percent, each->memory_percent, 0, 0};
        found++;
    }
    *count = found;
    if (!found) return leave(&visit, NOT_FOUND);
    return leave(&visit, found > room ? INSUFFICIENT_SIZE : OK);
}

/* ------------------------------------------------------------------ limits of cgroups */

static struct limit *limit_of(struct visit *visit, const char *path, int make) {
    struct limit *free_one = NULL, *each = visit->state->limits;
    for (; each < visit->state->limits + LIMITS; each++) {
        if (each->used && each->card == visit->index && !strcmp(each->path, path)) return each;
        if (!each->used && !free_one) free_one = each;
    }
    return make ? free_one : NULL;
}

static int has_limits(const struct visit *visit) {
    int code = supported(visit->state->limits_supported);
    return code || visit->card->mig != MIG_ON ? code : NOT_SUPPORTED;
}

/* Open the folder of the cgroup, as the real driver does. */
static int is_cgroup(const struct visit *visit, const char *path) {
    size_t length = strlen(visit->state->cgroups);
    return path && strlen(path) < PATH && !strncmp(path, visit->state->cgroups, length) &&
           (!path[length] || path[length] == '/') && !access(path, F_OK);
}

int nvmlDeviceSetMemoryLimits_v1(Handle device, const SetLimit *wanted) {
    struct visit visit;
    int code = enter(device, FULL_DEVICE, &visit);
    if (code) return code;
    if ((code = has_limits(&visit))) return leave(&visit, code);
    if (!is_cgroup(&visit, wanted->path) || wanted->soft > wanted->hard)
        return leave(&visit, INVALID_ARGUMENT);
    struct limit *limit = limit_of(&visit, wanted->path, 1);
    if (!limit) return leave(&visit, INSUFFICIENT_RESOURCES);
    *limit = (struct limit){1, visit.index, wanted->soft, wanted->hard, ""};
    strcpy(limit->path, wanted->path);
    return leave(&visit, OK);
}

int nvmlDeviceGetMemoryLimits_v1(Handle device, GetLimit *out) {
    struct visit visit;
    int code = enter(device, FULL_DEVICE, &visit);
    if (code) return code;
    if ((code = has_limits(&visit))) return leave(&visit, code);
    struct limit *limit = out->path ? limit_of(&visit, out->path, 0) : NULL;
    if (!limit) return leave(&visit, NOT_FOUND);
    out->soft = limit->soft;
    out->hard = limit->hard;
    out->used = bytes_below(visit.state, visit.index, cgroup_of(visit.state, limit));
    return leave(&visit, OK);
}
