/* The state of the fake NVIDIA driver's GPUs in one file, as a kernel module would keep it.
 *
 * Every library of the fake driver and the test itself map the same file, so that processes see one
 * another's memory, MIG instances and faults as through the real driver. Invariants: every reader
 * and writer holds the lock; a process that dies while it holds the lock blocks no other; `changes`
 * grows with everything that a test plants, and waiting for events waits on it.
 */
#ifndef FAKE_STATE_H
#define FAKE_STATE_H

#include <pthread.h>
#include <stdint.h>

#define STATE_VARIABLE "APPORTION_FAKE_NVIDIA" /* the path of the file */
#define STATE_MAGIC 0x4e564641u
#define ANY_INSTANCE (-1)

enum {
    CARDS = 16, PROFILES = 8, INSTANCES = 8, COMPUTES = 8, STARTS = 8, SLICES = 8,
    COMPUTE_SLICES = 7, LINKS = 18, PROCESSES = 256, EVENTS = 256, LIMITS = 64, PATH = 256,
};
enum { MIG_OFF, MIG_ON, MIG_NONE };
enum { LINK_NONE, LINK_DOWN, LINK_SWITCH, LINK_CARD /* plus the index of the peer */ };
enum { UNSUPPORTED, SUPPORTED, PREDATED /* the driver lacks the function */ };
enum { KIND_COMPUTE = 1, KIND_GRAPHICS = 2, KIND_MPS = 4 }; /* bits: how a process uses a GPU */
enum { ECC_CORRECTED, ECC_UNCORRECTED, ECC_KINDS };

/* A size of GPU instance. `kind` is NVML_GPU_INSTANCE_PROFILE_*, `span` counts memory slices. */
struct profile {
    char name[32];
    uint32_t kind, id, slices, span, memory_mib, multiprocessors, at_most, start_count;
    uint32_t starts[STARTS];
};

/* The hardware of a GPU; driver.py has the same structure. */
struct card_spec {
    char name[64], uuid[48];
    uint64_t memory_mib;
    uint32_t bus, numa, major, minor, multiprocessors, mig, switch_links, profile_count;
    struct profile profiles[PROFILES];
};

struct compute { uint32_t used, profile, start, size; };
/* A GPU instance; `id` is never 0, which means the whole GPU. */
struct instance { uint32_t used, id, profile, start; struct compute computes[COMPUTES]; };

struct card {
    struct card_spec spec;
    uint32_t mig, mig_pending, unprivileged;
    uint32_t hung;                  /* calls on it do not return until this is 0 */
    uint32_t lost, unlisted, falls; /* unlisted: the driver started while the GPU was lost */
    uint32_t sm_percent, memory_percent, recovery_action, compute_mode, events_supported;
    uint32_t rows_corrected, rows_uncorrected, rows_pending, rows_failed;
    uint32_t ecc_supported, rows_supported, fabric_supported, fabric_state, fabric_status;
    uint64_t ecc_corrected, ecc_uncorrected;
    uint32_t links[LINKS];
    struct instance instances[INSTANCES];
};

/* A process on a GPU. One that a test planted lives until the test removes it. */
struct process {
    uint32_t pid, planted, kinds, card, instance, compute;
    uint64_t bytes, namespace, started;
    uint32_t sm_percent, memory_percent;
    uint64_t window_us, busy_us, busy_percent;
    char cgroup[PATH];
};

struct event { uint32_t card, instance, compute; uint64_t type, data; };
struct limit { uint32_t used, card; uint64_t soft, hard; char path[PATH]; };

struct state {
    uint32_t magic, card_count, changes, loaded;
    pthread_mutex_t lock;
    uint64_t epoch, event_count;     /* epoch: how often the driver was started */
    uint64_t context_bytes, kernel_us; /* memory of a context, and duration of a kernel */
    uint32_t limits_supported, event_sets, clients;
    char cgroups[PATH];              /* the folder that the node's cgroups are mounted at */
    char version[32];
    struct card cards[CARDS];
    struct process processes[PROCESSES];
    struct event events[EVENTS];
    struct limit limits[LIMITS];
};

struct state *state_create(const char *path);
struct state *state_open(const char *path); /* NULL if there is no such driver */
void state_close(struct state *state);
struct state *state_current(void);          /* set by fake_use, else the variable */
void state_use(const char *path);           /* use another one; NULL for none */
void state_lock(struct state *state);
void state_unlock(struct state *state);
void state_changed(struct state *state);    /* wakes waiters; the lock must be held */

uint64_t now_us(void);
const struct profile *profile_of(const struct card *card, const struct instance *instance);
struct instance *instance_by_id(struct card *card, uint32_t id);
void mig_uuid(const struct card *card, uint32_t instance, uint32_t compute, char *out, int size);

void process_reap(struct state *state);
struct process *process_of(struct state *state, uint32_t card, uint32_t instance); /* our own */
struct process *process_free(struct state *state);
void process_busy(struct process *process, uint64_t us);
uint32_t process_percent(const struct process *process);
uint64_t bytes_used(struct state *state, uint32_t card, int instance);
uint64_t bytes_below(struct state *state, uint32_t card, const char *cgroup);
const char *cgroup_of(const struct state *state, const struct limit *limit); /* as the kernel has it */

#endif
