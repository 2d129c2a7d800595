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
    const float total_1 = total + __shfl_down_sync(0xffffffff, total, 16);
    const float total_2 = total_1 + __shfl_down_sync(0xffffffff, total_1, 8);
    const float total_3 = total_2 + __shfl_down_sync(0xffffffff, total_2, 4);
    const float total_4 = total_3 + __shfl_down_sync(0xffffffff, total_3, 2);
    const float total_5 = total_4 + __shfl_down_sync(0xffffffff, total_4, 1);
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
