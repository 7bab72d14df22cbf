// Vectors of float32 lanes, and their loads from and stores to float16, bfloat16 and float32 memory.
//
// A store rounds once, to nearest even; float16 has gradual subnormals and overflows to inf from 65520 on.
#pragma once
#include <immintrin.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

// What has a branch for special numbers, and is called so often that the compiler would make it a function of its own.
#define ALWAYS_INLINE static inline __attribute__((always_inline))

struct Float16 { uint16_t bits; };
struct BFloat16 { uint16_t bits; };
struct Bits { uint16_t bits; };  // moved as they are, in the lower half of a lane

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__)

constexpr int W = 16;
using Vector = __m512;
using Mask = __mmask16;

static inline Vector all(float x) { return _mm512_set1_ps(x); }
static inline Vector load(const float* p) { return _mm512_loadu_ps(p); }
static inline void store(float* p, Vector v) { _mm512_storeu_ps(p, v); }
static inline Vector load(const Float16* p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p)); }
static inline void store(Float16* p, Vector v) {
    _mm256_storeu_si256((__m256i*)p, _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
static inline Vector load(const BFloat16* p) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p)), 16));
}
static inline void store(BFloat16* p, Vector v) {
#ifdef __AVX512BF16__  // makes subnormal numbers zero, and other numbers of NaN
    if (!_mm512_fpclass_ps_mask(v, 0x81 | 0x20)) {
        _mm256_storeu_si256((__m256i*)p, (__m256i)_mm512_cvtneps_pbh(v));
        return;
    }
#endif
    __m512i bits = _mm512_castps_si512(v), rounded = _mm512_add_epi32(bits, _mm512_set1_epi32(0x7FFF));
    __mmask16 odd = _mm512_test_epi32_mask(bits, _mm512_set1_epi32(0x10000)), nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
    rounded = _mm512_mask_sub_epi32(rounded, odd, rounded, _mm512_set1_epi32(-1));
    rounded = _mm512_mask_mov_epi32(rounded, nan, _mm512_set1_epi32(0x7FC00000));
    const __m512i high = _mm512_set_epi64(0, 0, 0, 0, 0x1F001D001B0019, 0x17001500130011, 0xF000D000B0009, 0x7000500030001);
    _mm256_storeu_si256((__m256i*)p, _mm512_castsi512_si256(_mm512_permutexvar_epi16(high, rounded)));
}
#ifdef __AVX512BF16__
ALWAYS_INLINE void store(BFloat16* p, Vector a, Vector b) {
    if (!_mm512_kor(_mm512_fpclass_ps_mask(a, 0x81 | 0x20), _mm512_fpclass_ps_mask(b, 0x81 | 0x20)))
        return _mm512_storeu_si512(p, (__m512i)_mm512_cvtne2ps_pbh(b, a));
    store(p, a);
    store(p + W, b);
}
#endif
static inline Vector load(const Bits* p) {
    return _mm512_castsi512_ps(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p)));
}
static inline void store(Bits* p, Vector v) {
    _mm256_storeu_si256((__m256i*)p, _mm512_cvtepi32_epi16(_mm512_castps_si512(v)));
}
static inline Vector paired(Vector low, Vector high) {
    return _mm512_castsi512_ps(
        _mm512_or_si512(_mm512_castps_si512(low), _mm512_slli_epi32(_mm512_castps_si512(high), 16)));
}
static inline Vector fma(Vector a, Vector b, Vector c) { return _mm512_fmadd_ps(a, b, c); }
// The second operand wins where either is NaN.
static inline Vector maximum(Vector a, Vector b) { return _mm512_max_ps(a, b); }
static inline Vector minimum(Vector a, Vector b) { return _mm512_min_ps(a, b); }
static inline Vector root(Vector a) { return _mm512_sqrt_ps(a); }
static inline Mask less(Vector a, Vector b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
static inline Mask equal(Vector a, Vector b) { return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ); }
static inline Mask is_nan(Vector a) { return _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q); }
static inline Vector choose(Mask mask, Vector yes, Vector no) { return _mm512_mask_blend_ps(mask, no, yes); }
static inline bool any(Mask mask) { return mask; }
static inline Vector magnitude(Vector a) { return _mm512_abs_ps(a); }
static inline float sum(Vector a) { return _mm512_reduce_add_ps(a); }
static inline __m256 halves(Vector a) { return _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1)); }
// The sums of four vectors, in the first lanes.
static inline Vector sums(Vector a, Vector b, Vector c, Vector d) {
    __m256 pairs = _mm256_hadd_ps(_mm256_hadd_ps(halves(a), halves(b)), _mm256_hadd_ps(halves(c), halves(d)));
    return _mm512_zextps128_ps512(_mm_add_ps(_mm256_castps256_ps128(pairs), _mm256_extractf128_ps(pairs, 1)));
}
static inline float largest(Vector a) { return _mm512_reduce_max_ps(a); }
static inline Vector nearest(Vector a) {
    return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
// The whole number nearest to a product below 2^22, in two instructions instead of three.
static inline Vector nearest(Vector a, Vector factor) { return fma(a, factor, all(0x1.8p23f)) - all(0x1.8p23f); }
// p, from 1/2 to 2, times two to the whole number of m, to which 1.5 * 2^23 was added; from -125 to 125.
static inline Vector raised(Vector p, Vector m) {
    return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(p), _mm512_slli_epi32(_mm512_castps_si512(m), 23)));
}
// What exp(x) is finite for, and some above, for which it is inf; `times_power_of_two` sees to what is far below.
static inline Vector held(Vector x) { return minimum(all(89.5f), x); }
// What comes to 0 is not computed: Intel's processors take 200 cycles for a vector with such a number.
static inline Vector times_power_of_two(Vector a, Vector exponent) {
    return _mm512_maskz_scalef_ps(_mm512_cmp_ps_mask(exponent, all(-150.0f), _CMP_NLT_UQ), a, exponent);
}
static inline Vector power_of_two(Vector n) { return _mm512_scalef_ps(all(1.0f), n); }
// Each lane with the one beside it exchanged: 1, 0, 3, 2, ...
static inline Vector neighbours(Vector a) { return _mm512_permute_ps(a, 0xB1); }
// The numbers of a table of 16 at places 0..15.
static inline Vector look_up(const float* table, Vector place) {
    return _mm512_permutexvar_ps(_mm512_cvtps_epi32(place), load(table));
}
static inline void transpose(Vector* r) {
    Vector t[16];
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) {
        r[i] = _mm512_shuffle_ps(t[i], t[i + 2], 0x44);
        r[i + 1] = _mm512_shuffle_ps(t[i], t[i + 2], 0xEE);
        r[i + 2] = _mm512_shuffle_ps(t[i + 1], t[i + 3], 0x44);
        r[i + 3] = _mm512_shuffle_ps(t[i + 1], t[i + 3], 0xEE);
    }
    for (int i = 0; i < 4; i++) {
        t[i] = _mm512_shuffle_f32x4(r[i], r[i + 4], 0x88);
        t[i + 4] = _mm512_shuffle_f32x4(r[i], r[i + 4], 0xDD);
        t[i + 8] = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0x88);
        t[i + 12] = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0xDD);
    }
    for (int i = 0; i < 8; i++) {
        r[i] = _mm512_shuffle_f32x4(t[i], t[i + 8], 0x88);
        r[i + 8] = _mm512_shuffle_f32x4(t[i], t[i + 8], 0xDD);
    }
}

static inline Mask lanes(long n) { return (Mask)((1u << n) - 1); }
// The first n < W elements; the lanes beyond them are zero.
static inline Vector load(const float* p, long n) { return _mm512_maskz_loadu_ps(lanes(n), p); }
static inline Vector load(const Float16* p, long n) {
    return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(lanes(n), p));
}
static inline Vector load(const BFloat16* p, long n) {
    __m256i bits = _mm256_maskz_loadu_epi16(lanes(n), p);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}
static inline Vector load(const Bits* p, long n) {
    return _mm512_castsi512_ps(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(lanes(n), p)));
}
static inline void store(Bits* p, Vector v, long n) {
    _mm256_mask_storeu_epi16(p, lanes(n), _mm512_cvtepi32_epi16(_mm512_castps_si512(v)));
}
static inline void store(float* p, Vector v, long n) { _mm512_mask_storeu_ps(p, lanes(n), v); }
template <class T>
static inline void store(T* p, Vector v, long n) {
    T some[W];
    store(some, v);
    _mm256_mask_storeu_epi16(p, lanes(n), _mm256_loadu_si256((const __m256i*)some));
}
// Whole numbers from 0 to 255 as bytes.
static inline Vector load_bytes(const uint8_t* p, long n) {
    __m128i bytes = n == W ? _mm_loadu_si128((const __m128i*)p) : _mm_maskz_loadu_epi8(lanes(n), p);
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes));
}
static inline void store_bytes(uint8_t* p, Vector v, long n) {
    __m128i bytes = _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(v));  // a store that converts is slow on AMD's processors
    if (n == W) _mm_storeu_si128((__m128i*)p, bytes);
    else _mm_mask_storeu_epi8(p, lanes(n), bytes);
}

#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)

constexpr int W = 8;
using Vector = __m256;
using Mask = __m256;

static inline Vector all(float x) { return _mm256_set1_ps(x); }
static inline Vector load(const float* p) { return _mm256_loadu_ps(p); }
static inline void store(float* p, Vector v) { _mm256_storeu_ps(p, v); }
static inline Vector widened(__m128i bits, const Float16*) { return _mm256_cvtph_ps(bits); }
static inline Vector widened(__m128i bits, const BFloat16*) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}
static inline Vector widened(__m128i bits, const Bits*) { return _mm256_castsi256_ps(_mm256_cvtepu16_epi32(bits)); }
template <class T>
static inline Vector load(const T* p) { return widened(_mm_loadu_si128((const __m128i*)p), p); }
static inline void store(Float16* p, Vector v) {
    _mm_storeu_si128((__m128i*)p, _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
static inline Vector paired(Vector low, Vector high) {
    return _mm256_castsi256_ps(
        _mm256_or_si256(_mm256_castps_si256(low), _mm256_slli_epi32(_mm256_castps_si256(high), 16)));
}
static inline void store(Bits* p, Vector v) {
    __m256i bits = _mm256_castps_si256(v);
    __m128i low = _mm256_castsi256_si128(bits), high = _mm256_extracti128_si256(bits, 1);
    _mm_storeu_si128((__m128i*)p, _mm_packus_epi32(low, high));
}
static inline Vector choose(Mask mask, Vector yes, Vector no) { return _mm256_blendv_ps(no, yes, mask); }
static inline bool any(Mask mask) { return _mm256_movemask_ps(mask); }
static inline Mask is_nan(Vector a) { return _mm256_cmp_ps(a, a, _CMP_UNORD_Q); }
// Rounded numbers in the lower halves of the lanes; NaN becomes another number.
static inline __m256i rounded(Vector v) {
    __m256i bits = _mm256_castps_si256(v), odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    return _mm256_srli_epi32(_mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7FFF)), odd), 16);
}
static inline void store(BFloat16* p, Vector v) {
    __m256i bits = rounded(v), nan = _mm256_castps_si256(is_nan(v));
    bits = _mm256_blendv_epi8(bits, _mm256_set1_epi32(0x7FC0), nan);
    store((Bits*)p, _mm256_castsi256_ps(bits));
}
__attribute__((noinline, cold)) static void store_apart(BFloat16* p, Vector a, Vector b) {
    store(p, a);
    store(p + W, b);
}
ALWAYS_INLINE void store(BFloat16* p, Vector a, Vector b) {
    if (__builtin_expect(any(_mm256_cmp_ps(a, b, _CMP_UNORD_Q)), 0)) return store_apart(p, a, b);
    __m256i packed = _mm256_packus_epi32(rounded(a), rounded(b));
    _mm256_storeu_si256((__m256i*)p, _mm256_permute4x64_epi64(packed, 0xD8));
}
static inline Vector fma(Vector a, Vector b, Vector c) { return _mm256_fmadd_ps(a, b, c); }
static inline Vector maximum(Vector a, Vector b) { return _mm256_max_ps(a, b); }
static inline Vector minimum(Vector a, Vector b) { return _mm256_min_ps(a, b); }
static inline Vector root(Vector a) { return _mm256_sqrt_ps(a); }
static inline Mask less(Vector a, Vector b) { return _mm256_cmp_ps(a, b, _CMP_LT_OQ); }
static inline Mask equal(Vector a, Vector b) { return _mm256_cmp_ps(a, b, _CMP_EQ_OQ); }
static inline Vector magnitude(Vector a) { return _mm256_andnot_ps(all(-0.0f), a); }
static inline float sum(Vector a) {
    __m128 half = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    half = _mm_add_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_add_ss(half, _mm_movehdup_ps(half)));
}
static inline Vector sums(Vector a, Vector b, Vector c, Vector d) {
    Vector pairs = _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));
    return _mm256_zextps128_ps256(_mm_add_ps(_mm256_castps256_ps128(pairs), _mm256_extractf128_ps(pairs, 1)));
}
static inline float largest(Vector a) {
    __m128 half = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    half = _mm_max_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_max_ss(half, _mm_movehdup_ps(half)));
}
static inline Vector nearest(Vector a) {
    return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
static inline Vector nearest(Vector a, Vector factor) { return nearest(a * factor); }
static inline Vector raised(Vector p, Vector m) {
    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p), _mm256_slli_epi32(_mm256_castps_si256(m), 23)));
}
static inline Vector held(Vector x) { return minimum(all(89.5f), maximum(all(-105.0f), x)); }
static inline Vector times_power_of_two(Vector a, Vector exponent) {
    // In two steps, so that results near the ends of the range are right.
    __m256i whole = _mm256_cvtps_epi32(minimum(maximum(exponent, all(-250)), all(250)));
    __m256i first = _mm256_srai_epi32(whole, 1), second = _mm256_sub_epi32(whole, first), bias = _mm256_set1_epi32(127);
    a = a * _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(first, bias), 23));
    return a * _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(second, bias), 23));
}
// 2^n for whole numbers n from -126 to 127.
static inline Vector power_of_two(Vector n) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23));
}
static inline Vector neighbours(Vector a) { return _mm256_permute_ps(a, 0xB1); }
static inline Vector look_up(const float* table, Vector place) {
    __m256i index = _mm256_cvtps_epi32(place);
    Vector first = _mm256_permutevar8x32_ps(load(table), index), second = _mm256_permutevar8x32_ps(load(table + 8), index);
    return choose(_mm256_castsi256_ps(_mm256_slli_epi32(index, 28)), second, first);
}
static inline void transpose(Vector* r) {
    Vector t[8];
    for (int i = 0; i < 8; i += 2) {
        t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
        t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) {
        r[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
        r[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xEE);
        r[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
        r[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xEE);
    }
    for (int i = 0; i < 4; i++) {
        t[i] = _mm256_permute2f128_ps(r[i], r[i + 4], 0x20);
        t[i + 4] = _mm256_permute2f128_ps(r[i], r[i + 4], 0x31);
    }
    for (int i = 0; i < 8; i++) r[i] = t[i];
}

// The first n < W elements; the lanes beyond them are zero. Of known sizes, which a call of memcpy would take longer for.
template <class T>
static inline Vector load(const T* p, long n) {
    const uint16_t* from = (const uint16_t*)p;
    uint64_t low = 0, high = 0;
    if (n >= 4) memcpy(&low, from, 8);
    if (n > 4) memcpy(&high, from + n - 4, 8), high >>= 16 * (8 - n);  // what low has goes
    if (n == 2 || n == 3) memcpy(&low, from, 4);
    if (n == 1 || n == 3) low |= (uint64_t)from[n - 1] << 16 * (n - 1);
    return widened(_mm_set_epi64x(high, low), p);
}
static inline Mask lanes(long n) {
    static const int ones[2 * W] = {-1, -1, -1, -1, -1, -1, -1, -1};
    return _mm256_loadu_ps((const float*)(ones + W - n));
}
static inline Vector load(const float* p, long n) { return _mm256_maskload_ps(p, _mm256_castps_si256(lanes(n))); }
template <class T>
static inline void store(T* p, Vector v, long n) {
    T some[W];
    store(some, v);
    long done = 0, bytes = n * sizeof(T);
#pragma GCC unroll 4
    for (long size = 16; size > 1; size /= 2)
        if (bytes & size) {
            memcpy((char*)p + done, (const char*)some + done, size);
            done += size;
        }
}
// Whole numbers from 0 to 255 as bytes.
static inline Vector load_bytes(const uint8_t* p, long n) {
    long bytes = 0;
    if (n == W) memcpy(&bytes, p, W);
    else memcpy(&bytes, p, n);
    return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128(bytes)));
}
static inline void store_bytes(uint8_t* p, Vector v, long n) {
    __m256i whole = _mm256_cvtps_epi32(v);
    __m128i halves = _mm_packus_epi32(_mm256_castsi256_si128(whole), _mm256_extracti128_si256(whole, 1));
    long bytes = _mm_cvtsi128_si64(_mm_packus_epi16(halves, halves));
    if (n == W) memcpy(p, &bytes, W);
    else memcpy(p, &bytes, n);
}

#else
#error "needs AVX-512 (F, BW, VL, DQ), or AVX2 with FMA and F16C"
#endif

template <class T>
static inline float value(const T* p) { return ((const float*)&(const Vector&)load(p, 1))[0]; }
template <>
inline float value(const float* p) { return *p; }
template <>
inline float value(const Float16* p) { return _cvtsh_ss(p->bits); }
template <>
inline float value(const BFloat16* p) {
    uint32_t bits = (uint32_t)p->bits << 16;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}
template <class T>
static inline void put(T* p, float x) { store(p, all(x), 1); }

// NaN where either is.
static inline Vector largest(Vector a, Vector b) { return choose(is_nan(a), a, maximum(a, b)); }
static inline Vector smallest(Vector a, Vector b) { return choose(is_nan(a), a, minimum(a, b)); }

// Walk n elements: f(index, count) with count W, and fewer at the end.
template <class F>
static inline void walk(long n, F f) {
    long i = 0;
    for (; i + W <= n; i += W) f(i, (long)W);
    if (i < n) f(i, n - i);
}
// Walk n elements, whole lines of the cache at a time where there are: f(index, count of a vector, number of vectors), a
// constant.
constexpr long MANY = 4;
template <class F>
static inline void for_vectors(long n, F f) {
    long i = 0;
    for (; i + MANY * W <= n; i += MANY * W) f(i, (long)W, std::integral_constant<long, MANY>());
    walk(n - i, [&](long j, long count) { f(i + j, count, std::integral_constant<long, 1>()); });
}
template <class T>
static inline Vector take(const T* p, long count) { return count == W ? load(p) : load(p, count); }
template <class T>
static inline void give(T* p, Vector v, long count) {
    if (count == W) store(p, v);
    else store(p, v, count);
}
// v with another number in the lanes beyond `count`.
static inline Vector within(Vector v, long count, float beyond = 0.0f) {
    return count == W ? v : choose(lanes(count), v, all(beyond));
}

template <class T>
static inline void store(T* p, Vector a, Vector b) {
    store(p, a);
    store(p + W, b);
}
// Write f(index, count) for n elements, two vectors at a time: whole lines of the cache, and one look for special numbers.
template <class T, class F>
static inline void map(long n, T* to, F f) {
    long i = 0;
    for (; i + 2 * W <= n; i += 2 * W) {
        Vector a = f(i, (long)W), b = f(i + W, (long)W);
        store(to + i, a, b);
    }
    walk(n - i, [&](long j, long count) { give(to + i + j, f(i + j, count), count); });
}

// A product that the compiler may not fuse with a sum: Paddle's operators round it.
static inline Vector apart(Vector product) {
    asm("" : "+x"(product));
    return product;
}
