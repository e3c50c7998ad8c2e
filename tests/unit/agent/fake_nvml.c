/* A driver without cards: the part of libnvidia-ml.so.1 that the agent calls, for two GPUs.
 *
 * What happens to the cards is read at every call from the file that FAKE_NVML names, one line each:
 *     lost INDEX              the driver has lost the card
 *     xid SERIAL INDEX CODE   a critical XID; delivered once per serial, which must grow
 *     action INDEX CODE       the recovery action that the driver asks for
 *     rows INDEX PENDING FAILED
 *     mig INDEX               MIG is enabled
 * The structures are those of NVIDIA's nvml.h.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { OK = 0, INVALID = 2, NOT_SUPPORTED = 3, TIMEOUT = 10, LOST = 15 };

typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; } Pci;
typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { void *device; unsigned long long type, data; unsigned gpu, compute; } Event;
typedef struct {
    uint32_t field, scope; int64_t time, latency; uint32_t type; uint32_t result;
    union { double d; unsigned u; unsigned long long ull; } value;
} Field;

static const char *UUID[] = {"GPU-aaaaaaaa-0000-0000-0000-000000000000",
                             "GPU-bbbbbbbb-1111-1111-1111-111111111111"};
static const char *NAME[] = {"NVIDIA A100-SXM4-40GB", "Tesla T4"};
static const unsigned long long MEMORY_MIB[] = {40960, 15360};
static const char *BUS[] = {"00000000:3B:00.0", "00000000:5E:00.0"};
static unsigned long last_serial;

/* The numbers after the newest line `what INDEX`; how many there are, -1 without such a line. */
static int said(const char *what, int index, unsigned *a, unsigned *b) {
    char line[128], word[16];
    int found = -1, n;
    unsigned i, x = 0, y = 0;
    FILE *file = fopen(getenv("FAKE_NVML"), "r");
    if (!file) return -1;
    while (fgets(line, sizeof line, file))
        if ((n = sscanf(line, "%15s %u %u %u", word, &i, &x, &y)) >= 2 && !strcmp(word, what) && (int)i == index) {
            found = n - 2;
            *a = x;
            *b = y;
        }
    fclose(file);
    return found;
}

static int index_of(void *handle) { return (int)(intptr_t)handle - 1; }
static int lost(int index) { unsigned a, b; return said("lost", index, &a, &b) >= 0; }

int nvmlInitWithFlags(unsigned flags) { (void)flags; return OK; }
int nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(int code) { (void)code; return "fake"; }
int nvmlSystemGetDriverVersion(char *out, unsigned size) { snprintf(out, size, "570.00-fake"); return OK; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 2; return OK; }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) {
    if (index > 1) return INVALID;
    if (lost((int)index)) return LOST;
    *handle = (void *)(intptr_t)(index + 1);
    return OK;
}
int nvmlDeviceGetUUID(void *h, char *out, unsigned size) {
    if (lost(index_of(h))) return LOST;
    snprintf(out, size, "%s", UUID[index_of(h)]);
    return OK;
}
int nvmlDeviceGetName(void *h, char *out, unsigned size) { snprintf(out, size, "%s", NAME[index_of(h)]); return OK; }
int nvmlDeviceGetMemoryInfo(void *h, Memory *out) {
    out->total = MEMORY_MIB[index_of(h)] << 20;
    out->free = out->total;
    out->used = 0;
    return OK;
}
int nvmlDeviceGetMigMode(void *h, unsigned *current, unsigned *pending) {
    unsigned a, b;
    if (index_of(h) == 1) return NOT_SUPPORTED; /* a T4 has no MIG */
    *current = *pending = said("mig", index_of(h), &a, &b) >= 0;
    return OK;
}
int nvmlDeviceGetPciInfo_v3(void *h, Pci *out) {
    memset(out, 0, sizeof *out);
    snprintf(out->bus_id, sizeof out->bus_id, "%s", BUS[index_of(h)]);
    return OK;
}
int nvmlDeviceGetFieldValues(void *h, int count, Field *fields) {
    unsigned a = 0, b;
    if (count != 1 || fields[0].field != 230) return INVALID;
    said("action", index_of(h), &a, &b);
    fields[0].result = OK;
    fields[0].value.u = a;
    return OK;
}
int nvmlDeviceGetRemappedRows(void *h, unsigned *fixed, unsigned *broken, unsigned *pending, unsigned *failed) {
    *fixed = *broken = *pending = *failed = 0;
    said("rows", index_of(h), pending, failed);
    return OK;
}
int nvmlDeviceGetNvLinkState(void *h, unsigned link, unsigned *active) {
    if (index_of(h) == 1 || link > 3) return INVALID;
    *active = link < 3; /* two lanes to the other card, one to a switch, one down */
    return OK;
}
int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *h, unsigned link, Pci *out) {
    (void)h;
    memset(out, 0, sizeof *out);
    snprintf(out->bus_id, sizeof out->bus_id, "%s", link < 2 ? BUS[1] : "00000000:C1:00.0");
    return OK;
}
static int event_sets;
int fake_event_sets(void) { return event_sets; } /* made and not freed */
int nvmlEventSetCreate(void **set) { *set = (void *)0x1; event_sets++; return OK; }
int nvmlEventSetFree(void *set) { (void)set; event_sets--; return OK; }
int nvmlDeviceRegisterEvents(void *h, unsigned long long types, void *set) {
    (void)types;
    (void)set;
    return index_of(h) == 1 ? NOT_SUPPORTED : OK;
}
int nvmlEventSetWait_v2(void *set, Event *out, unsigned timeout_ms) {
    char line[128];
    unsigned long serial, index, code;
    FILE *file;
    (void)set;
    (void)timeout_ms;
    usleep(10000);
    file = fopen(getenv("FAKE_NVML"), "r");
    if (!file) return TIMEOUT;
    while (fgets(line, sizeof line, file))
        if (sscanf(line, "xid %lu %lu %lu", &serial, &index, &code) == 3 && serial > last_serial) {
            last_serial = serial;
            memset(out, 0, sizeof *out);
            out->device = (void *)(intptr_t)(index + 1);
            out->type = 8;
            out->data = code;
            fclose(file);
            return OK;
        }
    fclose(file);
    return TIMEOUT;
}
