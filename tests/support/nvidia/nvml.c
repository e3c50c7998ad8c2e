/* libnvidia-ml.so.1 of the fake driver: its lifetime, its devices and their health; see nvml.h.
 *
 * Invariant: a handle is valid until the driver restarts, as with the real one. After a restart
 * every call fails until NVML is initialised again, and old handles stay invalid.
 */
#define _DEFAULT_SOURCE
#include "nvml.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

enum { FIELD_RECOVERY_ACTION = 230, VALUE_UNSIGNED = 1 };
static const char SWITCH_BUS[] = "00000000:C1:00.0";

/* This process's view of the driver, protected by the lock of its state. */
static struct { struct state *state; uint64_t epoch; unsigned count; } session;

/* ------------------------------------------------------------------ shared by the sources */

static int initialised(const struct state *state) {
    return session.count && session.state == state && session.epoch == state->epoch;
}

int finish(struct state *state, int code) {
    state_unlock(state);
    return code;
}

int begin(struct state **out) {
    struct state *state = *out = state_current();
    if (!state) return UNINITIALIZED;
    state_lock(state);
    if (!state->loaded) return finish(state, DRIVER_NOT_LOADED);
    return initialised(state) ? OK : finish(state, UNINITIALIZED);
}

Handle handle_of(struct state *state, int kind, unsigned card, unsigned instance,
                 unsigned compute) {
    uint64_t life = state->epoch & 0xffff;
    return (Handle)(uintptr_t)(life << 32 | (uint64_t)kind << 24 | card << 16 | instance << 8 |
                               compute);
}

int leave(struct visit *visit, int code) { return finish(visit->state, code); }

/* Wait without the lock while calls on the GPU hang, then start again. */
static int wait_while_hung(struct state **state, unsigned card) {
    while (card < (*state)->card_count && (*state)->cards[card].hung) {
        state_unlock(*state);
        usleep(5000);
        int code = begin(state);
        if (code) return code;
    }
    return OK;
}

int enter(Handle handle, int kinds, struct visit *visit) {
    uint64_t bits = (uintptr_t)handle;
    int code = begin(&visit->state);
    if (code) return code;
    visit->kind = bits >> 24 & 0xff;
    visit->index = bits >> 16 & 0xff;
    visit->compute = bits & 0xff;
    if ((code = wait_while_hung(&visit->state, visit->index))) return code;
    if (bits >> 32 != (visit->state->epoch & 0xffff) || !(visit->kind & kinds) ||
        visit->index >= visit->state->card_count || visit->compute >= COMPUTES)
        return leave(visit, INVALID_ARGUMENT);
    visit->card = &visit->state->cards[visit->index];
    if (visit->card->lost) return leave(visit, GPU_IS_LOST);
    visit->instance = NULL;
    if (visit->kind == FULL_DEVICE) return OK;
    visit->instance = instance_by_id(visit->card, bits >> 8 & 0xff);
    if (!visit->instance) return leave(visit, NOT_FOUND);
    if (visit->kind != GPU_INSTANCE && !visit->instance->computes[visit->compute].used)
        return leave(visit, NOT_FOUND);
    return OK;
}

int put_text(char *out, unsigned size, const char *text) {
    if (strlen(text) >= size) return INSUFFICIENT_SIZE;
    strcpy(out, text);
    return OK;
}

void bus_id(const struct card *card, char *out, int size) {
    snprintf(out, size, "00000000:%02X:00.0", card->spec.bus);
}

int supported(uint32_t planted) {
    return planted == SUPPORTED ? OK : planted == PREDATED ? FUNCTION_NOT_FOUND : NOT_SUPPORTED;
}

int busy(struct state *state, unsigned card, int instance) {
    process_reap(state);
    for (struct process *each = state->processes; each < state->processes + PROCESSES; each++)
        if (each->pid && each->card == card &&
            (instance == ANY_INSTANCE || each->instance == (uint32_t)instance))
            return 1;
    return 0;
}

/* ------------------------------------------------------------------ lifetime */

void fake_use(const char *path) {
    state_use(path);
    memset(&session, 0, sizeof session);
}

int nvmlInitWithFlags(unsigned flags) {
    struct state *state = state_current();
    (void)flags;
    if (!state) return DRIVER_NOT_LOADED;
    state_lock(state);
    if (!state->loaded) return finish(state, DRIVER_NOT_LOADED);
    if (!initialised(state)) session.count = 0;
    session.state = state;
    session.epoch = state->epoch;
    session.count++;
    state->clients++;
    return finish(state, OK);
}
int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlInit(void) { return nvmlInitWithFlags(0); }

int nvmlShutdown(void) {
    struct state *state;
    int code = begin(&state);
    if (code) {
        session.count = 0;
        return code;
    }
    session.count--;
    state->clients--;
    return finish(state, OK);
}

const char *nvmlErrorString(int code) {
    switch (code) {
    case OK: return "Success";
    case UNINITIALIZED: return "Uninitialized";
    case INVALID_ARGUMENT: return "Invalid Argument";
    case NOT_SUPPORTED: return "Not Supported";
    case NO_PERMISSION: return "Insufficient Permissions";
    case NOT_FOUND: return "Not Found";
    case INSUFFICIENT_SIZE: return "Insufficient Size";
    case DRIVER_NOT_LOADED: return "Driver Not Loaded";
    case TIMEOUT: return "Timeout";
    case FUNCTION_NOT_FOUND: return "Function Not Found";
    case GPU_IS_LOST: return "GPU is lost";
    case IN_USE: return "In use by another client";
    case INSUFFICIENT_RESOURCES: return "Insufficient Resources";
    default: return "Unknown Error";
    }
}

int nvmlSystemGetDriverVersion(char *out, unsigned size) {
    struct state *state;
    int code = begin(&state);
    return code ? code : finish(state, put_text(out, size, state->version));
}
int nvmlSystemGetNVMLVersion(char *out, unsigned size) {
    return nvmlSystemGetDriverVersion(out, size);
}
int nvmlSystemGetCudaDriverVersion(int *version) {
    *version = 13000;
    return OK;
}
int nvmlSystemGetCudaDriverVersion_v2(int *version) {
    return nvmlSystemGetCudaDriverVersion(version);
}

/* ------------------------------------------------------------------ selecting devices */

int nvmlDeviceGetCount_v2(unsigned *count) {
    struct state *state;
    int code = begin(&state);
    if (code) return code;
    *count = 0;
    for (unsigned index = 0; index < state->card_count; index++)
        *count += !state->cards[index].unlisted;
    return finish(state, OK);
}
int nvmlDeviceGetCount(unsigned *count) { return nvmlDeviceGetCount_v2(count); }

int nvmlDeviceGetHandleByIndex_v2(unsigned wanted, Handle *out) {
    struct state *state;
    int code = begin(&state);
    if (code) return code;
    for (unsigned index = 0; index < state->card_count; index++) {
        if (state->cards[index].unlisted || wanted--) continue;
        if ((code = wait_while_hung(&state, index))) return code;
        if (state->cards[index].lost) return finish(state, GPU_IS_LOST);
        *out = handle_of(state, FULL_DEVICE, index, 0, 0);
        return finish(state, OK);
    }
    return finish(state, INVALID_ARGUMENT);
}
int nvmlDeviceGetHandleByIndex(unsigned wanted, Handle *out) {
    return nvmlDeviceGetHandleByIndex_v2(wanted, out);
}

static int mig_device_named(struct state *state, unsigned index, const char *uuid, Handle *out) {
    struct card *card = &state->cards[index];
    char name[96];
    struct instance *each = card->instances;
    for (; each < card->instances + INSTANCES; each++)
        for (unsigned compute = 0; each->used && compute < COMPUTES; compute++) {
            mig_uuid(card, each->id, compute, name, sizeof name);
            if (!each->computes[compute].used || strcmp(name, uuid)) continue;
            *out = handle_of(state, MIG_DEVICE, index, each->id, compute);
            return 1;
        }
    return 0;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, Handle *out) {
    struct state *state;
    int code = begin(&state);
    if (code) return code;
    for (unsigned index = 0; index < state->card_count; index++) {
        struct card *card = &state->cards[index];
        if (card->unlisted) continue;
        if ((code = wait_while_hung(&state, index))) return code; /* the lookup reads every id */
        if (mig_device_named(state, index, uuid, out)) return finish(state, OK);
        if (strcmp(card->spec.uuid, uuid)) continue;
        if (card->lost) return finish(state, GPU_IS_LOST);
        *out = handle_of(state, FULL_DEVICE, index, 0, 0);
        return finish(state, OK);
    }
    return finish(state, NOT_FOUND);
}

int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, Handle *out) {
    struct state *state;
    char own[32];
    int code = begin(&state);
    if (code) return code;
    for (unsigned index = 0; index < state->card_count; index++) {
        struct card *card = &state->cards[index];
        bus_id(card, own, sizeof own);
        int same = !strcasecmp(own, bus) || !strcasecmp(own + 4, bus); /* both lengths of domain */
        if (card->unlisted || !same) continue;
        if (card->lost) return finish(state, GPU_IS_LOST);
        *out = handle_of(state, FULL_DEVICE, index, 0, 0);
        return finish(state, OK);
    }
    return finish(state, NOT_FOUND);
}

int nvmlDeviceGetIndex(Handle device, unsigned *out) {
    struct visit visit;
    int code = enter(device, ANY_DEVICE, &visit);
    if (code) return code;
    *out = 0;
    for (unsigned index = 0; index < visit.index; index++)
        *out += !visit.state->cards[index].unlisted;
    return leave(&visit, OK);
}

int nvmlDeviceGetUUID(Handle device, char *out, unsigned size) {
    struct visit visit;
    char name[96];
    int code = enter(device, ANY_DEVICE, &visit);
    if (code) return code;
    if (visit.kind == MIG_DEVICE)
        mig_uuid(visit.card, visit.instance->id, visit.compute, name, sizeof name);
    else
        snprintf(name, sizeof name, "%s", visit.card->spec.uuid);
    return leave(&visit, put_text(out, size, name));
}

int nvmlDeviceGetName(Handle device, char *out, unsigned size) {
    struct visit visit;
    char name[128];
    int code = enter(device, ANY_DEVICE, &visit);
    if (code) return code;
    snprintf(name, sizeof name, "%s", visit.card->spec.name);
    if (visit.kind == MIG_DEVICE)
        snprintf(name, sizeof name, "%s MIG %s", visit.card->spec.name,
                 profile_of(visit.card, visit.instance)->name);
    return leave(&visit, put_text(out, size, name));
}

int nvmlDeviceGetPciInfo_v3(Handle device, Pci *out) {
    struct visit visit;
    int code = enter(device, ANY_DEVICE, &visit);
    if (code) return code;
    *out = (Pci){.bus = visit.card->spec.bus, .id = 0x20b010de};
    bus_id(visit.card, out->bus_id, sizeof out->bus_id);
    memcpy(out->legacy, out->bus_id + 4, 12);
    return leave(&visit, OK);
}
int nvmlDeviceGetPciInfo_v2(Handle device, Pci *out) {
    return nvmlDeviceGetPciInfo_v3(device, out);
}
int nvmlDeviceGetPciInfo(Handle device, Pci *out) { return nvmlDeviceGetPciInfo_v3(device, out); }

/* A numeric property of a GPU that answers. */
#define NUMBER(NAME, KINDS, EXPRESSION)                                                            \
    int NAME(Handle device, unsigned *out) {                                                       \
        struct visit visit;                                                                        \
        int code = enter(device, KINDS, &visit);                                                   \
        if (code) return code;                                                                     \
        *out = EXPRESSION;                                                                         \
        return leave(&visit, OK);                                                                  \
    }
NUMBER(nvmlDeviceGetMinorNumber, FULL_DEVICE, visit.index)
NUMBER(nvmlDeviceGetNumaNodeId, FULL_DEVICE, visit.card->spec.numa)
NUMBER(nvmlDeviceGetNumGpuCores, FULL_DEVICE, visit.card->spec.multiprocessors * 64)
NUMBER(nvmlDeviceGetComputeMode, FULL_DEVICE, visit.card->compute_mode)
NUMBER(nvmlDeviceIsMigDeviceHandle, ANY_DEVICE, visit.kind == MIG_DEVICE)

int nvmlDeviceSetComputeMode(Handle device, unsigned mode) {
    struct visit visit;
    int code = enter(device, FULL_DEVICE, &visit);
    if (code) return code;
    if (mode > 3) return leave(&visit, INVALID_ARGUMENT);
    visit.card->compute_mode = mode;
    return leave(&visit, OK);
}

int nvmlDeviceGetCudaComputeCapability(Handle device, int *major, int *minor) {
    struct visit visit;
    int code = enter(device, ANY_DEVICE, &visit);
    if (code) return code;
    *major = (int)visit.card->spec.major;
    *minor = (int)visit.card->spec.minor;
    return leave(&visit, OK);
}

/* ------------------------------------------------------------------ memory and load */

static Memory memory_of(struct visit *visit) {
    uint64_t mib = visit->card->spec.memory_mib;
    int instance = ANY_INSTANCE;
    if (visit->instance) {
        mib = profile_of(visit->card, visit->instance)->memory_mib;
        instance = (int)visit->instance->id;
    }
    uint64_t used = bytes_used(visit->state, visit->index, instance), total = mib << 20;
    return (Memory){total, used < total ? total - used : 0, used};
}

int nvmlDeviceGetMemoryInfo(Handle device, Memory *out) {
    struct visit visit;
    int code = enter(device, ANY_DEVICE, &visit);
    if (code) return code;
    *out = memory_of(&visit);
    return leave(&visit, OK);
}

int nvmlDeviceGetMemoryInfo_v2(Handle device, Memory2 *out) {
    struct visit visit;
    int code = enter(device, ANY_DEVICE, &visit);
    if (code) return code;
    Memory memory = memory_of(&visit);
    *out = (Memory2){out->version, memory.total, 0, memory.free, memory.used};
    return leave(&visit, OK);
}

/* Unless a test planted a value, the GPU is as busy as all its processes together. */
int nvmlDeviceGetUtilizationRates(Handle device, Utilisation *out) {
    struct visit visit;
    int code = enter(device, ANY_DEVICE, &visit);
    if (code) return code;
    if (visit.card->mig == MIG_ON) return leave(&visit, NOT_SUPPORTED);
    *out = (Utilisation){visit.card->sm_percent, visit.card->memory_percent};
    process_reap(visit.state);
    struct process *each = visit.state->processes;
    for (; !visit.card->sm_percent && each < visit.state->processes + PROCESSES; each++)
        if (each->pid && each->card == visit.index) out->gpu += process_percent(each);
    if (out->gpu > 100) out->gpu = 100;
    return leave(&visit, OK);
}

/* ------------------------------------------------------------------ health */

int nvmlDeviceGetRemappedRows(Handle device, unsigned *corrected, unsigned *uncorrected,
                              unsigned *pending, unsigned *failed) {
    struct visit visit;
    int code = enter(device, FULL_DEVICE, &visit);
    if (code) return code;
    code = supported(visit.card->rows_supported);
    if (code) return leave(&visit, code);
    *corrected = visit.card->rows_corrected;
    *uncorrected = visit.card->rows_uncorrected;
    *pending = visit.card->rows_pending;
    *failed = visit.card->rows_failed;
    return leave(&visit, OK);
}

/* The GPU's registration with the NVLink fabric; not supported without a fabric. */
int nvmlDeviceGetGpuFabricInfoV(Handle device, Fabric2 *out) {
    enum { VERSION_2 = sizeof(Fabric2) | 2 << 24 };
    struct visit visit;
    int code = enter(device, FULL_DEVICE, &visit);
    if (code) return code;
    code = supported(visit.card->fabric_supported);
    if (code) return leave(&visit, code);
    if (out->version != VERSION_2) return leave(&visit, ARGUMENT_VERSION_MISMATCH);
    *out = (Fabric2){.version = VERSION_2, .status = (int)visit.card->fabric_status,
                     .state = (unsigned char)visit.card->fabric_state};
    return leave(&visit, OK);
}

int nvmlDeviceGetEccMode(Handle device, unsigned *present, unsigned *pending) {
    struct visit visit;
    int code = enter(device, FULL_DEVICE, &visit);
    if (code) return code;
    *present = *pending = 1;
    return leave(&visit, supported(visit.card->ecc_supported));
}

int nvmlDeviceGetTotalEccErrors(Handle device, unsigned kind, unsigned counter, Long *out) {
    struct visit visit;
    int code = enter(device, FULL_DEVICE, &visit);
    if (code) return code;
    (void)counter; /* volatile and aggregate counts are equal for a fake GPU */
    code = supported(visit.card->ecc_supported);
    if (code) return leave(&visit, code);
    if (kind >= ECC_KINDS) return leave(&visit, INVALID_ARGUMENT);
    *out = kind == ECC_CORRECTED ? visit.card->ecc_corrected : visit.card->ecc_uncorrected;
    return leave(&visit, OK);
}

int nvmlDeviceGetFieldValues(Handle device, int count, Field *fields) {
    struct visit visit;
    int code = enter(device, FULL_DEVICE, &visit);
    if (code) return code;
    for (int at = 0; at < count; at++) {
        fields[at].at_us = (int64_t)now_us();
        fields[at].code = fields[at].field == FIELD_RECOVERY_ACTION ? OK : NOT_SUPPORTED;
        fields[at].type = VALUE_UNSIGNED;
        fields[at].value.narrow = visit.card->recovery_action;
    }
    return leave(&visit, OK);
}

/* ------------------------------------------------------------------ links */

/* The target of a link, or LINK_NONE; a GPU without links has no NVLink. */
static int link_at(struct visit *visit, unsigned link, unsigned *leads_to) {
    if (visit->card->links[0] == LINK_NONE) return NOT_SUPPORTED;
    if (link >= LINKS || visit->card->links[link] == LINK_NONE) return INVALID_ARGUMENT;
    *leads_to = visit->card->links[link];
    return OK;
}

int nvmlDeviceGetNvLinkState(Handle device, unsigned link, unsigned *active) {
    struct visit visit;
    unsigned leads_to = LINK_NONE;
    int code = enter(device, FULL_DEVICE, &visit);
    if (code) return code;
    code = link_at(&visit, link, &leads_to);
    *active = leads_to != LINK_DOWN;
    return leave(&visit, code);
}

int nvmlDeviceGetNvLinkRemotePciInfo_v2(Handle device, unsigned link, Pci *out) {
    struct visit visit;
    unsigned leads_to = LINK_NONE;
    int code = enter(device, FULL_DEVICE, &visit);
    if (code) return code;
    code = link_at(&visit, link, &leads_to);
    if (code) return leave(&visit, code);
    if (leads_to == LINK_DOWN) return leave(&visit, NOT_SUPPORTED);
    *out = (Pci){0};
    snprintf(out->bus_id, sizeof out->bus_id, "%s", SWITCH_BUS);
    if (leads_to >= LINK_CARD)
        bus_id(&visit.state->cards[leads_to - LINK_CARD], out->bus_id, sizeof out->bus_id);
    return leave(&visit, OK);
}

int nvmlDeviceGetNvLinkRemoteDeviceType(Handle device, unsigned link, unsigned *out) {
    enum { REMOTE_CARD = 0, REMOTE_SWITCH = 2 };
    struct visit visit;
    unsigned leads_to = LINK_NONE;
    int code = enter(device, FULL_DEVICE, &visit);
    if (code) return code;
    code = link_at(&visit, link, &leads_to);
    if (!code && leads_to == LINK_DOWN) code = NOT_SUPPORTED;
    *out = leads_to == LINK_SWITCH ? REMOTE_SWITCH : REMOTE_CARD;
    return leave(&visit, code);
}

int nvmlDeviceGetTopologyCommonAncestor(Handle one, Handle other, unsigned *level) {
    enum { SAME_NODE = 40, OTHER_NODE = 50 };
    struct visit visit;
    unsigned peer = (unsigned)((uintptr_t)other >> 16 & 0xff);
    int code = enter(one, FULL_DEVICE, &visit);
    if (code) return code;
    if (peer >= visit.state->card_count) return leave(&visit, INVALID_ARGUMENT);
    *level = visit.card->spec.numa == visit.state->cards[peer].spec.numa ? SAME_NODE : OTHER_NODE;
    return leave(&visit, OK);
}
