// addend + x * scale * factor in one pass: the addend a tensor or a row, the scale a row or one of each sample, the factor
// one number of each sample, any of them left out. A residual with layer scale and drop path, a bias, a scale and shift, a
// gate. float32 inside, rounded once; the result has the format of x, or is float32.
#include "interface.h"
#include "parallel.h"

namespace {

// The rows of a sample share its factor.
template <class A, class X, class Out>
void scaled_sum(long samples, long rows, long columns, bool gates, long step, const A* addend, const X* x, const float* scale,
                const float* factors, Out* out) {
    for_ranges(samples * rows, GRAIN / columns, [&](long first, long last) {
        for (long r = first; r < last; r++) {
            const A* a = addend ? addend + r * step : nullptr;
            const X* from = x + r * columns;
            Out* to = out + r * columns;
            Vector factor = all(factors ? factors[r / rows] : 1.0f);
            const float* own = gates ? scale + r / rows * columns : scale;
            walk(columns, [&](long i, long count) {
                Vector v = take(from + i, count);
                if (own) v = v * take(own + i, count);
                if (factors) v = v * factor;
                give(to + i, a ? take(a + i, count) + v : v, count);
            });
        }
    });
}

// Gradients of x, scale and a row that was added; each of them may be null.
template <class X, class Out>
void scaled_sum_backward(long samples, long rows, long columns, const Out* gradient, const X* x, const float* scale,
                         const float* factors, X* x_gradient, float* scale_gradient, float* row_gradient) {
    bool sums = scale_gradient || row_gradient;
    // Parts of fixed size, so that the sums do not depend on the number of threads.
    long total = samples * rows, part = sums ? std::max(16L, (total + 63) / 64) : std::max(1L, GRAIN / columns);
    long parts = (total + part - 1) / part, width = (columns + W - 1) / W * W;
    Floats partial(sums ? parts * 2 * width : 0);
    auto run = [&](long p) {
        float *scale_sums = partial + p * 2 * width, *row_sums = scale_sums + width;
        if (sums) memset(scale_sums, 0, 2 * width * sizeof(float));
        for (long r = p * part; r < std::min(total, (p + 1) * part); r++) {
            const Out* g = gradient + r * columns;
            const X* from = x + r * columns;
            X* to = x_gradient + r * columns;
            Vector factor = all(factors ? factors[r / rows] : 1.0f);
            walk(columns, [&](long i, long count) {
                Vector v = take(g + i, count);
                if (row_gradient) give(row_sums + i, take(row_sums + i, count) + v, count);
                if (factors) v = v * factor;
                if (scale_gradient) give(scale_sums + i, take(scale_sums + i, count) + v * take(from + i, count), count);
                if (x_gradient) give(to + i, scale ? v * take(scale + i, count) : v, count);
            });
        }
    };
    for_tasks(total * columns < 2 * GRAIN, parts, run);
    if (!sums) return;
    walk(columns, [&](long i, long count) {
        Vector a = all(0.0f), b = all(0.0f);
        for (long p = 0; p < parts; p++) {
            a = a + load(partial + p * 2 * width + i);
            b = b + load(partial + p * 2 * width + width + i);
        }
        if (scale_gradient) give(scale_gradient + i, a, count);
        if (row_gradient) give(row_gradient + i, b, count);
    });
}

}  // namespace

// gates: the scale has a row of each sample. step: elements from one row of the addend to the next, 0 where it is a row.
EXPORT int scaled_sum(int addend_format, int format, int out_format, long samples, long rows, long columns, int gates,
                      long step, Source addend, Source x, const float* scale, const float* factors, Target out) {
    if (out_format != format && out_format != FLOAT32) return 1;
    return for_format(addend_format, [&](auto added) {
        return for_format(format, [&](auto number) {
            using X = decltype(number);
            auto run = [&](auto result) {
                using Out = decltype(result);
                scaled_sum<decltype(added), X, Out>(samples, rows, columns, gates, step, addend, x, scale, factors, out);
            };
            if (out_format == format) run(number);
            else run(float{});
        });
    });
}

// gates: there is no gradient of a row that was added.
EXPORT int scaled_sum_backward(int format, int result_format, long samples, long rows, long columns, int gates,
                               const void* gradient, const void* x, const float* scale, const float* factors,
                               void* x_gradient, float* scale_gradient, float* row_gradient) {
    return for_format(format, [&](auto number) {
        return for_format(result_format, [&](auto result) {
            using X = decltype(number);
            long calls = gates ? samples : 1, many = samples / calls, step = gates ? columns : 0;
            for (long s = 0; s < calls; s++) {
                long at = s * rows * columns;
                scaled_sum_backward(many, rows, columns, (const decltype(result)*)gradient + at,
                                    x ? (const X*)x + at : nullptr, scale ? scale + s * step : nullptr,
                                    factors ? factors + s : nullptr, x_gradient ? (X*)x_gradient + at : nullptr,
                                    scale_gradient ? scale_gradient + s * step : nullptr, row_gradient);
            }
        });
    });
}
