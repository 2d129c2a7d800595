__device__ __forceinline__ void cp_async_ca_8(void* destination, const void* source) {
    const unsigned int address = (unsigned int)__cvta_generic_to_shared(destination);
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" :: "r"(address), "l"(source) : "memory");
}

__device__ __forceinline__ void cp_async_commit() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}

// Waits until at most `pending` of this thread's newest groups of copies are under way.
template <int pending>
__device__ __forceinline__ void cp_async_wait() {
    asm volatile("cp.async.wait_group %0;" :: "n"(pending) : "memory");
}

// matmul_double_buffered, from 03_matmul.py:96
extern "C" __global__ void __launch_bounds__(256) matmul_double_buffered(
    float* C,
    int C_stride1,
    const float* __restrict__ A,
    int A_shape1,
    int A_stride1,
    const float* __restrict__ B,
    int B_stride1) {
    // 03_matmul.py:100: sA, sB = tw.shared(A.dtype, smem_layout), tw.shared(B.dtype, smem_layout)  # (TILE, TILE_K, 2)
    __shared__ __align__(128) float sA[2078];
    __shared__ __align__(128) float sB[2078];
    // 03_matmul.py:102: gA = tw.local_tile(A, tile, block, proj=(1, None, 1))
    const int k_tiles = (A_shape1 + 7) / 8;
    const int gA = blockIdx.x * 128;
    // 03_matmul.py:103: gB = tw.local_tile(B, tile, block, proj=(None, 1, 1))
    const int gB = blockIdx.y * 128;
    // 03_matmul.py:104: gC = tw.local_tile(C, tile, block, proj=(1, 1, None))
    const int gC = gA + blockIdx.y * (C_stride1 * 128);
    // 03_matmul.py:106: tid = tw.thread_idx.x
    const int tid = threadIdx.x;
    // 03_matmul.py:108: tAgA, tAsA = copier_a.partition_S(gA), copier_a.partition_D(sA)
    const int tCsA = tid % 32 * 2;
    const int tid_div_32 = tid / 32;
    const int tAgA = tCsA + tid_div_32 * A_stride1 + gA;
    const int tAsA = tCsA + tid_div_32 * 130;
    // 03_matmul.py:109: tBgB, tBsB = copier_b.partition_S(gB), copier_b.partition_D(sB)
    const int tBgB = tCsA + tid_div_32 * B_stride1 + gB;
    // 03_matmul.py:110: tCsA, tCsB, tCgC = thread.partition_A(sA), thread.partition_B(sB), thread.partition_C(gC)
    const int tCsB = tid_div_32 * 2;
    const int tCgC = tCsA + tid_div_32 * C_stride1 * 2 + gC;
    // 03_matmul.py:111: rA, rB = tw.registers(A.dtype, (*tCsA.shape[:2], 2)), tw.registers(B.dtype, (*tCsB.shape[:2], 2))
    __align__(16) float rA[8];
    __align__(16) float rB[32];
    // 03_matmul.py:112: acc = thread.make_fragment_C(tCgC)
    __align__(16) float acc[64];
    // 03_matmul.py:113: tw.clear(acc)
    #pragma unroll
    for (int i = 0; i < 64; i += 1) {
        acc[i] = 0.0f;
    }

    // 03_matmul.py:116: tw.copy(copy_a, tAgA[:, :, :, 0], tAsA[:, :, :, 0])
    #pragma unroll
    for (int i = 0; i < 2; i += 1) {
        cp_async_ca_8(&sA[i * 64 + tAsA], &A[i * 64 + tAgA]);
    }

    // 03_matmul.py:117: tw.copy(copy_b, tBgB[:, :, :, 0], tBsB[:, :, :, 0])
    #pragma unroll
    for (int i = 0; i < 2; i += 1) {
        cp_async_ca_8(&sB[i * 64 + tAsA], &B[i * 64 + tBgB]);
    }

    // 03_matmul.py:118: tw.cp_async_commit()
    cp_async_commit();
    // 03_matmul.py:119: tw.cp_async_wait(0)
    cp_async_wait<0>();
    // 03_matmul.py:120: tw.sync_threads()
    __syncthreads();
    // 03_matmul.py:121: tw.copy(tCsA[:, :, 0, 0], rA[:, :, 0])
    #pragma unroll
    for (int i = 0; i < 2; i += 1) {
        *(float2*)&rA[i * 2] = *(const float2*)&sA[i * 64 + tCsA];
    }

    // 03_matmul.py:122: tw.copy(tCsB[:, :, 0, 0], rB[:, :, 0])
    #pragma unroll
    for (int i = 0; i < 8; i += 1) {
        *(float2*)&rB[i * 2] = *(const float2*)&sB[i * 16 + tCsB];
    }

    // 03_matmul.py:125: for k_tile in range(k_tiles):
    for (int k_tile = 0; k_tile < k_tiles; k_tile += 1) {
        // 03_matmul.py:126: stage = k_tile % 2
        const int stage = k_tile % 2;
        // 03_matmul.py:127: more = k_tile + 1 < k_tiles
        const bool more = k_tile + 1 < k_tiles;
        // 03_matmul.py:128: if more:
        if (more) {
            // 03_matmul.py:129: tw.copy(copy_a, tAgA[:, :, :, k_tile + 1], tAsA[:, :, :, 1 - stage])
            const int A_offset = (k_tile + 1) * A_stride1 * 8 + tAgA;
            const int offset = (1 - stage) * 1040 + tAsA;
            #pragma unroll
            for (int i = 0; i < 2; i += 1) {
                cp_async_ca_8(&sA[i * 64 + offset], &A[i * 64 + A_offset]);
            }

            // 03_matmul.py:130: tw.copy(copy_b, tBgB[:, :, :, k_tile + 1], tBsB[:, :, :, 1 - stage])
            const int B_offset = (k_tile + 1) * B_stride1 * 8 + tBgB;
            #pragma unroll
            for (int i = 0; i < 2; i += 1) {
                cp_async_ca_8(&sB[i * 64 + offset], &B[i * 64 + B_offset]);
            }

            // 03_matmul.py:131: tw.cp_async_commit()
            cp_async_commit();
        }

        // 03_matmul.py:132: for k in tw.range(TILE_K, unroll=True):
        #pragma unroll
        for (int k = 0; k < 8; k += 1) {
            // 03_matmul.py:133: if k + 1 < TILE_K:
            if (k < 7) {
                // 03_matmul.py:134: tw.copy(tCsA[:, :, k + 1, stage], rA[:, :, (k + 1) % 2])
                const int sA_offset = tCsA + stage * 1040 + k * 130 + 130;
                const int offset = (k + 1) % 2;
                #pragma unroll
                for (int i = 0; i < 2; i += 1) {
                    *(float2*)&rA[i * 2 + offset * 4] = *(const float2*)&sA[i * 64 + sA_offset];
                }

                // 03_matmul.py:135: tw.copy(tCsB[:, :, k + 1, stage], rB[:, :, (k + 1) % 2])
                const int sB_offset = tCsB + stage * 1040 + k * 130 + 130;
                #pragma unroll
                for (int i = 0; i < 8; i += 1) {
                    *(float2*)&rB[i * 2 + offset * 16] = *(const float2*)&sB[i * 16 + sB_offset];
                }
            }

            // 03_matmul.py:136: tw.gemm(mma, acc, rA[:, :, k % 2], rB[:, :, k % 2], acc)
            const int k_mod_2 = k % 2;
            #pragma unroll
            for (int i = 0; i < 16; i += 1) {
                #pragma unroll
                for (int j = 0; j < 4; j += 1) {
                    const int index = i * 4 + j;
                    acc[index] = fmaf(rA[j + k_mod_2 * 4], rB[i + k_mod_2 * 16], acc[index]);
                }
            }
        }

        // 03_matmul.py:137: if more:
        if (more) {
            // 03_matmul.py:138: tw.cp_async_wait(0)
            cp_async_wait<0>();
            // 03_matmul.py:139: tw.sync_threads()
            __syncthreads();
            // 03_matmul.py:140: tw.copy(tCsA[:, :, 0, 1 - stage], rA[:, :, 0])
            const int offset = (1 - stage) * 1040;
            const int sA_offset = offset + tCsA;
            #pragma unroll
            for (int i = 0; i < 2; i += 1) {
                *(float2*)&rA[i * 2] = *(const float2*)&sA[i * 64 + sA_offset];
            }

            // 03_matmul.py:141: tw.copy(tCsB[:, :, 0, 1 - stage], rB[:, :, 0])
            const int sB_offset = offset + tCsB;
            #pragma unroll
            for (int i = 0; i < 8; i += 1) {
                *(float2*)&rB[i * 2] = *(const float2*)&sB[i * 16 + sB_offset];
            }
        }
    }

    // 03_matmul.py:142: tw.copy(acc, tCgC)
    #pragma unroll
    for (int i = 0; i < 8; i += 1) {
        const int C_offset = i * C_stride1 * 16;
        #pragma unroll
        for (int j = 0; j < 2; j += 1) {
            const int acc_offset = i * 8 + j * 4;
            const int C_offset_1 = C_offset + j * C_stride1;
            #pragma unroll
            for (int k = 0; k < 2; k += 1) {
                *(float2*)&C[tCgC + C_offset_1 + k * 64] = *(const float2*)&acc[acc_offset + k * 2];
            }
        }
    }
}
