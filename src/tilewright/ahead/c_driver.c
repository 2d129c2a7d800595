/* What every launcher needs of the CUDA driver, which is looked up when the first kernel is launched: nothing of CUDA
 * has to be there where this is compiled and linked. */

#ifdef _MSC_VER
#define THREAD_LOCAL __declspec(thread)
#else
#define THREAD_LOCAL __thread
#endif

static THREAD_LOCAL char message[1024];

static int refuse(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    return REFUSED;
}

/* The quotient and the remainder as C and the kernels have them, and rounded down; by 0 they are 0. */
static inline int64_t quotient(int64_t a, int64_t b) { return b == 0 ? 0 : b == -1 ? -a : a / b; }
static inline int64_t remainder_of(int64_t a, int64_t b) { return b == 0 || b == -1 ? 0 : a % b; }
static inline int64_t floor_quotient(int64_t a, int64_t b) {
    return quotient(a, b) - (remainder_of(a, b) != 0 && (a < 0) != (b < 0));
}
static inline int64_t floor_remainder(int64_t a, int64_t b) { return a - floor_quotient(a, b) * b; }
static inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

/* As in cuda.h: CUlaunchAttribute and CUlaunchConfig. */
typedef struct launch_attribute {
    int id;
    int padding;
    int value[16];
} launch_attribute;

typedef struct launch_config {
    unsigned int grid[3], block[3], shared_bytes;
    void *stream;
    const launch_attribute *attributes;
    unsigned int attribute_count;
} launch_config;

static struct {
    int (*init)(unsigned int);
    int (*current_device)(int *);
    int (*device_attribute)(int *, int, int);
    int (*error_name)(int, const char **);
    int (*load)(void **, const void *, void *, void *, unsigned int, void *, void *, unsigned int);
    int (*get_kernel)(void **, void *, const char *);
    int (*set_attribute)(int, int, void *, int);
    int (*launch)(const launch_config *, void *, void **, void **);
    int (*encode)(void *, int, unsigned int, void *, const uint64_t *, const uint64_t *, const uint32_t *,
                  const uint32_t *, int, int, int, int);
} driver;

static void *driver_function(const char *name) {
#ifdef _WIN32
    static HMODULE library;
    if (library == NULL) library = LoadLibraryA("nvcuda.dll");
    return library == NULL ? NULL : (void *)GetProcAddress(library, name);
#else
    static void *library;
    if (library == NULL) library = dlopen("libcuda.so.1", RTLD_NOW);
    return library == NULL ? NULL : dlsym(library, name);
#endif
}

/* Looks the driver's functions up. Threads that do so at once write the same addresses. */
static int find_driver(void) {
    static volatile int is_there;
    if (is_there) return 0;
    const struct { const char *name; void *place; } wanted[] = {
        {"cuInit", &driver.init}, {"cuCtxGetDevice", &driver.current_device},
        {"cuDeviceGetAttribute", &driver.device_attribute}, {"cuGetErrorName", &driver.error_name},
        {"cuLibraryLoadData", &driver.load}, {"cuLibraryGetKernel", &driver.get_kernel},
        {"cuKernelSetAttribute", &driver.set_attribute}, {"cuLaunchKernelEx", &driver.launch},
        {"cuTensorMapEncodeTiled", &driver.encode},
    };
    for (size_t n = 0; n < sizeof wanted / sizeof wanted[0]; n++) {
        void *found = driver_function(wanted[n].name);
        if (found == NULL)
            return refuse("there is no CUDA driver with %s: NVIDIA's driver for CUDA 12.0 or later is needed", wanted[n].name);
        memcpy(wanted[n].place, &found, sizeof found);
    }
    if (driver.init(0) != 0) return refuse("the CUDA driver cannot start");
    is_there = 1;
    return 0;
}

static int failed(int status, const char *what) {
    const char *name = "an unknown error";
    driver.error_name(status, &name);
    snprintf(message, sizeof message, "%s failed: %s", what, name);
    return status;
}

/* The machine code of a kernel for one compute capability. `exact`: it runs on no other. */
typedef struct machine_code {
    const char *entry;
    const uint64_t *code;
    int major, minor, exact;
    int cluster_size;
    void *volatile kernel;
    volatile int shared_bytes[MOST_DEVICES]; /* of dynamic shared memory, what the kernel was allowed on a device */
} machine_code;

/* Returns the number of the code for the current device, or a negative number. */
static int choose(const char *name, const machine_code *codes, int count, int *device) {
    int found = find_driver(), major = 0, minor = 0;
    if (found != 0) return REFUSED;
    int status = driver.current_device(device);
    if (status != 0)
        return refuse("%s: no CUDA context is current in this thread: any call of the CUDA runtime makes one", name);
    driver.device_attribute(&major, 75, *device); /* compute capability */
    driver.device_attribute(&minor, 76, *device);
    found = REFUSED;
    for (int n = 0; n < count; n++) {
        const machine_code *code = &codes[n];
        if (code->major != major || code->minor > minor || (code->exact && code->minor != minor)) continue;
        const int is_better = found < 0 || code->minor > codes[found].minor ||
                              (code->minor == codes[found].minor && code->exact);
        if (is_better) found = n;
    }
    if (found < 0)
        return refuse("%s has no machine code for a GPU of compute capability %d.%d", name, major, minor);
    return found;
}

/* Loads the code once, for all devices and contexts; of threads that do so at once the last one's stays. */
static int load(machine_code *code, int device, int shared_bytes) {
    if (code->kernel == NULL) {
        void *library = NULL, *kernel = NULL;
        int status = driver.load(&library, code->code, NULL, NULL, 0, NULL, NULL, 0);
        if (status == 0) status = driver.get_kernel(&kernel, library, code->entry);
        if (status != 0) return failed(status, "loading a kernel");
        code->kernel = kernel;
    }
    if (shared_bytes > 48 * 1024 && (device >= MOST_DEVICES || code->shared_bytes[device] < shared_bytes)) {
        /* CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES */
        const int status = driver.set_attribute(8, shared_bytes, code->kernel, device);
        if (status != 0) return failed(status, "asking for shared memory");
        if (device < MOST_DEVICES) code->shared_bytes[device] = shared_bytes;
    }
    if (code->cluster_size > 8) {
        /* CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED */
        const int status = driver.set_attribute(14, 1, code->kernel, device);
        if (status != 0) return failed(status, "asking for large clusters");
    }
    return 0;
}

/* What a kernel takes for granted of one mode of an array: values (ANY: only the launch knows), and what divides them. */
#define ANY INT64_MIN
typedef struct mode {
    int64_t extent, divisor, stride, stride_divisor;
} mode;

/* The first and the last byte of an array, from its first element on; of an array without elements, none. */
static inline void reach(const array *x, int rank, int64_t bytes, int64_t *low, int64_t *high) {
    *low = 0, *high = bytes;
    for (int n = 0; n < rank; n++) {
        const int64_t step = (x->shape[n] - 1) * x->strides[n] * bytes;
        if (x->shape[n] == 0) *high = *low;
        if (x->shape[n] == 0) return;
        *(step < 0 ? low : high) += step;
    }
}

static inline int check_array(
    const char *function, const char *name, const array *x, int rank, const mode *modes, int64_t bytes, int alignment, int is_wide
) {
    if (x == NULL) return refuse("%s: %s is NULL", function, name);
    if ((uintptr_t)x->data % (unsigned int)alignment != 0)
        return refuse("%s: %s begins at %p, and the kernel takes multiples of %d bytes", function, name, x->data, alignment);
    for (int n = 0; n < rank; n++) {
        const int64_t extent = x->shape[n], stride = x->strides[n];
        if (extent < 0) return refuse("%s: extent %d of %s is %lld", function, n, name, (long long)extent);
        if (modes[n].extent != ANY ? extent != modes[n].extent : extent % modes[n].divisor != 0)
            return refuse(
                "%s: extent %d of %s is %lld, and the kernel takes %s%lld", function, n, name, (long long)extent,
                modes[n].extent != ANY ? "" : "multiples of ",
                (long long)(modes[n].extent != ANY ? modes[n].extent : modes[n].divisor));
        if (modes[n].stride != ANY ? stride != modes[n].stride && extent > 1 : stride % modes[n].stride_divisor != 0)
            return refuse(
                "%s: stride %d of %s is %lld, and the kernel takes %s%lld", function, n, name, (long long)stride,
                modes[n].stride != ANY ? "" : "multiples of ",
                (long long)(modes[n].stride != ANY ? modes[n].stride : modes[n].stride_divisor));
    }
    int64_t low, high;
    reach(x, rank, bytes, &low, &high);
    if (x->data == NULL && low < high) return refuse("%s: %s has elements, and its data are NULL", function, name);
    if (!is_wide && (high - low) / bytes > INT32_MAX)
        return refuse("%s: %s spans 2^31 elements or more, and the kernel counts them in 32 bits", function, name);
    return 0;
}

/* Inline, as are those below that a package may do without: so that no compiler warns of them. */
static inline int check_apart(
    const char *function, const char *read_name, const array *read, int read_rank, int64_t read_bytes,
    const char *written_name, const array *written, int written_rank, int64_t written_bytes
) {
    int64_t read_low, read_high, low, high;
    reach(read, read_rank, read_bytes, &read_low, &read_high);
    reach(written, written_rank, written_bytes, &low, &high);
    const int64_t distance = (int64_t)((uintptr_t)written->data - (uintptr_t)read->data);
    if (read_low < read_high && low < high && distance + low < read_high && read_low < distance + high)
        return refuse("%s: %s shares memory with %s, which is written", function, read_name, written_name);
    return 0;
}

/* Looks at the grid of a launch: `most` are the limits of its axes, and clusters divide it. */
static inline int check_blocks(const char *function, const int64_t *blocks, const int64_t *most, const int *cluster) {
    for (int axis = 0; axis < 3; axis++) {
        if (blocks[axis] < 0 || blocks[axis] > most[axis])
            return refuse(
                "%s: %lld blocks along %c, and at most %lld are possible", function, (long long)blocks[axis], "xyz"[axis],
                (long long)most[axis]);
        if (blocks[axis] % cluster[axis] != 0)
            return refuse(
                "%s: clusters of %d do not divide %lld blocks along %c", function, cluster[axis], (long long)blocks[axis],
                "xyz"[axis]);
    }
    return 0;
}
