/* A program that uses the GPU, for tests: it executes its arguments in order.
 *
 *     info            print the device and its memory
 *     alloc:MIB       allocate this much memory
 *     free            free the last allocation
 *     launch:COUNT    run this many kernels
 *     spin:MS         run kernels for this time, and print their number
 *     hold            wait until stdin is closed
 *
 * Each prints one line at once, so that a test waits for a line and never for a time. The exit
 * status is the number of failed actions.
 */
#include "cuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Kernels as large as real ones: HAMi-core counts blocks, and limits only after many of them. With
   small kernels, a slow machine would never reach that limit during a test. */
enum { TAKEN = 64, BLOCKS = 4096, THREADS = 256 };
static const size_t MIB = 1 << 20;
static DevicePointer taken[TAKEN];
static int taken_count, failures;

static const char *name_of(int code) {
    const char *name = "";
    cuGetErrorName(code, &name);
    failures += code != CUDA_OK;
    return name;
}

static void info(void) {
    char name[96] = "";
    size_t free_bytes = 0, total = 0;
    int count = 0, code = cuMemGetInfo_v2(&free_bytes, &total);
    cuDeviceGetCount(&count);
    cuDeviceGetName(name, sizeof name, 0);
    printf("info %s devices=%d free_mib=%zu total_mib=%zu name=%s\n", name_of(code), count,
           free_bytes / MIB, total / MIB, name);
}

static long now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static int launch(void) {
    return cuLaunchKernel(NULL, BLOCKS, 1, 1, THREADS, 1, 1, 0, NULL, NULL, NULL);
}

static void spin(long ms) {
    long launched = 0, until = now_ms() + ms;
    int code = CUDA_OK;
    for (; now_ms() < until && code == CUDA_OK; launched++) code = launch();
    printf("spin %s launched=%ld\n", name_of(code), launched);
}

static void act(const char *what) {
    const char *amount = strchr(what, ':');
    long number = amount ? atol(amount + 1) : 0;
    int code = CUDA_INVALID_VALUE;
    if (!strcmp(what, "info")) {
        info();
        return;
    }
    if (!strncmp(what, "spin:", 5)) {
        spin(number);
        return;
    }
    if (!strncmp(what, "alloc:", 6) && taken_count < TAKEN) {
        code = cuMemAlloc_v2(&taken[taken_count], (size_t)number * MIB);
        taken_count += code == CUDA_OK;
    } else if (!strcmp(what, "free") && taken_count) {
        code = cuMemFree_v2(taken[--taken_count]);
    } else if (!strncmp(what, "launch:", 7)) {
        for (code = CUDA_OK; number-- > 0 && code == CUDA_OK;)
            code = launch();
    } else if (!strcmp(what, "hold")) {
        printf("holding\n");
        while (getchar() != EOF) {}
        code = CUDA_OK;
    }
    printf("%s %s\n", what, name_of(code));
}

int main(int count, char **arguments) {
    Device device;
    Context context;
    setvbuf(stdout, NULL, _IOLBF, 0);
    int code = cuInit(0);
    if (code == CUDA_OK) code = cuDeviceGet(&device, 0);
    if (code == CUDA_OK) code = cuCtxCreate_v2(&context, 0, device);
    printf("context %s\n", name_of(code));
    for (int at = 1; code == CUDA_OK && at < count; at++) act(arguments[at]);
    return failures;
}
