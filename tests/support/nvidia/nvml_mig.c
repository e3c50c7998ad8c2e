/* MIG of the fake NVML: GPU instances, compute instances, and MIG devices.
 *
 * Invariants: instances of one GPU share no memory slice, together have no more compute slices than
 * the GPU, and each is at a start that the driver lists for its profile.
 */
#include "nvml.h"

#include <stdio.h>
#include <string.h>

/* Compute slices of NVML_COMPUTE_INSTANCE_PROFILE_*; an id is the profile's own number. */
static const unsigned COMPUTE_SIZES[] = {1, 2, 3, 4, 7};
enum { COMPUTE_PROFILES = sizeof COMPUTE_SIZES / sizeof *COMPUTE_SIZES };

/* ------------------------------------------------------------------ mode */

int nvmlDeviceGetMigMode(Handle device, unsigned *present, unsigned *pending) {
    struct visit visit;
    int code = enter(device, FULL_DEVICE, &visit);
    if (code) return code;
    if (visit.card->mig == MIG_NONE) return leave(&visit, NOT_SUPPORTED);
    *present = visit.card->mig;
    *pending = visit.card->mig_pending;
    return leave(&visit, OK);
}

static int has_instances(const struct card *card) {
    for (const struct instance *each = card->instances; each < card->instances + INSTANCES; each++)
        if (each->used) return 1;
    return 0;
}

/* A GPU in use keeps its mode until it is idle and the driver restarts. */
int nvmlDeviceSetMigMode(Handle device, unsigned mode, unsigned *activation) {
    struct visit visit;
    int code = enter(device, FULL_DEVICE, &visit);
    if (code) return code;
    if (visit.card->mig == MIG_NONE) return leave(&visit, NOT_SUPPORTED);
    if (mode > MIG_ON) return leave(&visit, INVALID_ARGUMENT);
    *activation = OK;
    visit.card->mig_pending = mode;
    if (busy(visit.state, visit.index, ANY_INSTANCE) || has_instances(visit.card))
        *activation = IN_USE;
    else
        visit.card->mig = mode;
    return leave(&visit, OK);
}

int nvmlDeviceGetMaxMigDeviceCount(Handle device, unsigned *count) {
    struct visit visit;
    int code = enter(device, FULL_DEVICE, &visit);
    if (code) return code;
    *count = visit.card->mig == MIG_NONE ? 0 : COMPUTE_SLICES;
    return leave(&visit, OK);
}

/* ------------------------------------------------------------------ profiles and placements */

/* Enter a GPU in MIG mode, and find the profile by its kind or id. Calls by id need privileges. */
static int enter_profile(Handle device, struct visit *visit, const struct profile **out,
                         unsigned wanted, int by_id) {
    int code = enter(device, FULL_DEVICE, visit);
    if (code) return code;
    if (visit->card->mig != MIG_ON) return leave(visit, NOT_SUPPORTED);
    if (by_id && visit->card->unprivileged) return leave(visit, NO_PERMISSION);
    for (unsigned at = 0; at < visit->card->spec.profile_count; at++) {
        *out = &visit->card->spec.profiles[at];
        if ((by_id ? (*out)->id : (*out)->kind) == wanted) return OK;
    }
    return leave(visit, by_id ? INVALID_ARGUMENT : NOT_SUPPORTED);
}

int nvmlDeviceGetGpuInstanceProfileInfo(Handle device, unsigned kind, ProfileInfo *out) {
    struct visit visit;
    const struct profile *profile;
    int code = enter_profile(device, &visit, &profile, kind, 0);
    if (code) return code;
    *out = (ProfileInfo){.id = profile->id, .slices = profile->slices,
                         .instances = profile->at_most, .copy = profile->slices,
                         .multiprocessors = profile->multiprocessors,
                         .memory_mib = profile->memory_mib};
    return leave(&visit, OK);
}

int nvmlDeviceGetGpuInstanceProfileInfoV(Handle device, unsigned kind, ProfileInfo2 *out) {
    struct visit visit;
    const struct profile *profile;
    int code = enter_profile(device, &visit, &profile, kind, 0);
    if (code) return code;
    *out = (ProfileInfo2){.version = out->version, .id = profile->id, .slices = profile->slices,
                          .instances = profile->at_most, .copy = profile->slices,
                          .multiprocessors = profile->multiprocessors,
                          .memory_mib = profile->memory_mib};
    snprintf(out->name, sizeof out->name, "MIG %s", profile->name);
    return leave(&visit, OK);
}

int nvmlDeviceGetGpuInstancePossiblePlacements_v2(Handle device, unsigned id, Placement *out,
                                                  unsigned *count) {
    struct visit visit;
    const struct profile *profile;
    int code = enter_profile(device, &visit, &profile, id, 1);
    if (code) return code;
    for (unsigned at = 0; out && at < profile->start_count && at < *count; at++)
        out[at] = (Placement){profile->starts[at], profile->span};
    *count = profile->start_count;
    return leave(&visit, OK);
}
int nvmlDeviceGetGpuInstancePossiblePlacements(Handle device, unsigned id, Placement *out,
                                               unsigned *count) {
    return nvmlDeviceGetGpuInstancePossiblePlacements_v2(device, id, out, count);
}

static int fits(const struct card *card, const struct profile *profile, unsigned start) {
    unsigned slices = profile->slices, alike = 1;
    const struct instance *each = card->instances;
    for (; each < card->instances + INSTANCES; each++) {
        if (!each->used) continue;
        const struct profile *other = profile_of(card, each);
        if (start < each->start + other->span && each->start < start + profile->span) return 0;
        slices += other->slices;
        alike += other == profile;
    }
    return slices <= COMPUTE_SLICES && alike <= profile->at_most;
}

int nvmlDeviceGetGpuInstanceRemainingCapacity(Handle device, unsigned id, unsigned *count) {
    struct visit visit;
    const struct profile *profile;
    int code = enter_profile(device, &visit, &profile, id, 1);
    if (code) return code;
    *count = 0;
    for (unsigned at = 0, free_from = 0; at < profile->start_count; at++) {
        unsigned start = profile->starts[at];
        if (start < free_from || !fits(visit.card, profile, start)) continue;
        free_from = start + profile->span;
        ++*count;
    }
    return leave(&visit, OK);
}

/* ------------------------------------------------------------------ GPU instances */

static uint32_t free_id(struct card *card) {
    uint32_t id = 1;
    while (instance_by_id(card, id)) id++;
    return id;
}

static int stand(struct visit *visit, const struct profile *profile, unsigned start, Handle *out) {
    struct instance *each = visit->card->instances;
    while (each < visit->card->instances + INSTANCES && each->used) each++;
    if (each == visit->card->instances + INSTANCES) return INSUFFICIENT_RESOURCES;
    uint32_t number = (uint32_t)(profile - visit->card->spec.profiles);
    *each = (struct instance){.id = free_id(visit->card), .profile = number, .start = start};
    each->used = 1;
    *out = handle_of(visit->state, GPU_INSTANCE, visit->index, each->id, 0);
    return OK;
}

static int create(Handle device, unsigned id, const Placement *at, Handle *out) {
    struct visit visit;
    const struct profile *profile;
    int listed = !at, code = enter_profile(device, &visit, &profile, id, 1);
    if (code) return code;
    for (unsigned number = 0; number < profile->start_count; number++) {
        unsigned start = profile->starts[number];
        if (at && (at->start != start || at->size != profile->span)) continue;
        listed = 1;
        if (fits(visit.card, profile, start))
            return leave(&visit, stand(&visit, profile, start, out));
    }
    return leave(&visit, listed ? INSUFFICIENT_RESOURCES : INVALID_ARGUMENT);
}
int nvmlDeviceCreateGpuInstance(Handle device, unsigned id, Handle *out) {
    return create(device, id, NULL, out);
}
int nvmlDeviceCreateGpuInstanceWithPlacement(Handle device, unsigned id, const Placement *at,
                                             Handle *out) {
    return at ? create(device, id, at, out) : INVALID_ARGUMENT;
}

int nvmlGpuInstanceDestroy(Handle handle) {
    struct visit visit;
    int code = enter(handle, GPU_INSTANCE, &visit);
    if (code) return code;
    for (unsigned compute = 0; compute < COMPUTES; compute++)
        if (visit.instance->computes[compute].used) return leave(&visit, IN_USE);
    memset(visit.instance, 0, sizeof *visit.instance);
    return leave(&visit, OK);
}

int nvmlDeviceGetGpuInstances(Handle device, unsigned id, Handle *out, unsigned *count) {
    struct visit visit;
    const struct profile *profile;
    int code = enter_profile(device, &visit, &profile, id, 1);
    if (code) return code;
    struct card *card = visit.card;
    *count = 0;
    for (struct instance *each = card->instances; each < card->instances + INSTANCES; each++)
        if (each->used && profile_of(card, each) == profile)
            out[(*count)++] = handle_of(visit.state, GPU_INSTANCE, visit.index, each->id, 0);
    return leave(&visit, OK);
}

int nvmlDeviceGetGpuInstanceById(Handle device, unsigned id, Handle *out) {
    struct visit visit;
    int code = enter(device, FULL_DEVICE, &visit);
    if (code) return code;
    if (!instance_by_id(visit.card, id)) return leave(&visit, NOT_FOUND);
    *out = handle_of(visit.state, GPU_INSTANCE, visit.index, id, 0);
    return leave(&visit, OK);
}

int nvmlGpuInstanceGetInfo(Handle handle, InstanceInfo *out) {
    struct visit visit;
    int code = enter(handle, GPU_INSTANCE, &visit);
    if (code) return code;
    const struct profile *profile = profile_of(visit.card, visit.instance);
    *out = (InstanceInfo){handle_of(visit.state, FULL_DEVICE, visit.index, 0, 0),
                          visit.instance->id, profile->id, {visit.instance->start, profile->span}};
    return leave(&visit, OK);
}

/* ------------------------------------------------------------------ compute instances */

static int enter_compute_profile(Handle handle, unsigned kind, struct visit *visit,
                                 unsigned *slices) {
    int code = enter(handle, GPU_INSTANCE, visit);
    if (code) return code;
    *slices = profile_of(visit->card, visit->instance)->slices;
    if (kind >= COMPUTE_PROFILES || COMPUTE_SIZES[kind] > *slices)
        return leave(visit, NOT_SUPPORTED);
    return OK;
}

int nvmlGpuInstanceGetComputeInstanceProfileInfo(Handle handle, unsigned kind, unsigned engines,
                                                 ComputeProfileInfo *out) {
    struct visit visit;
    unsigned slices;
    int code = enter_compute_profile(handle, kind, &visit, &slices);
    if (code) return code;
    (void)engines;
    *out = (ComputeProfileInfo){.id = kind, .slices = COMPUTE_SIZES[kind],
                                .instances = slices / COMPUTE_SIZES[kind]};
    return leave(&visit, OK);
}

int nvmlGpuInstanceGetComputeInstanceProfileInfoV(Handle handle, unsigned kind, unsigned engines,
                                                  ComputeProfileInfo2 *out) {
    struct visit visit;
    unsigned slices;
    int code = enter_compute_profile(handle, kind, &visit, &slices);
    if (code) return code;
    (void)engines;
    *out = (ComputeProfileInfo2){.version = out->version, .id = kind,
                                 .slices = COMPUTE_SIZES[kind],
                                 .instances = slices / COMPUTE_SIZES[kind]};
    const char *name = profile_of(visit.card, visit.instance)->name;
    if (COMPUTE_SIZES[kind] == slices) snprintf(out->name, sizeof out->name, "MIG %s", name);
    else snprintf(out->name, sizeof out->name, "MIG %uc.%s", COMPUTE_SIZES[kind], name);
    return leave(&visit, OK);
}

int nvmlGpuInstanceGetComputeInstancePossiblePlacements(Handle handle, unsigned kind,
                                                        Placement *out, unsigned *count) {
    struct visit visit;
    unsigned slices, room = *count, found = 0;
    int code = enter_compute_profile(handle, kind, &visit, &slices);
    if (code) return code;
    for (unsigned start = 0; start + COMPUTE_SIZES[kind] <= slices; start++, found++)
        if (out && found < room) out[found] = (Placement){start, COMPUTE_SIZES[kind]};
    *count = found;
    return leave(&visit, OK);
}

static int compute_fits(const struct instance *instance, unsigned start, unsigned size) {
    for (unsigned at = 0; at < COMPUTES; at++) {
        const struct compute *other = &instance->computes[at];
        if (other->used && start < other->start + other->size && other->start < start + size)
            return 0;
    }
    return 1;
}

static int create_compute(Handle handle, unsigned kind, const Placement *at, Handle *out) {
    struct visit visit;
    unsigned slices, number = 0;
    int code = enter_compute_profile(handle, kind, &visit, &slices);
    if (code) return code;
    struct compute *computes = visit.instance->computes;
    unsigned size = COMPUTE_SIZES[kind], start = at ? at->start : 0;
    if (at && (at->size != size || start + size > slices)) return leave(&visit, INVALID_ARGUMENT);
    while (!at && start + size <= slices && !compute_fits(visit.instance, start, size)) start++;
    while (number < COMPUTES && computes[number].used) number++;
    if (start + size > slices || number == COMPUTES || !compute_fits(visit.instance, start, size))
        return leave(&visit, INSUFFICIENT_RESOURCES);
    computes[number] = (struct compute){1, kind, start, size};
    *out = handle_of(visit.state, COMPUTE_INSTANCE, visit.index, visit.instance->id, number);
    return leave(&visit, OK);
}
int nvmlGpuInstanceCreateComputeInstance(Handle handle, unsigned kind, Handle *out) {
    return create_compute(handle, kind, NULL, out);
}
int nvmlGpuInstanceCreateComputeInstanceWithPlacement(Handle handle, unsigned kind,
                                                      const Placement *at, Handle *out) {
    return at ? create_compute(handle, kind, at, out) : INVALID_ARGUMENT;
}

int nvmlComputeInstanceDestroy(Handle handle) {
    struct visit visit;
    int code = enter(handle, COMPUTE_INSTANCE, &visit);
    if (code) return code;
    process_reap(visit.state);
    struct process *each = visit.state->processes;
    for (; each < visit.state->processes + PROCESSES; each++)
        if (each->pid && each->card == visit.index && each->instance == visit.instance->id &&
            each->compute == visit.compute)
            return leave(&visit, IN_USE);
    visit.instance->computes[visit.compute] = (struct compute){0};
    return leave(&visit, OK);
}

int nvmlGpuInstanceGetComputeInstances(Handle handle, unsigned kind, Handle *out,
                                       unsigned *count) {
    struct visit visit;
    int code = enter(handle, GPU_INSTANCE, &visit);
    if (code) return code;
    *count = 0;
    for (unsigned at = 0; at < COMPUTES; at++)
        if (visit.instance->computes[at].used && visit.instance->computes[at].profile == kind)
            out[(*count)++] = handle_of(visit.state, COMPUTE_INSTANCE, visit.index,
                                        visit.instance->id, at);
    return leave(&visit, OK);
}

int nvmlGpuInstanceGetComputeInstanceById(Handle handle, unsigned id, Handle *out) {
    struct visit visit;
    int code = enter(handle, GPU_INSTANCE, &visit);
    if (code) return code;
    if (id >= COMPUTES || !visit.instance->computes[id].used) return leave(&visit, NOT_FOUND);
    *out = handle_of(visit.state, COMPUTE_INSTANCE, visit.index, visit.instance->id, id);
    return leave(&visit, OK);
}

int nvmlComputeInstanceGetInfo_v2(Handle handle, ComputeInfo *out) {
    struct visit visit;
    int code = enter(handle, COMPUTE_INSTANCE, &visit);
    if (code) return code;
    struct compute *compute = &visit.instance->computes[visit.compute];
    *out = (ComputeInfo){handle_of(visit.state, FULL_DEVICE, visit.index, 0, 0),
                         handle_of(visit.state, GPU_INSTANCE, visit.index, visit.instance->id, 0),
                         visit.compute, compute->profile, {compute->start, compute->size}};
    return leave(&visit, OK);
}
int nvmlComputeInstanceGetInfo(Handle handle, ComputeInfo *out) {
    return nvmlComputeInstanceGetInfo_v2(handle, out);
}

/* ------------------------------------------------------------------ MIG devices */

int nvmlDeviceGetMigDeviceHandleByIndex(Handle device, unsigned wanted, Handle *out) {
    struct visit visit;
    int code = enter(device, FULL_DEVICE, &visit);
    if (code) return code;
    if (visit.card->mig != MIG_ON) return leave(&visit, NOT_SUPPORTED);
    struct instance *each = visit.card->instances;
    for (; each < visit.card->instances + INSTANCES; each++)
        for (unsigned at = 0; each->used && at < COMPUTES; at++)
            if (each->computes[at].used && !wanted--) {
                *out = handle_of(visit.state, MIG_DEVICE, visit.index, each->id, at);
                return leave(&visit, OK);
            }
    return leave(&visit, NOT_FOUND);
}

int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(Handle device, Handle *out) {
    struct visit visit;
    int code = enter(device, MIG_DEVICE, &visit);
    if (code) return code;
    *out = handle_of(visit.state, FULL_DEVICE, visit.index, 0, 0);
    return leave(&visit, OK);
}

int nvmlDeviceGetGpuInstanceId(Handle device, unsigned *id) {
    struct visit visit;
    int code = enter(device, MIG_DEVICE, &visit);
    if (code) return code;
    *id = visit.instance->id;
    return leave(&visit, OK);
}

int nvmlDeviceGetComputeInstanceId(Handle device, unsigned *id) {
    struct visit visit;
    int code = enter(device, MIG_DEVICE, &visit);
    if (code) return code;
    *id = visit.compute;
    return leave(&visit, OK);
}

int nvmlDeviceGetAttributes_v2(Handle device, Attributes *out) {
    struct visit visit;
    int code = enter(device, MIG_DEVICE, &visit);
    if (code) return code;
    const struct profile *profile = profile_of(visit.card, visit.instance);
    *out = (Attributes){.multiprocessors = profile->multiprocessors, .copy = profile->slices,
                        .gpu_slices = profile->slices, .memory_mib = profile->memory_mib,
                        .compute_slices = visit.instance->computes[visit.compute].size};
    return leave(&visit, OK);
}
