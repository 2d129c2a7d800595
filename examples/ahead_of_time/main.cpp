// Launch the kernels of the package `products` from C++, and compare them with sums on the host.
//
//     python examples/ahead_of_time/_export.py build
//     cmake -S examples/ahead_of_time -B build/cmake -DPACKAGE=$PWD/build && cmake --build build/cmake
//     build/cmake/products
//
// Nothing of Tilewright is needed to compile or to run it, and of CUDA only the driver.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include "products.h"

// Of cuda.h; a program that has the CUDA toolkit includes that.
extern "C" {
int cuInit(unsigned int flags);
int cuDevicePrimaryCtxRetain(void **context, int device);
int cuCtxSetCurrent(void *context);
int cuCtxSynchronize(void);
int cuMemAlloc_v2(unsigned long long *address, std::size_t bytes);
int cuMemcpyHtoD_v2(unsigned long long to, const void *from, std::size_t bytes);
int cuMemcpyDtoH_v2(void *to, unsigned long long from, std::size_t bytes);
}

namespace {

void demand(int status, const char *what) {
    if (status == 0) return;
    std::fprintf(stderr, "%s failed with status %d: %s\n", what, status, products_error());
    std::exit(1);
}

template <class Element>
void *on_device(const std::vector<Element> &values) {
    unsigned long long address = 0;
    demand(cuMemAlloc_v2(&address, values.size() * sizeof(Element)), "cuMemAlloc");
    demand(cuMemcpyHtoD_v2(address, values.data(), values.size() * sizeof(Element)), "cuMemcpyHtoD");
    return reinterpret_cast<void *>(address);
}

template <class Element>
void to_host(std::vector<Element> &values, void *address) {
    const auto from = reinterpret_cast<unsigned long long>(address);
    demand(cuMemcpyDtoH_v2(values.data(), from, values.size() * sizeof(Element)), "cuMemcpyDtoH");
}

products_array matrix(void *data, std::int64_t rows, std::int64_t columns) {
    return products_array{data, {rows, columns}, {columns, 1}};
}

float of_bfloat16(std::uint16_t bits) {
    const std::uint32_t wide = std::uint32_t{bits} << 16;
    float value;
    std::memcpy(&value, &wide, sizeof value);
    return value;
}

std::uint16_t to_bfloat16(float value) {
    std::uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return static_cast<std::uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

double error_of_axpy() {
    const std::int64_t n = 100003;
    std::vector<float> x(n), y(n), result(n);
    for (std::int64_t i = 0; i < n; i++) x[i] = static_cast<float>(i % 101), y[i] = static_cast<float>(i % 7);
    const products_array device_x{on_device(x), {n}, {1}}, device_y{on_device(y), {n}, {1}};
    demand(products_axpy(&device_y, 2.5f, &device_x, nullptr), "axpy");
    demand(cuCtxSynchronize(), "cuCtxSynchronize");
    to_host(result, device_y.data);
    double error = 0;
    for (std::int64_t i = 0; i < n; i++) error = std::fmax(error, std::fabs(2.5f * x[i] + y[i] - result[i]));
    return error;
}

double error_of_multiply() {
    const std::int64_t m = 512, n = 768, k = 1024;
    std::mt19937 random(0);
    std::normal_distribution<float> normal;
    std::vector<std::uint16_t> a(m * k), b(n * k), c(m * n);
    for (auto &x : a) x = to_bfloat16(normal(random));
    for (auto &x : b) x = to_bfloat16(normal(random));
    const auto A = matrix(on_device(a), m, k), B = matrix(on_device(b), n, k), C = matrix(on_device(c), m, n);
    demand(products_multiply(&C, &A, &B, nullptr), "multiply");
    demand(cuCtxSynchronize(), "cuCtxSynchronize");
    to_host(c, C.data);
    double error = 0;
    for (std::int64_t row = 0; row < m; row += 37)
        for (std::int64_t column = 0; column < n; column += 41) {
            double sum = 0;
            for (std::int64_t i = 0; i < k; i++) sum += of_bfloat16(a[row * k + i]) * of_bfloat16(b[column * k + i]);
            error = std::fmax(error, std::fabs(sum - of_bfloat16(c[row * n + column])) / (1 + std::fabs(sum)));
        }
    return error;
}

}  // namespace

int main() {
    void *context = nullptr;
    demand(cuInit(0), "cuInit");
    demand(cuDevicePrimaryCtxRetain(&context, 0), "cuDevicePrimaryCtxRetain");
    demand(cuCtxSetCurrent(context), "cuCtxSetCurrent");
    const double axpy = error_of_axpy(), multiply = error_of_multiply();
    std::printf("axpy: greatest error %g\nmultiply: greatest error %g\n", axpy, multiply);
    return axpy == 0 && multiply < 0.01 ? 0 : 1;
}
