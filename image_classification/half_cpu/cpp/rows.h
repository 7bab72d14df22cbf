// The rows of a matrix: walks over them, sums and exponentials; float32 inside.
#pragma once
#include <utility>

#include "functions.h"
#include "interface.h"
#include "parallel.h"

namespace {

template <class F>
void for_rows(long rows, long columns, F f) {
    for_ranges(rows, GRAIN / columns, [&](long first, long last) {
        static thread_local Scratch scratch;
        float* row = scratch.floats(2 * (columns + W));
        for (long r = first; r < last; r++) f(r, row);
    });
}

template <class F>
float sum_over(long n, F f) {
    Vector total = all(0.0f);
    walk(n, [&](long i, long count) { total = total + within(f(i, count), count); });
    return sum(total);
}

// Call f(N, row), N a constant: for four rows at a time, whose sums do not wait for one another, then for single ones.
template <class F>
void by_four(long first, long last, F f) {
    for (; first + 4 <= last; first += 4) f(std::integral_constant<int, 4>{}, first);
    for (; first < last; first++) f(std::integral_constant<int, 1>{}, first);
}

// The sums of N vectors in the first lanes, each by the same steps whatever N is.
template <int N>
Vector sums(const Vector (&v)[N]) { return ::sums(v[0], v[1 % N], v[2 % N], v[3 % N]); }

// Write e^(x - the largest) of a row, and return the largest and the sum; what is further below counts as `lowest`.
template <class T>
std::pair<float, float> exponentials(long columns, const T* x, float* row, float lowest = -INFINITY) {
    Vector top = all(-INFINITY);
    walk(columns, [&](long i, long count) {
        Vector v = take(x + i, count);
        store(row + i, v);
        top = maximum(within(v, count, -INFINITY), top);
    });
    const float largest = ::largest(top);
    float total = sum_over(columns, [&](long i, long) {
        Vector e = exponential<T>(maximum(all(lowest), load(row + i) - all(largest)));
        store(row + i, e);
        return e;
    });
    return {largest, total};
}

}  // namespace
