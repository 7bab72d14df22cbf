// Dropout: random numbers by Philox 4 x 32 with ten rounds (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3",
// 2011), of which each is a function of its place alone, whatever the threads and vectors.
#include "broadcast.h"

namespace {

// As many lanes of 64 bits as fill a vector; a number of 32 bits is in the lower half of each.
typedef uint64_t Wide __attribute__((vector_size(4 * W)));
constexpr int LANES = W / 2, BLOCK = 64;  // numbers that are drawn together, by 16 counters

// The product of the lower halves of the lanes with a number of 32 bits.
ALWAYS_INLINE Wide product(Wide a, uint32_t b) {
#ifdef __AVX512F__
    return (Wide)_mm512_mul_epu32((__m512i)a, _mm512_set1_epi64(b));
#else
    return (Wide)_mm256_mul_epu32((__m256i)a, _mm256_set1_epi64x(b));
#endif
}

// Write the four numbers of each counter, in the lower halves. What the upper ones hold meanwhile is not looked at.
ALWAYS_INLINE void philox(Wide counter, const uint32_t* key, Wide* c) {
    c[0] = counter, c[1] = counter >> 32, c[2] = c[3] = Wide{};
    uint32_t low = key[0], high = key[1];
    for (int round = 0; round < 10; round++, low += 0x9E3779B9, high += 0xBB67AE85) {
        Wide first = product(c[0], 0xD2511F53), second = product(c[2], 0xCD9E8D57);
        c[0] = (second >> 32) ^ c[1] ^ low;
        c[1] = second;
        c[2] = (first >> 32) ^ c[3] ^ high;
        c[3] = first;
    }
}

// Write as bytes which of a block's elements stay: those whose number is not below the bound. Counter i of a block has the
// numbers of the elements i, 16 + i, 32 + i and 48 + i.
void draw(long block, const uint32_t* key, uint32_t bound, uint8_t* kept) {
    uint32_t drawn[BLOCK];
    for (int part = 0; part < 16; part += W) {
        Wide even, odd[4], numbers[4];
        for (int i = 0; i < LANES; i++) even[i] = block * 16 + part + 2 * i;
        philox(even + 1, key, odd);
        philox(even, key, numbers);
        for (int i = 0; i < 4; i++) {
            Wide both = (numbers[i] & 0xFFFFFFFF) | odd[i] << 32;
            memcpy(drawn + 16 * i + part, &both, sizeof both);
        }
    }
    for (int i = 0; i < BLOCK; i++) kept[i] = drawn[i] >= bound;
}

template <class T>
void masked(long n, float factor, const uint8_t* kept, const T* x, T* out) {
    map(n, out, [=](long i, long count) {
        return choose(equal(load_bytes(kept + i, count), all(0.0f)), all(0.0f), take(x + i, count) * all(factor));
    });
}

}  // namespace

// Elements of x times a factor, 0 in place of those whose number is below the bound, and as bytes which ones stayed.
EXPORT int dropout(int format, long n, const uint32_t* key, uint32_t bound, float factor, const void* x, uint8_t* kept,
                   void* out) {
    return for_format(format, [&](auto number) {
        using T = decltype(number);
        long blocks = (n + BLOCK - 1) / BLOCK;
        for_ranges(blocks, GRAIN / BLOCK, [&](long first, long last) {
            for (long block = first; block < std::min(last, n / BLOCK); block++) draw(block, key, bound, kept + block * BLOCK);
            if (last > n / BLOCK) {
                uint8_t some[BLOCK];
                draw(n / BLOCK, key, bound, some);
                memcpy(kept + n / BLOCK * BLOCK, some, n % BLOCK);
            }
            long at = first * BLOCK, count = std::min(n, last * BLOCK) - at;
            masked(count, factor, kept + at, (const T*)x + at, (T*)out + at);
        });
    });
}

EXPORT int dropout_backward(int format, long n, float factor, const uint8_t* kept, const void* gradient, void* out) {
    return for_format(format, [&](auto number) {
        using T = decltype(number);
        for_ranges(n, GRAIN, [&](long first, long last) {
            masked(last - first, factor, kept + first, (const T*)gradient + first, (T*)out + first);
        });
    });
}
