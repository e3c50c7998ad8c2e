/* Create, map and lock the file of the fake driver; see state.h. */
#define _GNU_SOURCE
#include "state.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define WINDOW_US 200000 /* the window of utilisation */

static struct state *current;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static struct state *map(int file) {
    struct state *state =
        mmap(NULL, sizeof *state, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    return state == MAP_FAILED ? NULL : state;
}

struct state *state_create(const char *path) {
    pthread_mutexattr_t attributes;
    int file = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (file < 0) return NULL;
    if (ftruncate(file, sizeof(struct state))) {
        close(file);
        return NULL;
    }
    struct state *state = map(file);
    if (!state) return NULL;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(&state->lock, &attributes);
    state->loaded = 1;
    state->epoch = 1;
    state->context_bytes = 300ull << 20;
    state->kernel_us = 100;
    snprintf(state->version, sizeof state->version, "580.00-fake");
    __atomic_store_n(&state->magic, STATE_MAGIC, __ATOMIC_RELEASE);
    return state;
}

struct state *state_open(const char *path) {
    struct stat about;
    int file = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (file < 0) return NULL;
    if (fstat(file, &about) || about.st_size != sizeof(struct state)) {
        close(file);
        return NULL;
    }
    struct state *state = map(file);
    if (state && __atomic_load_n(&state->magic, __ATOMIC_ACQUIRE) != STATE_MAGIC) {
        state_close(state);
        return NULL;
    }
    return state;
}

void state_close(struct state *state) { munmap(state, sizeof *state); }

static void open_named(void) { current = state_open(getenv(STATE_VARIABLE)); }

struct state *state_current(void) {
    pthread_once(&once, open_named);
    return __atomic_load_n(&current, __ATOMIC_ACQUIRE);
}

/* The previous state stays mapped, since a thread may still be waiting in it. */
void state_use(const char *path) {
    pthread_once(&once, open_named);
    __atomic_store_n(&current, state_open(path), __ATOMIC_RELEASE);
}

void state_lock(struct state *state) {
    if (pthread_mutex_lock(&state->lock) == EOWNERDEAD) pthread_mutex_consistent(&state->lock);
}

void state_unlock(struct state *state) { pthread_mutex_unlock(&state->lock); }

void state_changed(struct state *state) {
    __atomic_add_fetch(&state->changes, 1, __ATOMIC_RELEASE);
    syscall(SYS_futex, &state->changes, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

uint64_t now_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
}

/* ------------------------------------------------------------------ MIG */

const struct profile *profile_of(const struct card *card, const struct instance *instance) {
    return &card->spec.profiles[instance->profile];
}

struct instance *instance_by_id(struct card *card, uint32_t id) {
    for (struct instance *each = card->instances; each < card->instances + INSTANCES; each++)
        if (each->used && each->id == id) return each;
    return NULL;
}

/* As with the real driver, the same instance of the same GPU always has the same name. */
void mig_uuid(const struct card *card, uint32_t instance, uint32_t compute, char *out, int size) {
    const char *uuid = card->spec.uuid + strlen("GPU-");
    snprintf(out, size, "MIG-%.8s-%04x-5%03x-%s", uuid, instance, compute, uuid + 19);
}

/* ------------------------------------------------------------------ processes */

static uint64_t own_namespace(void) {
    struct stat about;
    return stat("/proc/self/ns/pid", &about) ? 0 : about.st_ino;
}

/* The start of a process in kernel ticks; 0 if it has ended, reaped or not. */
static uint64_t start_of(uint32_t pid) {
    char path[64], text[1024], life;
    unsigned long long started = 0;
    snprintf(path, sizeof path, "/proc/%u/stat", pid);
    FILE *file = fopen(path, "r");
    if (!file) return 0;
    text[fread(text, 1, sizeof text - 1, file)] = 0;
    fclose(file);
    char *behind_name = strrchr(text, ')');
    if (!behind_name) return 0;
    int found = sscanf(behind_name + 1,
                       " %c %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s "
                       "%*s %llu", &life, &started);
    return found == 2 && life != 'Z' && life != 'X' ? started : 0;
}

/* Forget ended processes, but only those of our own PID namespace. */
void process_reap(struct state *state) {
    uint64_t here = own_namespace();
    for (struct process *each = state->processes; each < state->processes + PROCESSES; each++)
        if (each->pid && !each->planted && each->namespace == here &&
            start_of(each->pid) != each->started)
            memset(each, 0, sizeof *each);
}

struct process *process_free(struct state *state) {
    for (struct process *each = state->processes; each < state->processes + PROCESSES; each++)
        if (!each->pid) return each;
    return NULL;
}

static void read_cgroup(char *out, size_t size) {
    char line[PATH + 64];
    FILE *file = fopen("/proc/self/cgroup", "r");
    *out = 0;
    if (!file) return;
    while (fgets(line, sizeof line, file))
        if (!strncmp(line, "0::", 3)) {
            line[strcspn(line, "\n")] = 0;
            snprintf(out, size, "%s", line + 3);
        }
    fclose(file);
}

struct process *process_of(struct state *state, uint32_t card, uint32_t instance) {
    uint32_t pid = (uint32_t)getpid();
    for (struct process *each = state->processes; each < state->processes + PROCESSES; each++)
        if (each->pid == pid && !each->planted && each->card == card &&
            each->instance == instance && each->namespace == own_namespace())
            return each;
    struct process *made = process_free(state);
    if (made) {
        *made = (struct process){.pid = pid, .kinds = KIND_COMPUTE, .card = card,
                                  .instance = instance};
        made->namespace = own_namespace();
        made->started = start_of(pid);
        made->window_us = now_us();
        read_cgroup(made->cgroup, sizeof made->cgroup);
    }
    return made;
}

void process_busy(struct process *process, uint64_t us) {
    uint64_t now = now_us(), passed = now - process->window_us;
    process->busy_us += us;
    if (passed < WINDOW_US) return;
    process->busy_percent = process->busy_us * 100 / passed;
    if (process->busy_percent > 100) process->busy_percent = 100;
    process->busy_us = 0;
    process->window_us = now;
}

uint32_t process_percent(const struct process *process) {
    if (process->planted) return process->sm_percent;
    int fresh = now_us() - process->window_us < 5 * WINDOW_US;
    return fresh ? (uint32_t)process->busy_percent : 0;
}

uint64_t bytes_used(struct state *state, uint32_t card, int instance) {
    uint64_t bytes = 0;
    process_reap(state);
    for (struct process *each = state->processes; each < state->processes + PROCESSES; each++)
        if (each->pid && each->card == card &&
            (instance == ANY_INSTANCE || each->instance == (uint32_t)instance))
            bytes += each->bytes;
    return bytes;
}

uint64_t bytes_below(struct state *state, uint32_t card, const char *cgroup) {
    uint64_t bytes = 0;
    size_t length = strlen(cgroup);
    process_reap(state);
    for (struct process *each = state->processes; each < state->processes + PROCESSES; each++)
        if (each->pid && each->card == card && !strncmp(each->cgroup, cgroup, length) &&
            (!each->cgroup[length] || each->cgroup[length] == '/'))
            bytes += each->bytes;
    return bytes;
}

const char *cgroup_of(const struct state *state, const struct limit *limit) {
    return limit->path + strlen(state->cgroups);
}
