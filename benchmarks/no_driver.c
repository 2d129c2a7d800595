/* A CUDA driver that does nothing, to time what calls cost on the host: one H200 whose memory is the host's, launches that return at once.
   Built and loaded by host_calls.py. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static char something[64];

int cuInit(unsigned int flags) { (void)flags; return 0; }
int cuGetErrorName(int status, const char **text) { (void)status; *text = "none"; return 0; }
int cuGetErrorString(int status, const char **text) { (void)status; *text = "none"; return 0; }
int cuDriverGetVersion(int *version) { *version = 13000; return 0; }
int cuDeviceGetCount(int *count) { *count = 1; return 0; }
int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return 0; }
int cuDeviceGetName(char *name, int size, int device) { (void)device; strncpy(name, "NVIDIA H200", (size_t)size); return 0; }
int cuDeviceTotalMem_v2(size_t *bytes, int device) { (void)device; *bytes = (size_t)140 << 30; return 0; }

int cuDeviceGetAttribute(int *value, int attribute, int device) {
    (void)device;
    switch (attribute) {
        case 8: *value = 49152; break;
        case 16: *value = 132; break;
        case 36: *value = 3201000; break;
        case 37: *value = 6016; break;
        case 38: *value = 62914560; break;
        case 75: *value = 9; break;
        case 76: *value = 0; break;
        case 97: *value = 232448; break;
        default: *value = 1;
    }
    return 0;
}

int cuDevicePrimaryCtxRetain(void **context, int device) { (void)device; *context = something; return 0; }
int cuCtxGetCurrent(void **context) { *context = something; return 0; }
int cuCtxPushCurrent_v2(void *context) { (void)context; return 0; }
int cuCtxPopCurrent_v2(void **context) { *context = something; return 0; }
int cuModuleLoadData(void **module, const void *code) { (void)code; *module = something; return 0; }
int cuModuleGetFunction(void **function, void *module, const char *name) { (void)module, (void)name; *function = something; return 0; }
int cuModuleUnload(void *module) { (void)module; return 0; }
int cuThreadExchangeStreamCaptureMode(int *mode) { (void)mode; return 0; }
int cuFuncGetAttribute(int *value, int attribute, void *function) { (void)attribute, (void)function; *value = 128; return 0; }
int cuFuncSetAttribute(void *function, int attribute, int value) { (void)function, (void)attribute, (void)value; return 0; }
int cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, void *function, int threads, size_t shared) {
    (void)function, (void)threads, (void)shared;
    *blocks = 1;
    return 0;
}
int cuOccupancyMaxActiveClusters(int *clusters, void *function, void *configuration) {
    (void)function, (void)configuration;
    *clusters = 66;
    return 0;
}
int cuTensorMapEncodeTiled(void *map) { memset(map, 1, 128); return 0; }
int cuLaunchKernelEx(void *configuration, void *function, void **parameters, void **extra) {
    (void)configuration, (void)function, (void)parameters, (void)extra;
    return 0;
}
int cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
                   void *stream, void **parameters, void **extra) {
    (void)function, (void)gx, (void)gy, (void)gz, (void)bx, (void)by, (void)bz, (void)shared, (void)stream, (void)parameters, (void)extra;
    return 0;
}
