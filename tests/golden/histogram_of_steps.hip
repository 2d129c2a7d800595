#define __global__ __attribute__((global))
#define __device__ __attribute__((device))
#define __forceinline__ static inline __attribute__((always_inline))
#define __shared__ __attribute__((shared))
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __launch_bounds__(threads) __attribute__((amdgpu_flat_work_group_size(threads, threads)))
struct __ThreadIdx {
    __device__ __forceinline__ unsigned int read_x() { return __builtin_amdgcn_workitem_id_x(); }
    __declspec(property(get = read_x)) unsigned int x;
};
extern const __device__ __attribute__((weak)) __ThreadIdx threadIdx;

struct __BlockIdx {
    __device__ __forceinline__ unsigned int read_x() { return __builtin_amdgcn_workgroup_id_x(); }
    __declspec(property(get = read_x)) unsigned int x;
};
extern const __device__ __attribute__((weak)) __BlockIdx blockIdx;

struct __BlockDim {
    __device__ __forceinline__ unsigned int read_x() { return __builtin_amdgcn_workgroup_size_x(); }
    __declspec(property(get = read_x)) unsigned int x;
};
extern const __device__ __attribute__((weak)) __BlockDim blockDim;

struct __GridDim {
    __device__ __forceinline__ unsigned int read_x() { return __builtin_amdgcn_grid_size_x() / blockDim.x; }
    __declspec(property(get = read_x)) unsigned int x;
};
extern const __device__ __attribute__((weak)) __GridDim gridDim;

__device__ __forceinline__ unsigned int __float_as_uint(float x) {
    return __builtin_bit_cast(unsigned int, x);
}

__device__ __forceinline__ float __uint_as_float(unsigned int x) {
    return __builtin_bit_cast(float, x);
}

// The instruction may miss by one unit in the last place: the sign of what is left over tells to which side.
__device__ __forceinline__ float sqrtf(float x) {
    const bool tiny = x < 0x1p-96f;
    const float scaled = tiny ? x * 0x1p32f : x;
    const float near = __builtin_amdgcn_sqrtf(scaled);
    const float below = __uint_as_float(__float_as_uint(near) - 1);
    const float above = __uint_as_float(__float_as_uint(near) + 1);
    float root = __builtin_fmaf(-below, near, scaled) <= 0.0f ? below : near;
    root = __builtin_fmaf(-above, near, scaled) > 0.0f ? above : root;
    return tiny ? root * 0x1p-16f : root;
}

__device__ __forceinline__ void __syncthreads() {
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
    __builtin_amdgcn_s_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}

// The number of the thread in its wave of 64.
__device__ __forceinline__ int __lane_id() {
    return __builtin_amdgcn_mbcnt_hi(~0u, __builtin_amdgcn_mbcnt_lo(~0u, 0u));
}

// Reads a value of another lane of the wave, 4 bytes at a time.
template <typename T>
__device__ __forceinline__ T __read_lane(T value, int lane) {
    struct Words {
        int word[sizeof(T) / 4];
    };
    Words words = __builtin_bit_cast(Words, value);
    for (unsigned int i = 0; i < sizeof(T) / 4; i++) {
        words.word[i] = __builtin_amdgcn_ds_bpermute(4 * lane, words.word[i]);
    }
    return __builtin_bit_cast(T, words);
}

template <typename T>
__device__ __forceinline__ auto __shfl_down(T value, int delta, int width = 64) {
    const int lane = __lane_id();
    const int first = lane & -width;
    const int other = lane + (delta & 63);
    return __read_lane(+value, other > first + width - 1 ? lane : other);
}

template <typename T, typename Value>
__device__ __forceinline__ T atomicAdd(T* address, Value value) {
    return __hip_atomic_fetch_add(address, (T)value, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}

template <typename T, typename Value>
__device__ __forceinline__ T atomicMax(T* address, Value value) {
    return __hip_atomic_fetch_max(address, (T)value, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}

// histogram_of_steps, from kernels.py:19
extern "C" __global__ void __launch_bounds__(128) histogram_of_steps(
    long long* counts, int* longest, float* mean, const int* __restrict__ x, int x_shape0, int limit) {
    // kernels.py:21: smem = tw.shared(tw.int32, (bins,))
    __shared__ __align__(128) int smem[64];
    // kernels.py:22: tid = tw.thread_idx.x
    const int tid = threadIdx.x;
    // kernels.py:23: for i in range(tid, bins, tw.block_dim.x):
    for (int i = tid; i < 64; i += 128) {
        // kernels.py:24: smem[i] = 0
        smem[i] = 0;
    }

    // kernels.py:25: tw.sync_threads()
    __syncthreads();
    // kernels.py:28: for i in range(tw.block_idx.x * tw.block_dim.x + tid, x.size, tw.grid_dim.x * tw.block_dim.x):
    const int bx = blockIdx.x;
    const int grid_dim_x = gridDim.x;
    float total = 0.0f;
    for (int i = bx * 128 + tid; i < x_shape0; i += grid_dim_x * 128) {
        // kernels.py:29: n, steps = x[i], 0
        int n = x[i];
        // kernels.py:30: while n > 1:
        int steps = 0;
        bool tilewright_stop0 = false;
        while (!tilewright_stop0 && n > 1) {
            // kernels.py:31: if n % 2 == 0:
            int n_1;
            if (n % 2 == 0) {
                // kernels.py:32: n = n // 2
                n_1 = n / 2;
            } else {
                // kernels.py:34: n = 3 * n + 1
                n_1 = n * 3 + 1;
            }

            // kernels.py:35: steps += 1
            steps += 1;
            // kernels.py:36: if steps >= limit:
            bool tilewright_stop0_1 = tilewright_stop0;
            if (steps >= limit) {
                tilewright_stop0_1 = true;
            }

            // kernels.py:30: while n > 1:
            n = n_1;
            tilewright_stop0 = tilewright_stop0_1;
        }

        // kernels.py:38: if steps == 0:
        if (steps != 0) {
            // kernels.py:13: if x < low:
            int tilewright_result;
            if (steps < 0) {
                tilewright_result = 0;
            } else {
                tilewright_result = steps > 63 ? 63 : steps;
            }

            // kernels.py:40: tw.atomic_add(smem, clamp(steps, 0, bins - 1), 1)
            atomicAdd(&smem[tilewright_result], 1);
            // kernels.py:41: tw.atomic_max(longest, 0, steps)
            atomicMax(longest, steps);
            // kernels.py:42: total += tw.sqrt(steps.to(tw.float32))
            total += sqrtf((float)steps);
        }
    }

    // kernels.py:45: total += tw.shuffle_down(total, distance)
    const float total_1 = total + __shfl_down(total, 16);
    const float total_2 = total_1 + __shfl_down(total_1, 8);
    const float total_3 = total_2 + __shfl_down(total_2, 4);
    const float total_4 = total_3 + __shfl_down(total_3, 2);
    const float total_5 = total_4 + __shfl_down(total_4, 1);
    // kernels.py:46: if tid % 32 == 0 and total > 0:
    if (tid % 32 == 0 && total_5 > 0.0f) {
        // kernels.py:47: tw.atomic_add(mean, 0, total / x.size)
        atomicAdd(mean, total_5 / (float)x_shape0);
    }

    // kernels.py:48: tw.sync_threads()
    __syncthreads();
    // kernels.py:49: for i in range(tid, bins, tw.block_dim.x):
    for (int i = tid; i < 64; i += 128) {
        // kernels.py:50: if smem[i] != 0:
        const int smem_value = smem[i];
        if (smem_value != 0) {
            // kernels.py:51: tw.atomic_add(counts, i, smem[i].to(tw.int64))
            (long long)atomicAdd((unsigned long long*)&counts[i], (unsigned long long)(long long)smem_value);
        }
    }
}
