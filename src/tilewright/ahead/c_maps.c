/* Encodes a tensor map. `strides` are in elements; of a mode with one element any stride will do. */
static int encode_map(
    const char *function, const char *name, void *map, int type, int bytes, int rank, uintptr_t address,
    const int64_t *extents, const int64_t *strides, const uint32_t *box, const uint32_t *steps, int swizzle, int fill
) {
    uint64_t sizes[5], pitches[5] = {0};
    if (address % 16 != 0)
        return refuse("%s: TMA takes addresses that are multiples of 16, and %s begins at %p", function, name, (void *)address);
    for (int n = 0; n < rank; n++) {
        if (extents[n] < 1 || extents[n] > (int64_t)1 << 32)
            return refuse("%s: TMA takes extents from 1 to 2^32, and one of %s is %lld", function, name, (long long)extents[n]);
        sizes[n] = (uint64_t)extents[n];
        if (n == 0) continue;
        int64_t pitch = strides[n] * bytes;
        const int is_taken = pitch % 16 == 0 && pitch >= 0 && pitch < (int64_t)1 << 40;
        if (!is_taken && extents[n] != 1)
            return refuse(
                "%s: TMA takes strides that are multiples of 16 bytes, below 2^40, and one of %s is %lld bytes", function, name,
                (long long)pitch);
        pitches[n - 1] = (uint64_t)(is_taken ? pitch : 16);
    }
    const int status = driver.encode(
        map, type, (unsigned int)rank, (void *)address, sizes, pitches, box, steps, 0, swizzle, 2 /* by 128 bytes */, fill);
    return status == 0 ? 0 : failed(status, "encoding a tensor map");
}
