/* A stand-in for HAMi-core's libvgpu.so, for tests without a built one: it honours only the region
 * and the environment of a grant.
 *
 * The layout is that of HAMi-core 1.2. Invariants: all processes of one region together
 * never use more than its limit, and no memory query returns more than the share.
 */
#define _GNU_SOURCE
#include "cuda.h"
#include "nvml.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum {
    IDS = 64, ID = 96, MEMORY = 1600, CORES = 1728, SLOTS = 1856, SLOT = 1960, SLOT_COUNT = 1024,
    USED = 8, USED_SIZE = 64, TOTAL = 32, COUNT = SLOTS + SLOT_COUNT * SLOT, SWITCH = COUNT + 4,
    RECENT = COUNT + 8, LAST_KERNEL = COUNT + 16, SIZE = COUNT + 56, TAKEN = 64, WHOLE = 100,
};
static const char REGION[] = "CUDA_DEVICE_MEMORY_SHARED_CACHE", BARE[] = "/tmp/cudevshr.cache";
static char *region, *own_slot;
static struct { DevicePointer at; size_t bytes; Device device; } taken[TAKEN];

#define AT(type, offset) (*(volatile type *)(region + (offset)))

void *dlsym(void *handle, const char *name);

static uint64_t clock_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

static void *real(const char *library, const char *name) {
    static void *(*find)(void *, const char *);
    if (!find) find = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.34");
    if (!find) find = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
    return find(library ? dlopen(library, RTLD_NOW) : RTLD_NEXT, name);
}

static int present(Device *device) {
    int (*ask)(Device *) = real(NULL, "cuCtxGetDevice");
    return ask(device);
}

static int attached(void) {
    if (region) return 1;
    const char *path = getenv(REGION);
    int file = open(path ? path : BARE, O_RDWR);
    void *found = file < 0 ? MAP_FAILED : mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (file >= 0) close(file);
    if (found == MAP_FAILED) return 0;
    region = found;
    own_slot = region + SLOTS + __sync_fetch_and_add((int *)(region + COUNT), 1) * SLOT;
    *(volatile int *)own_slot = getpid();
    return 1;
}

/* The lock is released when the descriptor is closed or the process ends. */
static int locked(void) {
    const char *path = getenv(REGION);
    int file = open(path ? path : BARE, O_RDWR | O_CLOEXEC);
    if (file >= 0) flock(file, LOCK_EX);
    return file;
}

static uint64_t *used_by(char *slot, int position) {
    return (uint64_t *)(slot + USED + position * USED_SIZE + TOTAL);
}

static uint64_t used(int position) {
    uint64_t bytes = 0;
    for (int at = 0; at < AT(int, COUNT) && at < SLOT_COUNT; at++) {
        char *slot = region + SLOTS + at * SLOT;
        if (!kill(*(int *)slot, 0)) bytes += *used_by(slot, position); /* not if it ended */
    }
    return bytes;
}

static int take(DevicePointer *out, size_t bytes, Device device) {
    int (*allocate)(DevicePointer *, size_t) = real(NULL, "cuMemAlloc_v2");
    int at = 0;
    uint64_t limit = AT(uint64_t, MEMORY + 8 * device);
    if (limit && used(device) + bytes > limit) return CUDA_OUT_OF_MEMORY;
    int code = allocate(out, bytes);
    while (at < TAKEN && taken[at].bytes) at++;
    if (code || at == TAKEN) return code;
    taken[at].at = *out, taken[at].bytes = bytes, taken[at].device = device;
    *used_by(own_slot, device) += bytes;
    return code;
}

int cuMemAlloc_v2(DevicePointer *out, size_t bytes) {
    int (*allocate)(DevicePointer *, size_t) = real(NULL, "cuMemAlloc_v2");
    Device device = 0;
    if (!attached() || present(&device)) return allocate(out, bytes);
    int file = locked(); /* check and allocate atomically */
    int code = take(out, bytes, device);
    if (file >= 0) close(file);
    return code;
}

int cuMemFree_v2(DevicePointer pointer) {
    int (*give_back)(DevicePointer) = real(NULL, "cuMemFree_v2");
    for (int at = 0; region && at < TAKEN; at++)
        if (taken[at].bytes && taken[at].at == pointer) {
            *used_by(own_slot, taken[at].device) -= taken[at].bytes;
            taken[at].bytes = 0;
        }
    return give_back(pointer);
}

int cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes) {
    int (*ask)(size_t *, size_t *) = real(NULL, "cuMemGetInfo_v2");
    Device device = 0;
    int code = ask(free_bytes, total_bytes);
    if (code || !attached() || present(&device)) return code;
    uint64_t limit = AT(uint64_t, MEMORY + 8 * device), held = used(device);
    if (!limit || limit > *total_bytes) return code;
    *total_bytes = limit;
    *free_bytes = held < limit ? limit - held : 0;
    return code;
}

/* Limit compute: after each kernel, wait in proportion to its duration. */
int cuLaunchKernel(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                   unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,
                   void *stream, void **parameters, void **extra) {
    int (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                  void *, void **, void **) = real(NULL, "cuLaunchKernel");
    if (!attached())
        return launch(function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared, stream,
                      parameters, extra);
    AT(uint64_t, LAST_KERNEL) = time(NULL);
    while (AT(int, SWITCH) && AT(int, RECENT) < 0) usleep(10000);
    if (AT(int, SWITCH)) AT(int, RECENT) = 2; /* as HAMi-core of mid 2026: not while idle */
    uint64_t began = clock_us(), limit = AT(uint64_t, CORES);
    int code = launch(function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared, stream,
                      parameters, extra);
    if (AT(int, SWITCH) && limit && limit < WHOLE)
        usleep((clock_us() - began) * (WHOLE - limit) / limit);
    return code;
}

/* The function of nvidia-smi and nvidia-ml-py, which look it up by name in the library. */
int nvmlDeviceGetMemoryInfo(Handle device, Memory *out) {
    static const char NVML[] = "libnvidia-ml.so.1";
    int (*ask)(Handle, Memory *) = real(NVML, "nvmlDeviceGetMemoryInfo");
    int (*name)(Handle, char *, unsigned) = real(NVML, "nvmlDeviceGetUUID");
    char uuid[ID] = "";
    int code = ask(device, out);
    if (code || !attached() || name(device, uuid, sizeof uuid)) return code;
    for (uint64_t at = 0; at < AT(uint64_t, 56); at++)
        if (!strcmp(region + IDS + at * ID, uuid) && AT(uint64_t, MEMORY + 8 * at)) {
            out->total = AT(uint64_t, MEMORY + 8 * at);
            out->used = used((int)at);
            out->free = out->used < out->total ? out->total - out->used : 0;
        }
    return code;
}

void *dlsym(void *handle, const char *name) {
    if (!strcmp(name, "nvmlDeviceGetMemoryInfo")) return nvmlDeviceGetMemoryInfo;
    static void *(*find)(void *, const char *);
    if (!find) find = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.34");
    if (!find) find = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
    return find(handle, name);
}
