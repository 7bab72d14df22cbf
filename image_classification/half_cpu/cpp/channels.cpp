// Batch normalisation, maybe with a sum and an activation, of [outer, channels, inner]: inner is 1 where the channels lie
// side by side, outer * inner the number of elements of a channel. Statistics are float32: each part of the rows has its
// own mean and squared deviations, which are then merged (Chan et al.), so nothing cancels and one pass over memory is
// enough.
#include <type_traits>

#include "activations.h"
#include "interface.h"
#include "parallel.h"

namespace {

struct Shape {
    long outer, channels, inner;
    long part() const { return std::max(32L, (outer + 127) / 128); }  // rows, the same for any number of threads
    long parts() const { return (outer + part() - 1) / part(); }
    bool small() const { return outer * channels * inner < 32768; }
};

// Rows of channels: call f(first, last, part) for each part of the rows.
template <class F>
void for_parts(const Shape& s, F f) {
    for_tasks(s.small(), s.parts(), [=](long p) {
        const F own = f;
        own(p * s.part(), std::min(s.outer, (p + 1) * s.part()), p);
    });
}

constexpr long GROUP = 8;  // rows that are read side by side, so that sums are read and written once for all of them

// Call f(row, number of rows) for groups of rows; the number is known at compile time for all but the last ones.
template <class F>
void for_groups(long first, long last, F f) {
    for (; first + GROUP <= last; first += GROUP) f(first, std::integral_constant<long, GROUP>());
    if (first < last) f(first, last - first);
}

template <class T>
void statistics(const Shape& s, const T* x, float* mean, float* variance) {
    long C = s.channels;
    if (s.inner > 1) {
        for_tasks(s.small(), C, [&](long c) {
            double total = 0, squares = 0;
            for (int pass = 0; pass < 2; pass++) {
                double center = pass ? total / (s.outer * s.inner) : 0;
                for (long o = 0; o < s.outer; o++) {
                    const T* row = x + (o * C + c) * s.inner;
                    Vector sums = all(0.0f), middle = all((float)center);
                    float rest = 0;
                    walk(s.inner, [&](long i, long count) {
                        Vector v = take(row + i, count);
                        if (pass) v = (v - middle) * (v - middle);
                        if (count == W) sums = sums + v;
                        else for (long j = 0; j < count; j++) { float some[W]; store(some, v); rest += some[j]; }
                    });
                    (pass ? squares : total) += sum(sums) + rest;
                }
            }
            mean[c] = total / (s.outer * s.inner);
            variance[c] = squares / (s.outer * s.inner);
        });
        return;
    }
    long parts = s.parts();
    Floats partial(parts * 2 * C);
    float* all_parts = partial;
    for_parts(s, [=](long first, long last, long p) {
        float *means = all_parts + p * 2 * C, *squares = means + C;
        memset(means, 0, 2 * C * sizeof(float));
        for_groups(first, last, [=](long r, auto many) {
            float share = (float)many / (r - first + many), weight = (r - first) * share;
            walk(C, [=](long c, long count) {
                Vector values[GROUP], total = all(0.0f), deviations = all(0.0f);
                for (long k = 0; k < many; k++) {
                    const T* next = x + (r + k) * C + c;
                    _mm_prefetch((const char*)(next + many * C), _MM_HINT_T0);  // the processor follows fewer rows
                    total = total + (values[k] = take(next, count));
                }
                Vector center = total * all(1.0f / many), mean = take(means + c, count);
                for (long k = 0; k < many; k++) deviations = fma(values[k] - center, values[k] - center, deviations);
                Vector difference = center - mean;
                give(means + c, fma(difference, all(share), mean), count);
                deviations = fma(difference * all(weight), difference, deviations);
                give(squares + c, take(squares + c, count) + deviations, count);
            });
        });
    });
    walk(C, [&](long c, long count) {
        Vector center = take(partial + c, count), deviations = take(partial + C + c, count);
        float seen = std::min(s.outer, s.part());
        for (long p = 1; p < parts; p++) {
            float rows = std::min(s.outer, (p + 1) * s.part()) - p * s.part(), both = seen + rows;
            Vector difference = take(partial + p * 2 * C + c, count) - center;
            center = fma(difference, all(rows / both), center);
            deviations = deviations + take(partial + p * 2 * C + C + c, count);
            deviations = fma(difference * difference, all(seen * rows / both), deviations);
            seen = both;
        }
        give(mean + c, center, count);
        give(variance + c, deviations * all(1.0f / s.outer), count);
    });
}

// y = factor[c] * x + addend[c] and the like: write f(index, count, channel's values) of all elements. What f has is kept
// in registers if it is captured by value: a store might change what others can reach.
template <class T, class F>
void map_elements(const Shape& s, T* to, F f) {
    long C = s.channels, inner = s.inner, outer = s.outer;
    if (inner == 1) {
        long rows = std::max(1L, 8192 / C);
        for_tasks(s.small(), (outer + rows - 1) / rows, [=](long task) {
            const F own = f;
            for (long r = task * rows; r < std::min(outer, (task + 1) * rows); r++)
                map(C, to + r * C, [=](long c, long count) {
                    return own(r * C + c, count, [=](const float* values) { return take(values + c, count); });
                });
        });
        return;
    }
    for_tasks(s.small(), outer * C, [=](long plane) {
        const F own = f;
        map(inner, to + plane * inner, [=](long i, long count) {
            return own(plane * inner + i, count, [=](const float* values) { return all(values[plane % C]); });
        });
    });
}

// y = activation(normalised x + residual), where there is a residual.
template <class T, class A>
void batch_norm(const Shape& s, float epsilon, bool given, A activation, const T* x, const float* scale,
                const float* shift, T* y, float* mean, float* variance, const T* residual) {
    if (!given) statistics(s, x, mean, variance);
    Floats factors(s.channels);
    for (long c = 0; c < s.channels; c++) factors[c] = scale[c] / std::sqrt(variance[c] + epsilon);
    const float* factor = factors;
    map_elements(s, y, [=](long at, long count, auto of) {
        Vector v = fma(take(x + at, count) - of(mean), of(factor), of(shift));
        if (residual) v = v + take(residual + at, count);
        return activation.forward(v);
    });
}

// With a residual the gradient that passes through the activation, found by the result `y`, is written to `passed`: it is
// the residual's. Otherwise the activation's input is computed anew, which takes less time than reading it.
template <class T, class A>
void batch_norm_backward(const Shape& s, float epsilon, bool given, A activation, const T* x, const float* mean,
                         const float* variance, const float* scale, const T* gradient, T* out, float* scale_gradient,
                         float* shift_gradient, const float* shift, const T* y, T* passed) {
    long C = s.channels;
    long wide = (C + W - 1) / W * W;
    Floats root(4 * wide);
    float *slope = root + wide, *addend = slope + wide, *factor = addend + wide, n = (float)s.outer * s.inner;
    for (long c = 0; c < C; c++) root[c] = 1.0f / std::sqrt(variance[c] + epsilon), factor[c] = scale[c] * root[c];
    auto arriving = [=](long at, long count, Vector deviation, auto of) {
        Vector g = take(gradient + at, count);
        if (!passed) return activation.backward(fma(deviation, of(factor), of(shift)), g);
        g = activation.backward(take(y + at, count), g);
        give(passed + at, g, count);
        return g;
    };
    if (s.inner == 1) {
        long parts = s.parts();
        Floats partial(parts * 2 * C);
        float* all_parts = partial;
        for_parts(s, [=](long first, long last, long p) {
            float *dots = all_parts + p * 2 * C, *sums = dots + C;
            memset(dots, 0, 2 * C * sizeof(float));
            // With the sums in registers where rows are so short that reading many of them by columns reads whole lines, or
            // where they are read from a cache; memory is faster row by row.
            auto columns = [=](long c, auto many, long begin, long end, long count) {
                Vector dot[decltype(many)::value], total[decltype(many)::value];
                for (long k = 0; k < many; k++) {
                    dot[k] = take(dots + c + k * W, count);
                    total[k] = take(sums + c + k * W, count);
                }
                for (long r = begin; r < end; r++)
                    for (long k = 0; k < many; k++) {
                        long at = c + k * W;
                        Vector deviation = take(x + r * C + at, count) - take(mean + at, count);
                        Vector g = arriving(r * C + at, count, deviation, [=](auto* of) { return take(of + at, count); });
                        dot[k] = fma(g, deviation, dot[k]);
                        total[k] = total[k] + g;
                    }
                for (long k = 0; k < many; k++) {
                    give(dots + c + k * W, dot[k], count);
                    give(sums + c + k * W, total[k], count);
                }
            };
            long rows = C <= MANY * W ? 2 * GROUP : s.outer * C * (long)sizeof(T) <= 8 << 20 ? GROUP : 1;
            for (long r = first; r < last; r += rows) {
                long end = std::min(last, r + rows);
                for_vectors(C, [=](long c, long count, auto many) { columns(c, many, r, end, count); });
            }
        });
        for (long c = 0; c < C; c++) {
            float dot = 0, total = 0;
            for (long p = 0; p < parts; p++) dot += partial[p * 2 * C + c], total += partial[p * 2 * C + C + c];
            scale_gradient[c] = dot * root[c];
            shift_gradient[c] = total;
        }
    } else {
        for_tasks(s.small(), C, [&](long c) {
            double dot = 0, total = 0;
            for (long o = 0; o < s.outer; o++) {
                long from = (o * C + c) * s.inner;
                Vector dots = all(0.0f), sums = all(0.0f);
                walk(s.inner, [&](long i, long count) {
                    Vector deviation = take(x + from + i, count) - all(mean[c]);
                    Vector g = arriving(from + i, count, deviation, [&](const float* of) { return all(of[c]); });
                    Vector product = g * deviation;
                    dots = dots + within(product, count);  // beyond the end g is zero, and the mean times zero may be NaN
                    sums = sums + within(g, count);
                });
                dot += sum(dots), total += sum(sums);
            }
            scale_gradient[c] = dot * root[c];
            shift_gradient[c] = total;
        });
    }
    // scale / deviation * (g - mean of g - normalised x * mean of (g * normalised x)); given statistics have no part
    for (long c = 0; c < C; c++) {
        slope[c] = given ? 0 : scale_gradient[c] * root[c] / n;
        addend[c] = given ? 0 : shift_gradient[c] / n;
    }
    map_elements(s, out, [=](long at, long count, auto of) {
        Vector deviation = take(x + at, count) - of(mean), g;
        if (passed) g = take(passed + at, count);
        else g = activation.backward(fma(deviation, of(factor), of(shift)), take(gradient + at, count));
        g = g - of(addend);
        if (!given) g = fma(-deviation, of(slope), g);
        return g * of(factor);
    });
}

}  // namespace

// `given`: the statistics are read; otherwise they are computed and written. `residual` may be null.
EXPORT int batch_norm(int format, long outer, long channels, long inner, float epsilon, int given,
                      const char* activation, Source x, const float* scale, const float* shift, Target y, float* mean,
                      float* variance, Source residual) {
    return for_format(format, [&](auto number) {
        using T = decltype(number);
        return for_fused<T>(activation, [&](auto f) {
            batch_norm<T>({outer, channels, inner}, epsilon, given, f, x, scale, shift, y, mean, variance, residual);
        });
    });
}

// running = running * momentum + batch * share, each product rounded as Paddle rounds it: not fused with the sum.
EXPORT int move_statistics(long channels, float momentum, float share, const float* mean, const float* variance,
                           float* running_mean, float* running_variance) {
    const float* batch[] = {mean, variance};
    float* running[] = {running_mean, running_variance};
    for (int i = 0; i < 2; i++)
        for (long c = 0; c < channels; c++) {
            volatile float kept = running[i][c] * momentum, added = batch[i][c] * share;
            running[i][c] = kept + added;
        }
    return 0;
}

// `y` and `passed` are null where the activation has no residual before it.
EXPORT int batch_norm_backward(int format, long outer, long channels, long inner, float epsilon, int given,
                               const char* activation, Source x, const float* mean, const float* variance,
                               const float* scale, Source gradient, Target out, float* scale_gradient,
                               float* shift_gradient, const float* shift, Source y, Target passed) {
    return for_format(format, [&](auto number) {
        using T = decltype(number);
        return for_fused<T>(activation, [&](auto f) {
            batch_norm_backward<T>({outer, channels, inner}, epsilon, given, f, x, mean, variance, scale, gradient, out,
                                   scale_gradient, shift_gradient, shift, y, passed);
        });
    });
}
