/* The GPU performance monitor of the fake NVML: how busy a MIG instance was between two samples.
 *
 * As in reality, only GPUs of compute capability 9 and above have one.
 * Invariant: a metric needs two samples of the same instance, the earlier one first.
 */
#include "nvml.h"

#include <stdlib.h>

enum { HOPPER = 9, SM_UTIL = 2 };

struct sample { uint64_t at_us; unsigned card, instance; double busy; };

int nvmlGpmQueryDeviceSupport(Handle device, MonitorSupport *out) {
    struct visit visit;
    int code = enter(device, FULL_DEVICE, &visit);
    if (code) return code;
    out->supported = visit.card->spec.major >= HOPPER;
    return leave(&visit, OK);
}

int nvmlGpmSampleAlloc(Handle *out) {
    struct state *state;
    int code = begin(&state);
    if (code) return code;
    *out = calloc(1, sizeof(struct sample));
    return finish(state, OK);
}

int nvmlGpmSampleFree(Handle sample) {
    free(sample);
    return OK;
}

int nvmlGpmMigSampleGet(Handle device, unsigned instance, Handle out) {
    struct visit visit;
    double busy = 0;
    int code = enter(device, FULL_DEVICE, &visit);
    if (code) return code;
    if (visit.card->spec.major < HOPPER) return leave(&visit, NOT_SUPPORTED);
    if (!instance_by_id(visit.card, instance)) return leave(&visit, NOT_FOUND);
    process_reap(visit.state);
    struct process *each = visit.state->processes;
    for (; each < visit.state->processes + PROCESSES; each++)
        if (each->pid && each->card == visit.index && each->instance == instance)
            busy += process_percent(each);
    *(struct sample *)out = (struct sample){now_us(), visit.index, instance, busy};
    return leave(&visit, OK);
}

int nvmlGpmMetricsGet(Metrics *asked) {
    const struct sample *before = asked->before, *after = asked->after;
    int same = before->at_us && before->card == after->card &&
               before->instance == after->instance && before->at_us < after->at_us;
    for (unsigned at = 0; at < asked->count; at++) {
        Metric *each = &asked->metrics[at];
        each->code = !same ? INVALID_ARGUMENT : each->id == SM_UTIL ? OK : NOT_SUPPORTED;
        each->value = each->code ? 0 : (before->busy + after->busy) / 2;
        if (each->value > 100) each->value = 100;
    }
    return OK;
}
