// Functions of vectors: to some units in float32's last place, or, shorter, to 3e-6 of what is rounded to a half format T.
#pragma once
#include <cfloat>
#include <type_traits>

#include "vector.h"

template <class T>
constexpr bool IS_HALF = !std::is_same_v<T, float>;

// The sum of falling powers of x with these factors.
template <class... C>
static inline Vector polynomial(Vector x, float first, C... rest) {
    Vector p = all(first);
    ((p = fma(p, x, all((float)rest))), ...);
    return p;
}

// 2^r for r from -1/2 to 1/2: to 8e-8, or to 2.6e-6.
template <class T>
static inline Vector power_of_rest(Vector r) {
    if constexpr (IS_HALF<T>) return polynomial(r, 9.5701e-3f, 5.591786e-2f, 2.4024745e-1f, 6.9312181e-1f, 9.9999926e-1f);
    return polynomial(r, 1.3276471e-3f, 9.6755410e-3f, 5.5507131e-2f, 2.4022120e-1f, 6.9314694e-1f, 1);
}

// p with exp(r) = 1 + r + r r p, where r is what a whole number n of halvings leaves of x.
template <class T>
struct Series {
    Vector r, p;
    Series(Vector x, Vector n) {
        if constexpr (IS_HALF<T>) {
            r = fma(n, all(-0.693147182f), x);
            p = polynomial(r, 8.33807e-3f, 4.187257e-2f, 1.6666831e-1f, 4.9999403e-1f);
        } else {
            r = fma(n, all(2.12194440e-4f), fma(n, all(-0.693359375f), x));
            p = polynomial(r, 1.9875691500e-4f, 1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f,
                           5.0000001201e-1f);
        }
    }
};
// exp(x) to two units in the last place; inf beyond 88.7, 0 below -104, NaN stays.
template <class T>
static inline Vector exponential(Vector x) {
    x = held(x);
    Vector n = nearest(x, all(1.44269504f));
    if constexpr (IS_HALF<T>) return times_power_of_two(power_of_rest<T>(fma(x, all(1.44269504f), -n)), n);
    Series<T> s(x, n);
    return times_power_of_two(fma(s.p, s.r * s.r, s.r + all(1.0f)), n);
}
// exp(x) - 1 for x up to 87, as exact beside zero as elsewhere; -1 below -40, NaN stays.
template <class T>
static inline Vector exponential_less_one(Vector x) {
    x = maximum(all(-40.0f), x);
    Vector n = nearest(x, all(1.44269504f)), power = power_of_two(n);
    Series<T> s(x, n);
    return fma(fma(s.p, s.r * s.r, s.r), power, power - all(1.0f));
}
// log(1 + x) for x from 0 to 1: the series of 2 artanh(x / (2 + x)), whose first term left out is below 2e-9 of the sum.
template <class T>
static inline Vector log_one_plus(Vector x) {
    Vector s = x / (all(2.0f) + x), z = s * s;
    if constexpr (IS_HALF<T>) return (s + s) * polynomial(z, 1.6991789e-1f, 1.9817984e-1f, 3.3336742e-1f, 1);
    return (s + s) * polynomial(z, 1.0f / 15, 1.0 / 13, 1.0 / 11, 1.0 / 9, 1.0 / 7, 1.0 / 5, 1.0 / 3, 1);
}
// 1 / (1 + e^-x) to four units in the last place; 0 below -87, NaN stays.
template <class T>
static inline Vector sigmoid(Vector x) {
    const Vector many = all(0x1.8p23f), factor = all(-1.44269504f);
    Vector held = minimum(all(87.0f), x), m = fma(held, factor, many);
    Vector r = fma(held, factor, many - m);  // what a whole number of doublings leaves
    if constexpr (!IS_HALF<T>) r = fma(held, all(-1.925963033e-8f), r);
    Vector one = fma(held, all(0.0f), all(1.0f));  // or NaN, of which `raised` knows nothing
    return choose(less(x, all(-87.0f)), all(0.0f), all(1.0f) / (one + raised(power_of_rest<T>(r), m)));
}
// e / (e + 2) with e = exp(2 x) - 1: three units in the last place.
template <class T>
static inline Vector tanh(Vector x) {
    Vector e = exponential_less_one<T>(minimum(all(40.0f), x + x));
    return e / (e + all(2.0f));
}
// The probability that a normal variable is below x: Numerical Recipes' erfcc, relative error 1.2e-7 in the tails too.
static inline Vector normal_below(Vector x) {
    Vector z = magnitude(x) * all(0.70710678f);
    Vector t = all(1.0f) / fma(z, all(0.5f), all(1.0f));
    Vector p = polynomial(t, 0.17087277f, -0.82215223f, 1.48851587f, -1.13520398f, 0.27886807f, -0.18628806f, 0.09678418f,
                          0.37409196f, 1.00002368f, -1.26551223f);
    Vector tail = all(0.5f) * t * exponential<float>(fma(-z, z, p));
    return choose(less(x, all(0.0f)), tail, all(1.0f) - tail);
}

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
template <class T>
static inline Vector logarithm(Vector x) {
    Vector m, e = exponent_of(x, &m);
    Mask large = less(all(1.41421356f), m);
    m = choose(large, m * all(0.5f), m), e = choose(large, e + all(1.0f), e);
    Vector s = (m - all(1.0f)) / (m + all(1.0f)), z = s * s, p;  // 2 artanh(s)
    if constexpr (IS_HALF<T>) p = polynomial(z, 2.0601197e-1f, 3.3327807e-1f, 1);
    else p = polynomial(z, 1.0f / 9, 1.0 / 7, 1.0 / 5, 1.0 / 3, 1);
    Vector result = fma(e, all(0.693359375f), fma(e, all(-2.12194440e-4f), (s + s) * p));
    result = choose(less(x, all(INFINITY)), result, x);  // inf and NaN stay
    return choose(less(all(0.0f), x), result, choose(equal(x, all(0.0f)), all(-INFINITY), x * all(NAN)));
}

// The sine, or the cosine: that of the rest beside the nearest multiple of half pi.
template <class T>
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
    if constexpr (!IS_HALF<T>) r = fma(n, all(0x1.ee59dap-50f), r);
    if (cosine) n = n + all(1.0f);
    Vector pairs = nearest(fma(n, all(0.5f), all(-0.25f))), fours = nearest(fma(pairs, all(0.5f), all(-0.25f)));
    Vector z = r * r;
    Vector odd, even;
    if constexpr (IS_HALF<T>) {
        odd = polynomial(z, 8.16328e-3f, -1.666339e-1f);
        even = polynomial(z, -1.36487e-3f, 4.166107e-2f);
    } else {
        odd = polynomial(z, -1.9515295891e-4f, 8.3321608736e-3f, -1.6666654611e-1f);
        even = polynomial(z, 2.443315711809948e-5f, -1.388731625493765e-3f, 4.166664568298827e-2f);
    }
    odd = fma(odd * z, r, r);
    even = fma(even * z, z, fma(z, all(-0.5f), all(1.0f)));
    Vector result = choose(less(pairs + pairs, n), even, odd);
    return choose(less(fours + fours, pairs), all(0.0f) - result, result);
}
