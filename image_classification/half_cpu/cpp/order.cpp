// The places of numbers in their order.
#include <array>
#include <vector>

#include "interface.h"
#include "parallel.h"

namespace {

// A whole number that is the larger the larger x is. Zeros are equal, and NaN is the largest.
uint32_t rank(float x) {
    if (x != x) return UINT32_MAX;
    x += 0.0f;
    uint32_t bits;
    memcpy(&bits, &x, sizeof(bits));
    return bits >> 31 ? ~bits : bits | 1u << 31;
}

// Sort by the upper halves, equal ones in the order that they have: digit by digit, the lowest first.
void sort(std::vector<uint64_t>& keys, std::vector<uint64_t>& other) {
    long n = keys.size();
    other.resize(n);
    std::array<std::array<uint32_t, 256>, 4> counts{};
    for (uint64_t key : keys)
        for (int digit = 0; digit < 4; digit++) counts[digit][key >> (32 + 8 * digit) & 255]++;
    for (int digit = 0; digit < 4; digit++) {
        auto& begins = counts[digit];
        int shift = 32 + 8 * digit;
        if (begins[keys[0] >> shift & 255] == n) continue;
        uint32_t begin = 0;
        for (uint32_t& count : begins) {
            uint32_t size = count;
            count = begin;
            begin += size;
        }
        for (uint64_t key : keys) other[begins[key >> shift & 255]++] = key;
        keys.swap(other);
    }
}

}  // namespace

// index[o, j, i] = where the j-th smallest, or largest if `descending`, of x[o, :, i] lies; the first `wanted` of them.
EXPORT int order(int format, int descending, long outer, long size, long inner, long wanted, const void* x,
                 long* index) {
    return for_format(format, [&](auto number) {
        using T = decltype(number);
        for_ranges(outer * inner, 4096 / size, [&](long first, long last) {
            std::vector<uint64_t> keys(size), other;
            for (long row = first; row < last; row++) {
                long o = row / inner, i = row % inner;
                const T* from = (const T*)x + o * size * inner + i;
                for (long j = 0; j < size; j++) {
                    uint32_t key = rank(value(from + j * inner));
                    keys[j] = (uint64_t)(descending ? ~key : key) << 32 | j;
                }
                if (16 * wanted <= size) std::partial_sort(keys.begin(), keys.begin() + wanted, keys.end());
                else sort(keys, other);
                for (long j = 0; j < wanted; j++) index[(o * wanted + j) * inner + i] = (uint32_t)keys[j];
            }
        });
    });
}
