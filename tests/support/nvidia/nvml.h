/* NVML as nvidia-ml-py calls it: its numbers and structures, and shared declarations.
 *
 * The layouts are those of pynvml.py. Invariant: `enter` succeeds with the lock held, and then
 * exactly one `leave` follows.
 */
#ifndef FAKE_NVML_H
#define FAKE_NVML_H

#include "state.h"

enum {
    OK = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NO_PERMISSION = 4,
    NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, DRIVER_NOT_LOADED = 9, TIMEOUT = 10,
    FUNCTION_NOT_FOUND = 13, GPU_IS_LOST = 15, IN_USE = 19, INSUFFICIENT_RESOURCES = 23,
    ARGUMENT_VERSION_MISMATCH = 25,
};
enum { FULL_DEVICE = 1, MIG_DEVICE = 2, GPU_INSTANCE = 4, COMPUTE_INSTANCE = 8 };
#define ANY_DEVICE (FULL_DEVICE | MIG_DEVICE)
#define NO_ID 0xffffffffu

typedef void *Handle;
typedef unsigned long long Long;

typedef struct {
    char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32];
} Pci;
typedef struct { Long total, free, used; } Memory;
typedef struct { unsigned version; Long total, reserved, free, used; } Memory2;
typedef struct { unsigned gpu, memory; } Utilisation;
typedef struct { unsigned pid; Long used; unsigned gpu_instance, compute_instance; } Running;
typedef struct { unsigned pid; Long used; } RunningWhole;
typedef struct { unsigned pid; Long at_us; unsigned sm, memory, encoder, decoder; } Sample;
typedef struct {
    uint32_t field, scope; int64_t at_us, latency_us; uint32_t type, code;
    union { double real; unsigned narrow; Long wide; } value;
} Field;
typedef struct { Handle device; Long type, data; unsigned gpu_instance, compute_instance; } Event;
typedef struct {
    unsigned version; unsigned char cluster[16]; int status; unsigned clique; unsigned char state;
    unsigned health;
} Fabric2;
typedef struct { const char *path; Long soft, hard; } SetLimit;
typedef struct { const char *path; Long soft, hard, used; } GetLimit;

typedef struct {
    unsigned id, p2p, slices, instances, multiprocessors, copy, decoders, encoders, jpeg, ofa;
    Long memory_mib;
} ProfileInfo;
typedef struct {
    unsigned version, id, p2p, slices, instances, multiprocessors, copy, decoders, encoders, jpeg;
    unsigned ofa;
    Long memory_mib;
    char name[96];
} ProfileInfo2;
typedef struct { unsigned start, size; } Placement;
typedef struct { Handle device; unsigned id, profile; Placement placement; } InstanceInfo;
typedef struct {
    unsigned id, slices, instances, multiprocessors, copy, decoders, encoders, jpeg, ofa;
} ComputeProfileInfo;
typedef struct {
    unsigned version, id, slices, instances, multiprocessors, copy, decoders, encoders, jpeg, ofa;
    char name[96];
} ComputeProfileInfo2;
typedef struct {
    Handle device, gpu_instance; unsigned id, profile; Placement placement;
} ComputeInfo;
typedef struct {
    unsigned multiprocessors, copy, decoders, encoders, jpeg, ofa, gpu_slices, compute_slices;
    Long memory_mib;
} Attributes;

typedef struct { unsigned version, supported; } MonitorSupport;
typedef struct { const char *name, *words, *unit; } MetricInfo;
typedef struct { unsigned id; int code; double value; MetricInfo info; } Metric;
typedef struct { unsigned version, count; Handle before, after; Metric metrics[]; } Metrics;

/* The target of a handle, while the lock is held. */
struct visit {
    struct state *state;
    struct card *card;
    unsigned index, compute;
    int kind;
    struct instance *instance;
};

int begin(struct state **state);                              /* for calls without a device */
int enter(Handle handle, int kinds, struct visit *visit);
int leave(struct visit *visit, int code);
int finish(struct state *state, int code);
Handle handle_of(struct state *state, int kind, unsigned card, unsigned instance, unsigned compute);
int put_text(char *out, unsigned size, const char *text);
void bus_id(const struct card *card, char *out, int size);
int supported(uint32_t planted);                              /* SUPPORTED, or an error code */
int busy(struct state *state, unsigned card, int instance);   /* whether processes are on it */

#endif
