/* The driver of the benchmarks that does nothing, but for launches: each is taken for one of
   combine(float *z, int z_shape0, const float *x, const float *y, float factor), with blocks of 256 threads. */
#define cuLaunchKernelEx launch_nothing
#include "no_driver.c"
#undef cuLaunchKernelEx

int launches, refusal; /* `refusal` is what a launch is refused with */

int cuLaunchKernelEx(const unsigned *configuration, void *function, void **parameters, void **extra) {
    float *z = *(float **)parameters[0], factor = *(float *)parameters[4];
    const float *x = *(const float **)parameters[2], *y = *(const float **)parameters[3];
    int count = *(int *)parameters[1], most = (int)configuration[0] * 256;
    (void)function, (void)extra;
    if (refusal) return refusal;
    launches++;
    for (int i = 0; i < count && i < most; i++) z[i] = x[i] + factor * y[i];
    return 0;
}
