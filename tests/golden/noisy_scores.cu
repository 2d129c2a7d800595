// c plus the dot product of 4 parts of a and bytes of b.
__device__ __forceinline__ int dp4a_s32_s32(int a, int b, int c) {
    asm("dp4a.s32.s32 %0, %1, %2, %3;" : "=r"(c) : "r"(a), "r"(b), "r"(c));
    return c;
}

__device__ __forceinline__ float ex2_approx_ftz(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// Philox 4x32: makes random words a, b, c, d of the counter m, n, o, p under the key k, l.
template <int rounds>
__device__ __forceinline__ void philox(
    unsigned int& a, unsigned int& b, unsigned int& c, unsigned int& d, unsigned int k, unsigned int l,
    unsigned int m, unsigned int n, unsigned int o, unsigned int p) {
    a = m, b = n, c = o, d = p;
    #pragma unroll
    for (int i = 0; i < rounds; i++) {
        const unsigned long long first = a * 0xD2511F53ULL, second = c * 0xCD9E8D57ULL;
        a = (unsigned int)(second >> 32) ^ b ^ k, b = (unsigned int)second;
        c = (unsigned int)(first >> 32) ^ d ^ l, d = (unsigned int)first;
        k += 0x9E3779B9, l += 0xBB67AE85;
    }
}

__device__ __forceinline__ unsigned int byte_permute(unsigned int a, unsigned int b, unsigned int c) {
    unsigned int result;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(result) : "r"(a), "r"(b), "r"(c));
    return result;
}

// noisy_scores, from kernels.py:61
extern "C" __global__ void __launch_bounds__(256) noisy_scores(
    float* out,
    const int* __restrict__ packed,
    int packed_stride0,
    const int* __restrict__ weights,
    int weights_shape0,
    float scale,
    int seed) {
    // kernels.py:63: i = tw.block_idx.x * tw.block_dim.x + tw.thread_idx.x
    const int i = blockIdx.x * 256 + threadIdx.x;
    // kernels.py:65: for k in range(weights.shape[0]):
    int total = 0;
    for (int k = 0; k < weights_shape0; k += 1) {
        // kernels.py:66: total = tw.dp4a(packed[k, i], weights[k], total)
        total = dp4a_s32_s32(packed[k * packed_stride0 + i], weights[k], total);
    }

    // kernels.py:67: score = tw.exp(total * scale) / (1.0 + tw.ex2_approx(scale, ftz=True))
    const float score = __fdividef(__expf((float)total * scale), 1.0f + ex2_approx_ftz(scale));
    // kernels.py:68: noise = tw.rand(seed, i) + tw.popcount(tw.match_any(total)).to(tw.float32)
    unsigned int random0, random1, random2, random3;
    philox<10>(
        random0, random1, random2, random3,
        (unsigned int)seed, (unsigned int)(seed >> 31),
        (unsigned int)i, (unsigned int)(i >> 31), 0u, 0u);
    const float noise = fmaf((float)(int)(random0 >> 8u), 5.9604645e-08f, (float)(int)__popc(__match_any_sync(0xffffffff, (unsigned int)total)));
    // kernels.py:69: words = tw.byte_permute(packed[0, i], weights[0], 0x5410) ^ tw.mul_hi(tw.randint(seed, i), 10)
    const unsigned int words = byte_permute((unsigned int)packed[i], (unsigned int)weights[0], 21520u) ^ __umulhi(random0, 10u);
    // kernels.py:70: highest = tw.inline_ptx("bfind.u32 %0, %1;", words, meaning=None, result=tw.uint32)
    unsigned int highest;
    asm("bfind.u32 %0, %1;" : "=r"(highest) : "r"(words));
    // kernels.py:71: out[i] = score * noise + highest.to(tw.float32)
    out[i] = fmaf(score, noise, (float)highest);
}
