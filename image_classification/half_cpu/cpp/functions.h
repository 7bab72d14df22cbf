// Logarithm, sine and cosine of vectors, to two units in the last place.
#pragma once
#include <cfloat>

#include "vector.h"

// x = mantissa * 2^exponent with a mantissa from 1 to 2, for x > 0.
static inline Vector exponent_of(Vector x, Vector* mantissa) {
#ifdef __AVX512F__
    *mantissa = _mm512_getmant_ps(x, _MM_MANT_NORM_1_2, _MM_MANT_SIGN_src);
    return _mm512_getexp_ps(x);
#else
    Mask tiny = less(x, all(FLT_MIN));
    x = choose(tiny, x * all(0x1p24f), x);
    __m256i bits = _mm256_castps_si256(x), one = _mm256_castps_si256(all(1.0f));
    *mantissa = _mm256_castsi256_ps(_mm256_or_si256(_mm256_and_si256(bits, _mm256_set1_epi32(0x7FFFFF)), one));
    Vector exponent = _mm256_cvtepi32_ps(_mm256_sub_epi32(_mm256_srli_epi32(bits, 23), _mm256_set1_epi32(127)));
    return choose(tiny, exponent - all(24.0f), exponent);
#endif
}

// -inf for 0, NaN below.
static inline Vector logarithm(Vector x) {
    Vector m, e = exponent_of(x, &m);
    Mask large = less(all(1.41421356f), m);
    m = choose(large, m * all(0.5f), m), e = choose(large, e + all(1.0f), e);
    Vector s = (m - all(1.0f)) / (m + all(1.0f)), z = s * s, p = all(1.0f / 9);  // 2 artanh(s)
    for (float divisor = 7; divisor > 0; divisor -= 2) p = fma(p, z, all(1 / divisor));
    Vector result = fma(e, all(0.693359375f), fma(e, all(-2.12194440e-4f), (s + s) * p));
    result = choose(less(x, all(INFINITY)), result, x);  // inf and NaN stay
    return choose(less(all(0.0f), x), result, choose(equal(x, all(0.0f)), all(-INFINITY), x * all(NAN)));
}

// The sine, or the cosine: that of the rest beside the nearest multiple of half pi.
static inline Vector wave(Vector x, bool cosine) {
    constexpr float FAR = 1e5f;  // from here on half pi has too few digits
    if (any(less(all(FAR), magnitude(x)))) {
        float some[W];
        store(some, x);
        for (float& one : some) one = cosine ? std::cos(one) : std::sin(one);
        return load(some);
    }
    Vector n = nearest(x * all(0.636619772f));
    Vector r = fma(n, all(-0x1.921fb6p+0f), x);
    r = fma(n, all(0x1.777a5cp-25f), r);
    r = fma(n, all(0x1.ee59dap-50f), r);
    if (cosine) n = n + all(1.0f);
    Vector pairs = nearest(fma(n, all(0.5f), all(-0.25f))), fours = nearest(fma(pairs, all(0.5f), all(-0.25f)));
    Vector z = r * r;
    Vector odd = fma(fma(all(-1.9515295891e-4f), z, all(8.3321608736e-3f)), z, all(-1.6666654611e-1f));
    odd = fma(odd * z, r, r);
    Vector even = fma(fma(all(2.443315711809948e-5f), z, all(-1.388731625493765e-3f)), z, all(4.166664568298827e-2f));
    even = fma(even * z, z, fma(z, all(-0.5f), all(1.0f)));
    Vector result = choose(less(pairs + pairs, n), even, odd);
    return choose(less(fours + fours, pairs), all(0.0f) - result, result);
}
