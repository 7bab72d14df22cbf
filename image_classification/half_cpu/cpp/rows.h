// The rows of a matrix: walks over them, sums and exponentials; float32 inside.
#pragma once
#include <utility>

#include "interface.h"
#include "parallel.h"

namespace {

template <class F>
void for_rows(long rows, long columns, F f) {
    for_ranges(rows, 16384 / columns, [&](long first, long last) {
        static thread_local Scratch scratch;
        float* row = scratch.floats(2 * (columns + W));
        for (long r = first; r < last; r++) f(r, row);
    });
}

template <class F>
float sum_over(long n, F f) {
    Vector total = all(0.0f);
    walk(n, [&](long i, long count) {
        Vector x = f(i, count);
        if (count < W) {  // lanes beyond the end count as zero
            float some[W] = {};
            store(some, x, count);
            x = load(some);
        }
        total = total + x;
    });
    return sum(total);
}

// Write e^(x - the largest) of a row, and return the largest and the sum; what is further below counts as `lowest`.
template <class T>
std::pair<float, float> exponentials(long columns, const T* x, float* row, float lowest = -INFINITY) {
    float largest = -INFINITY;
    Vector top = all(-INFINITY);
    walk(columns, [&](long i, long count) {
        Vector v = take(x + i, count);
        store(row + i, v);
        if (count == W) top = maximum(v, top);
        else for (long j = 0; j < count; j++) largest = std::max(largest, row[i + j]);
    });
    float some[W];
    store(some, top);
    for (float one : some) largest = std::max(largest, one);
    float total = sum_over(columns, [&](long i, long) {
        Vector e = exponential(maximum(all(lowest), load(row + i) - all(largest)));
        store(row + i, e);
        return e;
    });
    return {largest, total};
}

}  // namespace
