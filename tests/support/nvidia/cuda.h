/* The CUDA driver API as programs and HAMi-core call it: numbers and prototypes. */
#ifndef FAKE_CUDA_H
#define FAKE_CUDA_H

#include <stddef.h>
#include <stdint.h>

enum {
    CUDA_OK = 0, CUDA_INVALID_VALUE = 1, CUDA_OUT_OF_MEMORY = 2, CUDA_NOT_INITIALIZED = 3,
    CUDA_DEVICE_UNAVAILABLE = 46, CUDA_NO_DEVICE = 100, CUDA_INVALID_DEVICE = 101,
    CUDA_INVALID_CONTEXT = 201, CUDA_NOT_FOUND = 500, CUDA_LAUNCH_FAILED = 719,
    CUDA_NOT_SUPPORTED = 801,
};

typedef int Device;
typedef uint64_t DevicePointer;
typedef struct context *Context;
typedef struct { unsigned char bytes[16]; } Uuid;

int cuInit(unsigned flags);
int cuDeviceGetCount(int *count);
int cuDeviceGet(Device *device, int ordinal);
int cuDeviceGetName(char *out, int size, Device device);
int cuDeviceGetUuid_v2(Uuid *out, Device device);
int cuDeviceTotalMem_v2(size_t *bytes, Device device);
int cuCtxCreate_v2(Context *out, unsigned flags, Device device);
int cuCtxDestroy_v2(Context context);
int cuCtxSynchronize(void);
int cuMemAlloc_v2(DevicePointer *out, size_t bytes);
int cuMemFree_v2(DevicePointer pointer);
int cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes);
int cuLaunchKernel(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                   unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,
                   void *stream, void **parameters, void **extra);
int cuGetErrorName(int code, const char **name);

#endif
