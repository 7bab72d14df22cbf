// Sums over the middle of three axes, also of the product of two tensors; float32 inside, rounded once.
#include "interface.h"
#include "parallel.h"

namespace {

// Sum rows [first, last) of one [middle, inner] block into `sums`.
template <class T>
void sum_block(long first, long last, long inner, const long* left, const long* right, const T* a, const T* b,
               float* sums) {
    if (inner == 1 && left[1] == 1 && (!b || right[1] == 1)) {
        constexpr int MANY = 8;  // sums that do not wait for each other
        Vector total[MANY];
        for (int k = 0; k < MANY; k++) total[k] = all(0.0f);
        auto one = [&](long i, long count) {
            Vector x = take(a + i, count);
            return b ? x * take(b + i, count) : x;
        };
        for (; first + MANY * W <= last; first += MANY * W)
            for (int k = 0; k < MANY; k++) total[k] = total[k] + one(first + k * W, W);
        walk(last - first, [&](long i, long count) { total[0] = total[0] + one(first + i, count); });
        for (int k = MANY; k /= 2;)
            for (int i = 0; i < k; i++) total[i] = total[i] + total[i + k];
        sums[0] = sum(total[0]);
        return;
    }
    memset(sums, 0, inner * sizeof(float));
    for (long m = first; m < last; m++) {
        const T *x = a + m * left[1], *y = b ? b + m * right[1] : nullptr;
        walk(inner, [&](long i, long count) {
            Vector p = left[2] ? take(x + i, count) : all(value(x));
            if (y) p = p * (right[2] ? take(y + i, count) : all(value(y)));
            give(sums + i, take(sums + i, count) + p, count);
        });
    }
}

// Sums of up to FEW elements in one pass.
constexpr long FEW = W;
template <class T, class Out>
void sum_few(const long* sizes, const long* steps, const T* a, float scale, Out* out) {
    long outer = sizes[0], middle = sizes[1], inner = sizes[2], across = steps[0], step = steps[1];
    if (inner > 1) {
        constexpr long STRIP = 4096;
        long strips = (inner + STRIP - 1) / STRIP;
        return for_ranges(outer * strips, GRAIN / (middle * std::min(inner, STRIP)), [=](long first, long last) {
            for (long task = first; task < last; task++) {
                long o = task / strips, begin = task % strips * STRIP;
                const T* from = a + o * across + begin;
                Out* to = out + o * inner + begin;
                walk(std::min(STRIP, inner - begin), [=](long i, long count) {
                    Vector total = take(from + i, count);
                    for (long m = 1; m < middle; m++) total = total + take(from + m * step + i, count);
                    give(to + i, total * all(scale), count);
                });
            }
        });
    }
    for_ranges(outer, GRAIN / middle, [=](long first, long last) {
        float sums[W];
        for (long o = first; o < last; o += W) {
            long n = std::min(last - o, (long)W);
            for (long k = 0; k < n; k++) sums[k] = sum(take(a + (o + k) * middle, middle));
            give(out + o, take(sums, n) * all(scale), n);
        }
    });
}

template <class T, class Out>
void reduce(const long* sizes, const long* left, const long* right, const T* a, const T* b, float scale, Out* out) {
    long outer = sizes[0], middle = sizes[1], inner = sizes[2];
    if (!b && middle <= FEW && (inner > 1 ? left[2] : left[1] == 1 && left[0] == middle))
        return sum_few(sizes, left, a, scale, out);
    // Parts of fixed size, so that the result does not depend on the number of threads.
    long part = std::max(64L, 65536 / inner);
    if (outer >= 64) part = middle;
    long parts = (middle + part - 1) / part;
    Floats sums(outer * parts * inner);
    auto run = [&](long task) {
        long o = task / parts, p = task % parts;
        sum_block(p * part, std::min(middle, (p + 1) * part), inner, left, right, a + o * left[0],
                  b ? b + o * right[0] : b, sums + task * inner);
    };
    bool few = outer * middle * inner < 32768;
    if (few || parts > 1 || outer < 1024) for_tasks(few, outer * parts, run);
    else for_ranges(outer, 16, [&](long first, long last) { for (long o = first; o < last; o++) run(o); });
    for (long o = 0; o < outer; o++) {
        float* total = sums + o * parts * inner;
        walk(inner, [&](long i, long count) {
            Vector x = take(total + i, count);
            for (long p = 1; p < parts; p++) x = x + take(total + p * inner + i, count);
            give(out + o * inner + i, x * all(scale), count);
        });
    }
}

}  // namespace

// sizes: outer, middle, inner; strides: those of left, then of right, in elements; the last stride is 1, or 0 for a
// repeated element. The result is [outer, inner]. `right` may be null.
EXPORT int reduce(int format, int out_format, const long* sizes, const long* strides, Source left, Source right,
                  float scale, Target out) {
    return for_format(format, [&](auto number) {
        return for_format(out_format, [&](auto result) {
            reduce<decltype(number), decltype(result)>(sizes, strides, strides + 3, left, right, scale, out);
        });
    });
}
