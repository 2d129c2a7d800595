__device__ __forceinline__ void cp_async_cg_16(void* destination, const void* source) {
    const unsigned int address = (unsigned int)__cvta_generic_to_shared(destination);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(address), "l"(source) : "memory");
}

__device__ __forceinline__ void cp_async_wait_all() {
    asm volatile("cp.async.wait_all;" ::: "memory");
}

// copy_tiles, from 01_copy.py:38
extern "C" __global__ void __launch_bounds__(256) copy_tiles(
    float* dst, int dst_stride0, const float* __restrict__ src, int src_stride0) {
    // 01_copy.py:40: smem = tw.shared(src.dtype, smem_layout)
    __shared__ __align__(128) float smem[1024];
    // 01_copy.py:43: g_src, g_dst = tw.local_tile(src, tile, block), tw.local_tile(dst, tile, block)
    const int offset = blockIdx.x * 32;
    const int g_src = blockIdx.y * (src_stride0 * 32) + offset;
    const int g_dst = blockIdx.y * (dst_stride0 * 32) + offset;
    // 01_copy.py:46: t_smem = thread.partition_D(smem)
    const int offset_1 = threadIdx.x % 8 * 4;
    const int tx_div_8 = threadIdx.x / 8;
    const int t_smem = offset_1 + tx_div_8 * 32;
    // 01_copy.py:47: tw.copy(thread.partition_S(g_src), t_smem)
    cp_async_cg_16(&smem[t_smem], &src[offset_1 + tx_div_8 * src_stride0 + g_src]);
    // 01_copy.py:48: tw.cp_async_wait()
    cp_async_wait_all();
    // 01_copy.py:49: tw.copy(t_smem, thread.partition_D(g_dst))
    *(float4*)&dst[offset_1 + tx_div_8 * dst_stride0 + g_dst] = *(const float4*)&smem[t_smem];
}
