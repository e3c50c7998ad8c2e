/* libcuda.so.1 of the fake driver: devices, contexts and memory of one process; see state.h.
 *
 * A process's memory is recorded in the shared state, and freed when the process ends in any way.
 * Invariants: all processes together never use more than a GPU (or a MIG instance) has. A limit of
 * MPS or of the process's cgroup includes the memory of its context.
 */
#define _GNU_SOURCE
#include "cuda.h"

#include "state.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { DEVICES = CARDS, DEPTH = 16, NAME = 96 };
enum { MODE_DEFAULT, MODE_EXCLUSIVE_THREAD, MODE_PROHIBITED, MODE_EXCLUSIVE_PROCESS };
enum { ATTRIBUTE_MULTIPROCESSORS = 16, ATTRIBUTE_THREADS = 39, ATTRIBUTE_UNIFIED = 41,
       ATTRIBUTE_MAJOR = 75, ATTRIBUTE_MINOR = 76 };
#define NO_LIMIT UINT64_MAX

struct context { Device device; };
struct visible { uint32_t card, instance, compute; uint64_t bytes; };
struct allocation { struct allocation *next; DevicePointer at; uint64_t bytes; Device device; };

static pthread_mutex_t own = PTHREAD_MUTEX_INITIALIZER; /* protects the variables below */
static struct visible visible[DEVICES];
static int visible_count = -1;
static struct context primary[DEVICES];
static int contexts[DEVICES];
static struct allocation *allocations;
static DevicePointer next_pointer = 0x7f0000000000;
static __thread Context stack[DEPTH];
static __thread int depth;

/* ------------------------------------------------------------------ which devices */

static void show(uint32_t card, uint32_t instance, uint32_t compute, uint64_t mib) {
    if (visible_count < DEVICES)
        visible[visible_count++] = (struct visible){card, instance, compute, mib << 20};
}

static void show_mig(struct card *card, uint32_t index, const char *wanted) {
    char name[NAME];
    struct instance *each = card->instances;
    for (; each < card->instances + INSTANCES; each++)
        for (uint32_t compute = 0; each->used && compute < COMPUTES; compute++) {
            mig_uuid(card, each->id, compute, name, sizeof name);
            if (!each->computes[compute].used || (wanted && strcmp(name, wanted))) continue;
            show(index, each->id, compute, profile_of(card, each)->memory_mib);
            return; /* a process uses one MIG device */
        }
}

/* Select by index, GPU id or MIG device id; NULL means all. */
static void show_named(struct state *state, const char *wanted) {
    char number[16];
    for (uint32_t index = 0; index < state->card_count; index++) {
        struct card *card = &state->cards[index];
        snprintf(number, sizeof number, "%u", index);
        if (card->lost) continue;
        if (card->mig == MIG_ON)
            show_mig(card, index, wanted);
        else if (!wanted || !strcmp(wanted, number) || !strcmp(wanted, card->spec.uuid))
            show(index, 0, 0, card->spec.memory_mib);
    }
}

/* There is no container runtime here, so NVIDIA_VISIBLE_DEVICES applies directly. */
static void find_devices(struct state *state) {
    const char *named = getenv("CUDA_VISIBLE_DEVICES");
    char copy[1024], *rest = copy;
    if (!named) named = getenv("NVIDIA_VISIBLE_DEVICES");
    if (!named || !strcmp(named, "all")) {
        show_named(state, NULL);
        return;
    }
    snprintf(copy, sizeof copy, "%s", named);
    for (char *each; (each = strsep(&rest, ","));)
        if (*each) show_named(state, each);
}

int cuInit(unsigned flags) {
    struct state *state = state_current();
    (void)flags;
    if (!state) return CUDA_NO_DEVICE;
    pthread_mutex_lock(&own);
    state_lock(state);
    if (visible_count < 0 && state->loaded) {
        visible_count = 0;
        find_devices(state);
        for (Device device = 0; device < visible_count; device++) primary[device].device = device;
    }
    state_unlock(state);
    pthread_mutex_unlock(&own);
    return visible_count > 0 ? CUDA_OK : CUDA_NO_DEVICE;
}

static int known(Device device) {
    if (visible_count < 0) return CUDA_NOT_INITIALIZED;
    return device < 0 || device >= visible_count ? CUDA_INVALID_DEVICE : CUDA_OK;
}

static struct card *card_of(Device device) {
    return &state_current()->cards[visible[device].card];
}

int cuDriverGetVersion(int *version) {
    *version = 13000;
    return CUDA_OK;
}
int cuDeviceGetCount(int *count) {
    *count = visible_count;
    return visible_count < 0 ? CUDA_NOT_INITIALIZED : CUDA_OK;
}
int cuDeviceGet(Device *device, int ordinal) {
    *device = ordinal;
    return known(ordinal);
}
int cuDeviceGetName(char *out, int size, Device device) {
    int code = known(device);
    if (!code) snprintf(out, (size_t)size, "%s", card_of(device)->spec.name);
    return code;
}

int cuDeviceGetUuid(Uuid *out, Device device) {
    char name[NAME];
    int code = known(device), at = 0;
    if (code) return code;
    snprintf(name, sizeof name, "%s", card_of(device)->spec.uuid);
    for (const char *digit = name + strlen("GPU-"); *digit && at < 16; digit++) {
        unsigned byte;
        if (*digit == '-' || sscanf(digit, "%2x", &byte) != 1) continue;
        out->bytes[at++] = (unsigned char)byte;
        digit++;
    }
    return CUDA_OK;
}
int cuDeviceGetUuid_v2(Uuid *out, Device device) {
    struct visible *shown = &visible[device];
    char name[NAME], plain[NAME];
    int code = cuDeviceGetUuid(out, device);
    if (code || !shown->instance) return code;
    mig_uuid(card_of(device), shown->instance, shown->compute, name, sizeof name);
    size_t length = 0;
    for (const char *from = name + strlen("MIG-"); *from; from++)
        if (*from != '-') plain[length++] = *from;
    plain[length] = 0;
    for (int at = 0; at < 16; at++) {
        unsigned byte = 0;
        sscanf(plain + 2 * at, "%2x", &byte);
        out->bytes[at] = (unsigned char)byte;
    }
    return CUDA_OK;
}

int cuDeviceTotalMem_v2(size_t *bytes, Device device) {
    int code = known(device);
    if (!code) *bytes = visible[device].bytes;
    return code;
}
int cuDeviceGetPCIBusId(char *out, int size, Device device) {
    int code = known(device);
    if (!code) snprintf(out, (size_t)size, "0000:%02X:00.0", card_of(device)->spec.bus);
    return code;
}
int cuDeviceGetAttribute(int *value, int attribute, Device device) {
    int code = known(device);
    if (code) return code;
    struct card_spec *spec = &card_of(device)->spec;
    *value = attribute == ATTRIBUTE_MULTIPROCESSORS ? (int)spec->multiprocessors
             : attribute == ATTRIBUTE_THREADS       ? 2048
             : attribute == ATTRIBUTE_UNIFIED       ? 1
             : attribute == ATTRIBUTE_MAJOR         ? (int)spec->major
             : attribute == ATTRIBUTE_MINOR         ? (int)spec->minor
                                                    : 0;
    return CUDA_OK;
}

/* ------------------------------------------------------------------ memory limits of a process */

static uint64_t bytes_in(const char *text) {
    char *unit;
    uint64_t number = strtoull(text, &unit, 0);
    int shift = *unit == 'G' || *unit == 'g' ? 30 : *unit == 'M' || *unit == 'm' ? 20
              : *unit == 'K' || *unit == 'k' ? 10 : 0;
    return number << shift;
}

/* The MPS limit of one client: the daemon's default, or a lower one of its own. */
static uint64_t limit_of_mps(Device device) {
    const char *folder = getenv("CUDA_MPS_PIPE_DIRECTORY");
    const char *wish = getenv("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT");
    char path[512], line[128], key[16];
    uint64_t limit = NO_LIMIT;
    if (!folder) return limit;
    snprintf(path, sizeof path, "%s/limit-%d", folder, device);
    FILE *file = fopen(path, "r");
    if (file) {
        if (fgets(line, sizeof line, file)) limit = bytes_in(line);
        fclose(file);
    }
    snprintf(key, sizeof key, "%d=", device);
    const char *own_limit = wish ? strstr(wish, key) : NULL;
    if (own_limit && bytes_in(own_limit + strlen(key)) < limit)
        limit = bytes_in(own_limit + strlen(key));
    return limit;
}

static int within_cgroups(struct state *state, const struct process *process, uint64_t more) {
    struct limit *each = state->limits;
    for (; each < state->limits + LIMITS; each++) {
        const char *cgroup = cgroup_of(state, each);
        size_t length = strlen(cgroup);
        int below = !strncmp(process->cgroup, cgroup, length) &&
                    (!process->cgroup[length] || process->cgroup[length] == '/');
        if (!each->used || each->card != process->card || !below) continue;
        uint64_t used = bytes_below(state, each->card, cgroup);
        if (more > each->hard || used > each->hard - more) return 0;
    }
    return 1;
}

/* Whether an MPS daemon serves this process. */
static int has_mps(void) {
    const char *folder = getenv("CUDA_MPS_PIPE_DIRECTORY");
    char path[512];
    snprintf(path, sizeof path, "%s/control", folder ? folder : "");
    return folder && !access(path, F_OK);
}

static int may_enter(struct state *state, const struct visible *shown) {
    const struct card *card = &state->cards[shown->card];
    if (!state->loaded || card->lost || card->compute_mode == MODE_PROHIBITED) return 0;
    if (card->compute_mode != MODE_EXCLUSIVE_PROCESS || has_mps()) return 1;
    process_reap(state);
    for (struct process *each = state->processes; each < state->processes + PROCESSES; each++)
        if (each->pid && each->card == shown->card && each->pid != (uint32_t)getpid()) return 0;
    return 1;
}

static int charge_locked(struct state *state, Device device, uint64_t more) {
    struct visible *shown = &visible[device];
    if (!may_enter(state, shown)) return CUDA_DEVICE_UNAVAILABLE;
    int instance = shown->instance ? (int)shown->instance : ANY_INSTANCE;
    uint64_t used = bytes_used(state, shown->card, instance);
    struct process *process = process_of(state, shown->card, shown->instance);
    if (!process) return CUDA_OUT_OF_MEMORY;
    process->compute = shown->compute;
    if (has_mps()) process->kinds |= KIND_MPS;
    uint64_t limit = limit_of_mps(device);
    if (more > shown->bytes || used > shown->bytes - more || process->bytes + more > limit ||
        !within_cgroups(state, process, more)) {
        if (!process->bytes) memset(process, 0, sizeof *process);
        return CUDA_OUT_OF_MEMORY;
    }
    process->bytes += more;
    return CUDA_OK;
}

static int charge(Device device, uint64_t bytes) {
    struct state *state = state_current();
    state_lock(state);
    int code = charge_locked(state, device, bytes);
    state_unlock(state);
    return code;
}

static void give_back(Device device, uint64_t bytes) {
    struct state *state = state_current();
    state_lock(state);
    struct process *process = process_of(state, visible[device].card, visible[device].instance);
    if (process) {
        process->bytes = process->bytes > bytes ? process->bytes - bytes : 0;
        if (!process->bytes) memset(process, 0, sizeof *process);
    }
    state_unlock(state);
}

/* ------------------------------------------------------------------ contexts */

/* The first context of a process on a device takes memory of its own, as on a real GPU. */
static int retain(Device device) {
    pthread_mutex_lock(&own);
    int code = contexts[device] ? CUDA_OK : charge(device, state_current()->context_bytes);
    if (!code) contexts[device]++;
    pthread_mutex_unlock(&own);
    return code;
}

static void release(Device device) {
    pthread_mutex_lock(&own);
    if (contexts[device] && !--contexts[device])
        give_back(device, state_current()->context_bytes);
    pthread_mutex_unlock(&own);
}

static int present(Device *device) {
    if (visible_count < 0) return CUDA_NOT_INITIALIZED;
    if (!depth || !stack[depth - 1]) return CUDA_INVALID_CONTEXT;
    *device = stack[depth - 1]->device;
    return CUDA_OK;
}

int cuDevicePrimaryCtxRetain(Context *out, Device device) {
    int code = known(device);
    if (!code) code = retain(device);
    if (!code) *out = &primary[device];
    return code;
}
int cuDevicePrimaryCtxRelease_v2(Device device) {
    int code = known(device);
    if (!code) release(device);
    return code;
}
int cuDevicePrimaryCtxGetState(Device device, unsigned *flags, int *active) {
    int code = known(device);
    if (code) return code;
    *flags = 0;
    *active = contexts[device] > 0;
    return CUDA_OK;
}
int cuDevicePrimaryCtxSetFlags_v2(Device device, unsigned flags) {
    (void)flags;
    return known(device);
}

int cuCtxPushCurrent_v2(Context context) {
    if (depth == DEPTH) return CUDA_INVALID_CONTEXT;
    stack[depth++] = context;
    return CUDA_OK;
}
int cuCtxPopCurrent_v2(Context *out) {
    if (!depth) return CUDA_INVALID_CONTEXT;
    Context popped = stack[--depth];
    if (out) *out = popped;
    return CUDA_OK;
}
int cuCtxCreate_v2(Context *out, unsigned flags, Device device) {
    int code = known(device);
    (void)flags;
    if (!code) code = retain(device);
    if (code) return code;
    *out = malloc(sizeof **out);
    (*out)->device = device;
    return cuCtxPushCurrent_v2(*out);
}
int cuCtxCreate_v3(Context *out, void *affinities, int count, unsigned flags, Device device) {
    (void)affinities;
    (void)count;
    return cuCtxCreate_v2(out, flags, device);
}
int cuCtxCreate_v4(Context *out, void *parameters, unsigned flags, Device device) {
    (void)parameters;
    return cuCtxCreate_v2(out, flags, device);
}
int cuCtxDestroy_v2(Context context) {
    if (!context) return CUDA_INVALID_CONTEXT;
    if (depth && stack[depth - 1] == context) depth--;
    release(context->device);
    free(context);
    return CUDA_OK;
}
int cuCtxGetCurrent(Context *out) {
    *out = depth ? stack[depth - 1] : NULL;
    return CUDA_OK;
}
int cuCtxSetCurrent(Context context) {
    if (!depth) depth = 1;
    stack[depth - 1] = context;
    return CUDA_OK;
}
int cuCtxGetDevice(Device *out) { return present(out); }
int cuCtxSynchronize(void) {
    Device device;
    return present(&device);
}

/* ------------------------------------------------------------------ memory */

int cuMemAlloc_v2(DevicePointer *out, size_t bytes) {
    Device device = 0;
    int code = present(&device);
    if (!code && !bytes) code = CUDA_INVALID_VALUE;
    if (!code) code = charge(device, bytes);
    if (code) return code;
    struct allocation *made = malloc(sizeof *made);
    pthread_mutex_lock(&own);
    *made = (struct allocation){allocations, next_pointer, bytes, device};
    next_pointer += (bytes + 0x1fffff) & ~(size_t)0x1fffff;
    allocations = made;
    *out = made->at;
    pthread_mutex_unlock(&own);
    return CUDA_OK;
}
int cuMemAllocManaged(DevicePointer *out, size_t bytes, unsigned flags) {
    (void)flags;
    return cuMemAlloc_v2(out, bytes);
}
int cuMemAllocAsync(DevicePointer *out, size_t bytes, void *stream) {
    (void)stream;
    return cuMemAlloc_v2(out, bytes);
}
int cuMemAllocPitch_v2(DevicePointer *out, size_t *pitch, size_t width, size_t height,
                       unsigned element) {
    (void)element;
    *pitch = (width + 511) & ~(size_t)511;
    return cuMemAlloc_v2(out, *pitch * height);
}

int cuMemFree_v2(DevicePointer pointer) {
    struct allocation **link = &allocations, *found;
    pthread_mutex_lock(&own);
    while (*link && (*link)->at != pointer) link = &(*link)->next;
    found = *link;
    if (found) *link = found->next;
    pthread_mutex_unlock(&own);
    if (!found) return CUDA_INVALID_VALUE;
    give_back(found->device, found->bytes);
    free(found);
    return CUDA_OK;
}
int cuMemFreeAsync(DevicePointer pointer, void *stream) {
    (void)stream;
    return cuMemFree_v2(pointer);
}

int cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes) {
    Device device = 0;
    int code = present(&device);
    if (code) return code;
    struct state *state = state_current();
    struct visible *shown = &visible[device];
    state_lock(state);
    uint64_t used = bytes_used(state, shown->card, shown->instance ? (int)shown->instance
                                                                   : ANY_INSTANCE);
    state_unlock(state);
    *total_bytes = shown->bytes;
    *free_bytes = used < shown->bytes ? shown->bytes - used : 0;
    return CUDA_OK;
}

/* ------------------------------------------------------------------ work */

/* A kernel runs synchronously, and its time counts as the process's utilization of the GPU. */
int cuLaunchKernel(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                   unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,
                   void *stream, void **parameters, void **extra) {
    Device device = 0;
    int code = present(&device);
    (void)function, (void)grid_x, (void)grid_y, (void)grid_z, (void)block_x, (void)block_y;
    (void)block_z, (void)shared, (void)stream, (void)parameters, (void)extra;
    if (code) return code;
    struct state *state = state_current();
    uint64_t us = state->kernel_us;
    struct timespec burnt = {(time_t)(us / 1000000), (long)(us % 1000000) * 1000};
    uint64_t began = now_us();
    nanosleep(&burnt, NULL);
    state_lock(state);
    struct process *process = process_of(state, visible[device].card, visible[device].instance);
    int gone = !state->loaded || state->cards[visible[device].card].lost;
    if (process && !gone) process_busy(process, now_us() - began);
    state_unlock(state);
    return gone ? CUDA_LAUNCH_FAILED : CUDA_OK;
}

/* Calls without effect: copies, modules, streams. Each needs a context, and returns one token. */
static int token(void **out) {
    Device device;
    int code = present(&device);
    if (!code && out) *out = &stack;
    return code;
}
int cuMemcpyHtoD_v2(DevicePointer to, const void *from, size_t bytes) {
    (void)to, (void)from, (void)bytes;
    return token(NULL);
}
int cuMemcpyDtoH_v2(void *to, DevicePointer from, size_t bytes) {
    (void)from;
    memset(to, 0, bytes);
    return token(NULL);
}
int cuMemsetD8_v2(DevicePointer to, unsigned char value, size_t count) {
    (void)to, (void)value, (void)count;
    return token(NULL);
}
int cuModuleLoadData(void **module, const void *image) {
    (void)image;
    return token(module);
}
int cuModuleGetFunction(void **function, void *module, const char *name) {
    (void)module, (void)name;
    return token(function);
}
int cuModuleUnload(void *module) {
    (void)module;
    return CUDA_OK;
}
int cuStreamCreate(void **stream, unsigned flags) {
    (void)flags;
    return token(stream);
}
int cuStreamSynchronize(void *stream) {
    (void)stream;
    return CUDA_OK;
}
int cuStreamDestroy_v2(void *stream) {
    (void)stream;
    return CUDA_OK;
}

/* ------------------------------------------------------------------ names */

int cuGetErrorName(int code, const char **name) {
    *name = code == CUDA_OK                   ? "CUDA_SUCCESS"
            : code == CUDA_INVALID_VALUE      ? "CUDA_ERROR_INVALID_VALUE"
            : code == CUDA_OUT_OF_MEMORY      ? "CUDA_ERROR_OUT_OF_MEMORY"
            : code == CUDA_NOT_INITIALIZED    ? "CUDA_ERROR_NOT_INITIALIZED"
            : code == CUDA_DEVICE_UNAVAILABLE ? "CUDA_ERROR_DEVICE_UNAVAILABLE"
            : code == CUDA_NO_DEVICE          ? "CUDA_ERROR_NO_DEVICE"
            : code == CUDA_INVALID_DEVICE     ? "CUDA_ERROR_INVALID_DEVICE"
            : code == CUDA_INVALID_CONTEXT    ? "CUDA_ERROR_INVALID_CONTEXT"
            : code == CUDA_LAUNCH_FAILED      ? "CUDA_ERROR_LAUNCH_FAILED"
                                              : "CUDA_ERROR_UNKNOWN";
    return CUDA_OK;
}
int cuGetErrorString(int code, const char **text) { return cuGetErrorName(code, text); }

int cuGetExportTable(const void **table, const void *id) {
    (void)id;
    *table = NULL;
    return CUDA_NOT_SUPPORTED;
}

/* The newest version of the function with that name, as the CUDA runtime requests it. */
int cuGetProcAddress_v2(const char *name, void **out, int version, uint64_t flags, int *found) {
    static const char *versions[] = {"_v3", "_v2", ""};
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    char full[128];
    (void)version, (void)flags;
    *out = NULL;
    for (size_t at = 0; library && !*out && at < sizeof versions / sizeof *versions; at++) {
        snprintf(full, sizeof full, "%s%s", name, versions[at]);
        *out = dlsym(library, full);
    }
    if (found) *found = *out ? 0 : 1;
    return *out ? CUDA_OK : CUDA_NOT_FOUND;
}
int cuGetProcAddress(const char *name, void **out, int version, uint64_t flags) {
    return cuGetProcAddress_v2(name, out, version, flags, NULL);
}
