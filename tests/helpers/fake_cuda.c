/* A stand-in for the CUDA driver: it launches nothing, and writes what it is asked for to the file that FAKE_CUDA_LOG
 * names, a line each. FAKE_CUDA_CAPABILITY is the compute capability of its devices, such as 90; FAKE_CUDA_SIZES has the
 * bytes of the parameters of a launch, FAKE_CUDA_NO_CONTEXT takes the context away. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct { int id, padding; int value[16]; } attribute;
typedef struct {
    unsigned int grid[3], block[3], shared_bytes;
    void *stream;
    const attribute *attributes;
    unsigned int count;
} config;

static void say(const char *text) {
    const char *path = getenv("FAKE_CUDA_LOG");
    FILE *file = path == NULL ? NULL : fopen(path, "a");
    if (file == NULL) return;
    fprintf(file, "%s\n", text);
    fclose(file);
}

static void append(char *line, const void *data, size_t bytes) {
    char *end = line + strlen(line);
    for (size_t n = 0; n < bytes; n++) end += sprintf(end, "%02x", ((const unsigned char *)data)[n]);
}

int cuInit(unsigned int flags) { return (int)flags; }
int cuCtxGetDevice(int *device) { *device = 0; return getenv("FAKE_CUDA_NO_CONTEXT") != NULL ? 201 : 0; }
int cuGetErrorName(int status, const char **name) { (void)status; *name = "CUDA_ERROR_FAKE"; return 0; }

int cuDeviceGetAttribute(int *value, int attribute, int device) {
    const char *given = getenv("FAKE_CUDA_CAPABILITY");
    const int capability = given == NULL ? 90 : atoi(given);
    (void)device;
    *value = attribute == 75 ? capability / 10 : capability % 10;
    return 0;
}

int cuLibraryLoadData(void **library, const void *code, void *o, void *v, unsigned int n, void *lo, void *lv, unsigned int m) {
    char line[100] = "load ";
    (void)o, (void)v, (void)n, (void)lo, (void)lv, (void)m;
    append(line, code, 16);
    say(line);
    *library = (void *)code;
    return 0;
}

int cuLibraryGetKernel(void **kernel, void *library, const char *name) {
    char line[200];
    snprintf(line, sizeof line, "kernel %s", name);
    say(line);
    *kernel = library;
    return 0;
}

int cuKernelSetAttribute(int attribute, int value, void *kernel, int device) {
    char line[100];
    (void)kernel;
    snprintf(line, sizeof line, "attribute %d %d %d", attribute, value, device);
    say(line);
    return 0;
}

int cuTensorMapEncodeTiled(
    void *map, int type, unsigned int rank, void *address, const uint64_t *sizes, const uint64_t *pitches, const uint32_t *box,
    const uint32_t *steps, int interleave, int swizzle, int promotion, int fill
) {
    static unsigned char number;
    char line[1000];
    memset(map, ++number, 128);
    if ((uintptr_t)map % 64 != 0) return 1;
    snprintf(line, sizeof line, "map %d %u %p %d %d %d %d:", type, rank, address, interleave, swizzle, promotion, fill);
    for (unsigned int n = 0; n < rank; n++)
        sprintf(line + strlen(line), " %llu/%u/%u", (unsigned long long)sizes[n], box[n], steps[n]);
    for (unsigned int n = 0; n + 1 < rank; n++) sprintf(line + strlen(line), " %llu", (unsigned long long)pitches[n]);
    say(line);
    return 0;
}

int cuLaunchKernelEx(const config *c, void *kernel, void **parameters, void **extra) {
    char line[4000], sizes[1000] = "";
    (void)kernel, (void)extra;
    snprintf(line, sizeof line, "launch %u %u %u, %u %u %u, %u bytes, stream %p, attributes", c->grid[0], c->grid[1], c->grid[2],
             c->block[0], c->block[1], c->block[2], c->shared_bytes, c->stream);
    for (unsigned int n = 0; n < c->count; n++)
        sprintf(line + strlen(line), " %d(%d %d %d)", c->attributes[n].id, c->attributes[n].value[0], c->attributes[n].value[1],
                c->attributes[n].value[2]);
    strcat(line, ":");
    if (getenv("FAKE_CUDA_SIZES") != NULL) strncpy(sizes, getenv("FAKE_CUDA_SIZES"), sizeof sizes - 1);
    int n = 0;
    for (char *size = strtok(sizes, ","); size != NULL; size = strtok(NULL, ",")) {
        strcat(line, " ");
        append(line, parameters[n++], (size_t)atoi(size));
    }
    say(line);
    return 0;
}
