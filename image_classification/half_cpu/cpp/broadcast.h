// A function of two tensors of which each may be repeated along axes.
#pragma once
#include "interface.h"
#include "parallel.h"

namespace {

// Call f(first element, elements, at) for each row of the last of four axes, or for parts of the only one; at(strides) is
// where it begins in a tensor.
template <class F>
void for_rows_of(const long* sizes, F f) {
    long second = sizes[1], third = sizes[2], columns = sizes[3];
    if (sizes[0] * second * third == 1)
        return for_ranges(columns, GRAIN, [&](long first, long last) {
            f(first, last - first, [=](const long* strides) { return first * strides[3]; });
        });
    for_ranges(sizes[0] * second * third, GRAIN / columns, [=](long first, long last) {
        const F own = f;  // in registers: a store might change what others can reach
        for (long r = first; r < last; r++) {
            long i = r / (second * third), j = r / third % second, k = r % third;
            own(r * columns, columns, [=](const long* strides) { return i * strides[0] + j * strides[1] + k * strides[2]; });
        }
    });
}

// Rows of the last of four axes; a stride of 0 repeats an element, other strides of the last axis are 1. f gets a vector of
// each tensor, and where in the result it begins. Where only the right one repeats fewer loops are compiled.
template <bool ANY, class T, class Out, class F>
void combine(const long* sizes, const long* left, const long* right, const T* a, const T* b, Out* out, F f) {
    auto row = [&](const T* x, const T* y, long at, long n) {
        Out* z = out + at;
        auto fill = [&](auto first, auto second) {
            map(n, z, [&](long i, long count) { return f(first(i, count), second(i, count), at + i, count); });
        };
        auto many = [](const T* p) { return [p](long i, long count) { return take(p + i, count); }; };
        auto same = [](const T* p) { return [v = all(value(p))](long, long) { return v; }; };
        if constexpr (ANY) {
            if (!left[3]) return right[3] ? fill(same(x), many(y)) : fill(same(x), same(y));
        }
        if (right[3]) fill(many(x), many(y));
        else fill(many(x), same(y));
    };
    for_rows_of(sizes, [&](long first, long n, auto at) { row(a + at(left), b + at(right), first, n); });
}

}  // namespace
