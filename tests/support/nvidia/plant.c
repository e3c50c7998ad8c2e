/* Changes that a test makes to the fake driver: a separate library, loaded by driver.py.
 *
 * Invariant: every function takes the state as a handle, so that one test process can have any
 * number of fake drivers. It returns 0 on success.
 */
#include "state.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

enum { XID_EVENT = 8, HOPPER = 9, FABRIC_COMPLETED = 3 };
#define REFUSED (-1)

unsigned fake_spec_size(void) { return sizeof(struct card_spec); }
struct state *fake_create(const char *path) { return state_create(path); }
void fake_close(struct state *state) { state_close(state); }

static struct card *locked(struct state *state, unsigned card) {
    state_lock(state);
    return card < state->card_count ? &state->cards[card] : NULL;
}

static int done(struct state *state, int answer) {
    state_changed(state);
    state_unlock(state);
    return answer;
}

int fake_add_card(struct state *state, const struct card_spec *spec) {
    state_lock(state);
    if (state->card_count == CARDS) return done(state, REFUSED);
    struct card *card = &state->cards[state->card_count++];
    card->spec = *spec;
    card->mig = card->mig_pending = spec->mig;
    card->events_supported = card->ecc_supported = card->rows_supported = 1;
    card->fabric_supported = 1;
    if (spec->major >= HOPPER && spec->switch_links) card->fabric_state = FABRIC_COMPLETED;
    for (unsigned link = 0; link < spec->switch_links && link < LINKS; link++)
        card->links[link] = LINK_SWITCH;
    return done(state, 0);
}

/* ------------------------------------------------------------------ numeric properties of a GPU */

static const struct { const char *name; size_t offset; int wide; } NUMBERS[] = {
    {"compute_mode", offsetof(struct card, compute_mode), 0},
    {"ecc_corrected", offsetof(struct card, ecc_corrected), 1},
    {"ecc_supported", offsetof(struct card, ecc_supported), 0},
    {"ecc_uncorrected", offsetof(struct card, ecc_uncorrected), 1},
    {"events_supported", offsetof(struct card, events_supported), 0},
    {"fabric_state", offsetof(struct card, fabric_state), 0},
    {"fabric_status", offsetof(struct card, fabric_status), 0},
    {"fabric_supported", offsetof(struct card, fabric_supported), 0},
    {"hung", offsetof(struct card, hung), 0},
    {"memory_percent", offsetof(struct card, memory_percent), 0},
    {"mig", offsetof(struct card, mig), 0},
    {"mig_pending", offsetof(struct card, mig_pending), 0},
    {"recovery_action", offsetof(struct card, recovery_action), 0},
    {"rows_corrected", offsetof(struct card, rows_corrected), 0},
    {"rows_failed", offsetof(struct card, rows_failed), 0},
    {"rows_pending", offsetof(struct card, rows_pending), 0},
    {"rows_supported", offsetof(struct card, rows_supported), 0},
    {"rows_uncorrected", offsetof(struct card, rows_uncorrected), 0},
    {"sm_percent", offsetof(struct card, sm_percent), 0},
    {"unprivileged", offsetof(struct card, unprivileged), 0},
};

int fake_set(struct state *state, unsigned index, const char *name, unsigned long long value) {
    struct card *card = locked(state, index);
    for (size_t at = 0; card && at < sizeof NUMBERS / sizeof *NUMBERS; at++)
        if (!strcmp(NUMBERS[at].name, name)) {
            char *where = (char *)card + NUMBERS[at].offset;
            if (NUMBERS[at].wide) *(uint64_t *)where = value;
            else *(uint32_t *)where = (uint32_t)value;
            return done(state, 0);
        }
    return done(state, REFUSED);
}

int fake_link(struct state *state, unsigned index, unsigned link, unsigned leads_to) {
    struct card *card = locked(state, index);
    if (!card || link >= LINKS) return done(state, REFUSED);
    card->links[link] = leads_to;
    return done(state, 0);
}

/* ------------------------------------------------------------------ faults */

int fake_event(struct state *state, unsigned card, unsigned long long type,
               unsigned long long data, unsigned instance, unsigned compute) {
    if (!locked(state, card)) return done(state, REFUSED);
    state->events[state->event_count++ % EVENTS] =
        (struct event){card, instance, compute, type, data};
    return done(state, 0);
}

int fake_xid(struct state *state, unsigned card, unsigned long long xid, unsigned instance,
             unsigned compute) {
    return fake_event(state, card, XID_EVENT, xid, instance, compute);
}

/* A GPU that lost power has no processes and no instances. */
static void forget(struct state *state, unsigned index) {
    struct process *process = state->processes;
    for (; process < state->processes + PROCESSES; process++)
        if (process->pid && process->card == index) memset(process, 0, sizeof *process);
    memset(state->cards[index].instances, 0, sizeof state->cards[index].instances);
}

int fake_fall_off(struct state *state, unsigned index) {
    struct card *card = locked(state, index);
    if (!card) return done(state, REFUSED);
    card->lost = 1;
    card->falls++;
    forget(state, index);
    return done(state, 0);
}

int fake_come_back(struct state *state, unsigned index) {
    struct card *card = locked(state, index);
    if (!card) return done(state, REFUSED);
    card->lost = card->unlisted = 0;
    return done(state, 0);
}

void fake_unload(struct state *state) {
    state_lock(state);
    state->loaded = 0;
    for (unsigned index = 0; index < state->card_count; index++) forget(state, index);
    done(state, 0);
}

/* A starting driver lists the GPUs that it finds; MIG mode is stored on the GPU itself. */
void fake_load(struct state *state) {
    state_lock(state);
    state->loaded = 1;
    state->epoch++;
    state->event_sets = state->clients = 0;
    for (unsigned index = 0; index < state->card_count; index++) {
        struct card *card = &state->cards[index];
        card->unlisted = card->lost;
        card->mig = card->mig_pending;
    }
    done(state, 0);
}

/* ------------------------------------------------------------------ processes */

int fake_process(struct state *state, unsigned card, unsigned pid, unsigned instance,
                 unsigned compute, unsigned long long bytes, unsigned sm_percent,
                 unsigned kinds, const char *cgroup) {
    struct process *each = state->processes, *place = NULL;
    struct card *known = locked(state, card);
    for (; each < state->processes + PROCESSES; each++)
        if (each->planted && each->pid == pid && each->card == card) place = each;
    if (!place) place = process_free(state);
    if (!known || !place) return done(state, REFUSED);
    *place = (struct process){.pid = pid, .planted = 1, .kinds = kinds, .card = card,
                              .instance = instance, .compute = compute, .bytes = bytes,
                              .sm_percent = sm_percent};
    snprintf(place->cgroup, sizeof place->cgroup, "%s", cgroup);
    return done(state, 0);
}

int fake_end_process(struct state *state, unsigned pid) {
    struct process *each = state->processes;
    int answer = REFUSED;
    state_lock(state);
    for (; each < state->processes + PROCESSES; each++)
        if (each->planted && each->pid == pid) {
            memset(each, 0, sizeof *each);
            answer = 0;
        }
    return done(state, answer);
}

/* ------------------------------------------------------------------ the driver as a whole */

void fake_limits_supported(struct state *state, unsigned supported, const char *cgroups) {
    state_lock(state);
    state->limits_supported = supported;
    snprintf(state->cgroups, sizeof state->cgroups, "%s", cgroups);
    done(state, 0);
}

void fake_costs(struct state *state, unsigned long long context_bytes,
                unsigned long long kernel_us) {
    state_lock(state);
    state->context_bytes = context_bytes;
    state->kernel_us = kernel_us;
    done(state, 0);
}

unsigned fake_event_sets(struct state *state) {
    state_lock(state);
    unsigned made = state->event_sets;
    state_unlock(state);
    return made;
}

unsigned fake_clients(struct state *state) {
    state_lock(state);
    unsigned clients = state->clients;
    state_unlock(state);
    return clients;
}
