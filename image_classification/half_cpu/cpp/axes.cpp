// The largest and the smallest along the middle of three axes, where they are, lengths and running sums; float32 inside.
#include <cfloat>

#include "interface.h"
#include "parallel.h"

namespace {

// Call f(first element, elements of a vector) for each column of [outer, middle, inner].
template <class F>
void for_columns(long outer, long middle, long inner, F f) {
    long strips = (inner + 4 * W - 1) / (4 * W);  // neighbours come from one cache line
    for_ranges(outer * strips, GRAIN / (middle * std::min(inner, 4L * W)), [&](long first, long last) {
        for (long task = first; task < last; task++) {
            long i = task % strips * 4 * W, end = std::min(inner, i + 4 * W);
            for (; i < end; i += W) f(task / strips, i, std::min(end - i, (long)W));
        }
    });
}

template <class F>
void for_rows(long outer, long middle, F f) {
    for_ranges(outer, GRAIN / middle, [&](long first, long last) { for (long o = first; o < last; o++) f(o); });
}

template <class T, class F>
void extreme(long outer, long middle, long inner, const T* x, T* out, F better) {
    if (inner > 1) return for_columns(outer, middle, inner, [&](long o, long i, long count) {
        const T* column = x + o * middle * inner + i;
        Vector best = take(column, count);
        for (long m = 1; m < middle; m++) best = better(best, take(column + m * inner, count));
        give(out + o * inner + i, best, count);
    });
    for_rows(outer, middle, [&](long o) {
        const T* row = x + o * middle;
        Vector best = all(value(row));
        if (middle < W)
            for (long m = 1; m < middle; m++) best = better(best, all(value(row + m)));
        else {
            for (long m = 0; m + W <= middle; m += W) best = better(best, load(row + m));
            best = better(best, load(row + middle - W));
            float lanes[W];
            store(lanes, best);
            best = all(lanes[0]);
            for (float lane : lanes) best = better(best, all(lane));
        }
        store(out + o, best, 1);
    });
}

// Those that are the extreme share its gradient.
template <class T>
void extreme_backward(long outer, long middle, long inner, const T* x, const T* y, const T* gradient, T* out) {
    auto part = [](Vector v, Vector best, Vector g, Vector ties) {
        return choose(equal(v, best), g, all(0.0f) * g) / ties;
    };
    if (inner > 1) return for_columns(outer, middle, inner, [&](long o, long i, long count) {
        long at = o * middle * inner + i;
        Vector best = take(y + o * inner + i, count), g = take(gradient + o * inner + i, count), ties = all(0.0f);
        for (long m = 0; m < middle; m++)
            ties = choose(equal(take(x + at + m * inner, count), best), ties + all(1.0f), ties);
        for (long m = 0; m < middle; m++)
            give(out + at + m * inner, part(take(x + at + m * inner, count), best, g, ties), count);
    });
    for_rows(outer, middle, [&](long o) {
        const T* row = x + o * middle;
        Vector best = all(value(y + o)), g = all(value(gradient + o)), some = all(0.0f);
        long whole = middle / W * W;
        for (long m = 0; m < whole; m += W) some = choose(equal(load(row + m), best), some + all(1.0f), some);
        float count = sum(some);
        for (long m = whole; m < middle; m++) count += value(row + m) == value(y + o);
        walk(middle, [&](long m, long n) { give(out + o * middle + m, part(take(row + m, n), best, g, all(count)), n); });
    });
}

// Where the first of the largest is, of x times `sign`; NaN is never the largest.
template <class T>
void place(long outer, long middle, long inner, float sign, const T* x, long* out) {
    if (inner > 1) return for_columns(outer, middle, inner, [&](long o, long i, long count) {
        const T* column = x + o * middle * inner + i;
        Vector best = all(-FLT_MAX), where = all(0.0f);
        for (long m = 0; m < middle; m++) {
            Vector v = take(column + m * inner, count) * all(sign);
            where = choose(less(best, v), all(m), where);
            best = choose(less(best, v), v, best);
        }
        float places[W];
        store(places, where);
        for (long k = 0; k < count; k++) out[o * inner + i + k] = (long)places[k];
    });
    for_rows(outer, middle, [&](long o) {
        const T* row = x + o * middle;
        Vector best = all(-FLT_MAX), where = all(-1.0f);
        long m = 0;
        for (; m + W <= middle; m += W) {
            Vector v = load(row + m) * all(sign);
            where = choose(less(best, v), all(m), where);
            best = choose(less(best, v), v, best);
        }
        float values[W], places[W], largest = -FLT_MAX;
        store(values, best), store(places, where);
        long found = 0;
        for (long k = 0; k < W; k++) {
            long at = (long)places[k] + k;
            if (places[k] >= 0 && (values[k] > largest || (values[k] == largest && at < found)))
                largest = values[k], found = at;
        }
        for (; m < middle; m++)
            if (value(row + m) * sign > largest) largest = value(row + m) * sign, found = m;
        out[o] = found;
    });
}

template <class T>
void length(long outer, long middle, long inner, const T* x, T* out, float* unrounded) {
    auto write = [&](long at, Vector squares, long count) {
        give(out + at, root(squares), count);
        give(unrounded + at, root(squares), count);
    };
    if (inner > 1) return for_columns(outer, middle, inner, [&](long o, long i, long count) {
        Vector total = all(0.0f);
        for (long m = 0; m < middle; m++) {
            Vector v = take(x + (o * middle + m) * inner + i, count);
            total = fma(v, v, total);
        }
        write(o * inner + i, total, count);
    });
    for_rows(outer, middle, [&](long o) {
        Vector total = all(0.0f);
        walk(middle, [&](long m, long count) {
            Vector v = take(x + o * middle + m, count);
            total = fma(v, v, total);
        });
        write(o, all(sum(total)), 1);
    });
}

template <class T>
void length_backward(long outer, long middle, long inner, float epsilon, const T* x, const float* lengths,
                     const T* gradient, T* out) {
    auto factor = [&](Vector g, Vector length) { return g / (length + all(epsilon)); };
    if (inner > 1) return for_columns(outer, middle, inner, [&](long o, long i, long count) {
        long row = o * inner + i;
        Vector slope = factor(take(gradient + row, count), take(lengths + row, count));
        for (long m = 0; m < middle; m++) {
            long at = (o * middle + m) * inner + i;
            give(out + at, take(x + at, count) * slope, count);
        }
    });
    for_rows(outer, middle, [&](long o) {
        Vector slope = factor(all(value(gradient + o)), all(lengths[o]));
        walk(middle, [&](long m, long count) {
            give(out + o * middle + m, take(x + o * middle + m, count) * slope, count);
        });
    });
}

template <class T>
void running_sum(long outer, long middle, long inner, bool back, const T* x, T* out) {
    long first = back ? middle - 1 : 0, step = back ? -1 : 1;
    if (inner > 1) return for_columns(outer, middle, inner, [&](long o, long i, long count) {
        Vector total = all(0.0f);
        for (long n = 0, m = first; n < middle; n++, m += step) {
            long at = (o * middle + m) * inner + i;
            total = total + take(x + at, count);
            give(out + at, total, count);
        }
    });
    for_rows(outer, middle, [&](long o) {
        static thread_local Scratch scratch;
        float* row = scratch.floats(middle + W);
        walk(middle, [&](long m, long count) { store(row + m, take(x + o * middle + m, count)); });
        float total = 0.0f;
        for (long n = 0, m = first; n < middle; n++, m += step) row[m] = total += row[m];
        walk(middle, [&](long m, long count) { give(out + o * middle + m, load(row + m), count); });
    });
}

}  // namespace

// The sizes are those of outer, middle and inner axes of a dense tensor; the result has no middle.
EXPORT int extreme(int format, int is_minimum, long outer, long middle, long inner, Source x, Target out) {
    return for_format(format, [&](auto number) {
        auto run = [&](auto better) { extreme<decltype(number)>(outer, middle, inner, x, out, better); };
        if (is_minimum) run([](Vector a, Vector b) { return smallest(a, b); });
        else run([](Vector a, Vector b) { return largest(a, b); });
    });
}

EXPORT int extreme_backward(int format, long outer, long middle, long inner, Source x, Source y, Source gradient,
                            Target out) {
    return for_format(format, [&](auto number) {
        extreme_backward<decltype(number)>(outer, middle, inner, x, y, gradient, out);
    });
}

// Where the first of the largest, or of the smallest, is: whole numbers below 2^24.
EXPORT int place(int format, int is_minimum, long outer, long middle, long inner, Source x, long* out) {
    return for_format(format, [&](auto number) {
        place<decltype(number)>(outer, middle, inner, is_minimum ? -1.0f : 1.0f, x, out);
    });
}

EXPORT int running_sum(int format, int back, long outer, long middle, long inner, Source x, Target out) {
    return for_format(format, [&](auto number) { running_sum<decltype(number)>(outer, middle, inner, back, x, out); });
}

// The root of the sum of squares, rounded and as it is.
EXPORT int length(int format, long outer, long middle, long inner, Source x, Target out, float* unrounded) {
    return for_format(format, [&](auto number) { length<decltype(number)>(outer, middle, inner, x, out, unrounded); });
}

EXPORT int length_backward(int format, long outer, long middle, long inner, float epsilon, Source x,
                           const float* lengths, Source gradient, Target out) {
    return for_format(format, [&](auto number) {
        length_backward<decltype(number)>(outer, middle, inner, epsilon, x, lengths, gradient, out);
    });
}
