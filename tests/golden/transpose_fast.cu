__device__ __forceinline__ void cp_async_cg_16(void* destination, const void* source) {
    const unsigned int address = (unsigned int)__cvta_generic_to_shared(destination);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(address), "l"(source) : "memory");
}

__device__ __forceinline__ void cp_async_wait_all() {
    asm volatile("cp.async.wait_all;" ::: "memory");
}

// transpose_fast, from 02_transpose.py:40
extern "C" __global__ void __launch_bounds__(256) transpose_fast(
    float* dst, int dst_stride0, const float* __restrict__ src, int src_stride0) {
    // 02_transpose.py:45: smem = tw.shared(src.dtype, smem_layout)
    __shared__ __align__(128) float smem[4096];
    // 02_transpose.py:47: i, j = tw.block_idx.y, tw.block_idx.x
    const int i = blockIdx.y;
    const int j = blockIdx.x;
    // 02_transpose.py:48: g_src = tw.local_tile(src, (rows, columns), (i, j))
    const int g_src = i * src_stride0 * 64 + j * 64;
    // 02_transpose.py:49: g_dst = tw.local_tile(dst, (columns, rows), (j, i))
    const int g_dst = j * dst_stride0 * 64 + i * 64;
    // 02_transpose.py:52: tw.copy(load, loader.partition_S(g_src), loader.partition_D(smem))
    const int offset = threadIdx.x % 16 * 4;
    const int tx_div_16 = threadIdx.x / 16;
    const int src_offset = offset + tx_div_16 * src_stride0 + g_src;
    const int smem_offset = offset + tx_div_16 * 64;
    #pragma unroll
    for (int k = 0; k < 4; k += 1) {
        const int smem_offset_1 = smem_offset + k * 1024;
        cp_async_cg_16(
            &smem[smem_offset_1 ^ ((smem_offset_1 & 1792) >> 6)],
            &src[k * src_stride0 * 16 + src_offset]);
    }

    // 02_transpose.py:53: tw.cp_async_wait()
    cp_async_wait_all();
    // 02_transpose.py:54: tw.sync_threads()
    __syncthreads();
    // 02_transpose.py:56: t_dst = storer.partition_D(g_dst)
    const int tx_mod_8 = threadIdx.x % 8;
    const int tx_div_8 = threadIdx.x / 8;
    const int t_dst = tx_mod_8 * 4 + tx_div_8 * dst_stride0 + g_dst;
    // 02_transpose.py:57: values = tw.fragment_like(t_dst)
    __align__(16) float values[16];
    // 02_transpose.py:58: tw.copy(storer.partition_S(smem.T), values)
    #pragma unroll
    for (int k = 0; k < 2; k += 1) {
        const int smem_offset_1 = tx_mod_8 * 256 + tx_div_8 + k * 32;
        #pragma unroll
        for (int l = 0; l < 2; l += 1) {
            const int values_offset = k * 8 + l * 4;
            #pragma unroll
            for (int m = 0; m < 4; m += 1) {
                const int smem_offset_2 = smem_offset_1 + m * 64;
                values[values_offset + m] = smem[(smem_offset_2 ^ ((smem_offset_2 & 1792) >> 6)) + l * 2048];
            }
        }
    }

    // 02_transpose.py:59: tw.copy(values, t_dst)
    #pragma unroll
    for (int k = 0; k < 2; k += 1) {
        const int dst_offset = k * dst_stride0 * 32;
        #pragma unroll
        for (int l = 0; l < 2; l += 1) {
            *(float4*)&dst[t_dst + dst_offset + l * 32] = *(const float4*)&values[k * 8 + l * 4];
        }
    }
}
