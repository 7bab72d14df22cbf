// Softmax and its logarithm, and layer normalisation, of the rows of a matrix; float32 inside.
#include <vector>

#include "rows.h"

namespace {

template <class T>
void softmax(long rows, long columns, const T* from, T* to) {
    for_rows(rows, columns, [&](long r, float* row) {
        T* y = to + r * columns;
        Vector factor = all(1.0f / exponentials(columns, from + r * columns, row).second);
        walk(columns, [&](long i, long count) { give(y + i, load(row + i) * factor, count); });
    });
}

template <class T>
void log_softmax(long rows, long columns, const T* from, T* to) {
    for_rows(rows, columns, [&](long r, float* row) {
        const T* x = from + r * columns;
        T* y = to + r * columns;
        auto [largest, total] = exponentials(columns, x, row);
        Vector top = all(largest), rest = all(std::log(total));
        walk(columns, [&](long i, long count) { give(y + i, take(x + i, count) - top - rest, count); });
    });
}

// From the input: the result, rounded to a half format, is no good measure of its own exponential.
template <class T>
void log_softmax_backward(long rows, long columns, const T* from, const T* gradient, T* out) {
    for_rows(rows, columns, [&](long r, float* row) {
        const T* g = gradient + r * columns;
        T* to = out + r * columns;
        float all_of_it = sum_over(columns, [&](long i, long count) { return take(g + i, count); });
        Vector factor = all(all_of_it / exponentials(columns, from + r * columns, row).second);
        walk(columns, [&](long i, long count) { give(to + i, take(g + i, count) - load(row + i) * factor, count); });
    });
}

// Less the mean of the gradients by the weights of the probabilities: rounded ones are not 1 together, and what all
// gradients share would stay. All of them may be 0.
template <class T>
void softmax_backward(long rows, long columns, const T* result, const T* gradient, T* out) {
    for_rows(rows, columns, [&](long r, float*) {
        const T *y = result + r * columns, *g = gradient + r * columns;
        Vector weighted[2] = {all(0.0f), all(0.0f)}, total[2] = {all(0.0f), all(0.0f)};
        auto add = [&](int k, long i, long count) {
            Vector some = take(y + i, count);
            weighted[k] = fma(some, take(g + i, count), weighted[k]);
            total[k] = total[k] + some;
        };
        long i = 0;
        for (; i + 2 * W <= columns; i += 2 * W) add(0, i, W), add(1, i + W, W);
        walk(columns - i, [&](long j, long count) { add(0, i + j, count); });
        Vector mean = all(sum(weighted[0] + weighted[1]) / std::max(sum(total[0] + total[1]), 1e-30f));
        map(columns, out + r * columns, [=](long i, long count) {
            return take(y + i, count) * (take(g + i, count) - mean);
        });
    });
}

// Softmax over the middle of [outer, columns, inner], a vector of inner elements at a time.
template <class F>
void for_columns(long outer, long columns, long inner, F f) {
    long strips = (inner + W - 1) / W;
    for_ranges(outer * strips, GRAIN / (columns * W), [&](long first, long last) {
        static thread_local Scratch scratch;
        float* kept = scratch.floats(columns * W);
        for (long task = first; task < last; task++) {
            long i = task % strips * W;
            f(task / strips * columns * inner + i, std::min(inner - i, (long)W), kept);
        }
    });
}

template <class T>
void softmax_columns(long outer, long columns, long inner, const T* x, T* y) {
    for_columns(outer, columns, inner, [&](long at, long count, float* kept) {
        Vector top = all(-INFINITY), total = all(0.0f);
        for (long n = 0; n < columns; n++) {
            Vector v = take(x + at + n * inner, count);
            store(kept + n * W, v);
            top = maximum(v, top);
        }
        for (long n = 0; n < columns; n++) {
            Vector e = exponential<T>(load(kept + n * W) - top);
            store(kept + n * W, e);
            total = total + e;
        }
        Vector factor = all(1.0f) / total;
        for (long n = 0; n < columns; n++) give(y + at + n * inner, load(kept + n * W) * factor, count);
    });
}

template <class T>
void softmax_columns_backward(long outer, long columns, long inner, const T* y, const T* gradient, T* out) {
    for_columns(outer, columns, inner, [&](long at, long count, float*) {
        Vector dot = all(0.0f), total = dot;
        for (long n = 0; n < columns; n++) {
            long place = at + n * inner;
            Vector some = take(y + place, count);
            dot = fma(some, take(gradient + place, count), dot);
            total = total + some;
        }
        dot = dot / maximum(total, all(1e-30f));
        for (long n = 0; n < columns; n++) {
            long place = at + n * inner;
            give(out + place, take(y + place, count) * (take(gradient + place, count) - dot), count);
        }
    });
}

// Where rows of maps [height, width] go in their windows, cut after a cyclic shift up and to the left; null: they stay.
struct Places {
    std::vector<int> places;

    explicit Places(const long* numbers) {
        if (!numbers) return;
        long height = numbers[0], width = numbers[1], window = numbers[2], shift = numbers[3];
        places.resize(height * width);
        for (long y = 0; y < height; y++)
            for (long x = 0; x < width; x++) {
                long i = (y - shift + height) % height, j = (x - shift + width) % width;
                long first = (i / window * window * width) + j / window * window * window;
                places[y * width + x] = first + i % window * window + j % window;
            }
    }
    long operator()(long row) const {
        long count = places.size();
        return count ? row - row % count + places[row % count] : row;
    }
};

// Rows of a matrix as they are, and where their gradients go. `numbers` is where rows from r on lie in float32 once they
// were read: `kept` unless something else has them.
template <class T>
struct PlainRows {
    const T* from;
    T* gradients;
    long columns;
    float* weight_gradient = nullptr;

    struct Row {
        const T* from;
        T* gradient;

        Vector first(long i, long count) const { return take(from + i, count); }
        Vector again(long i, long count) const { return take(from + i, count); }
        void write(long i, long count, Vector v) const { give(gradient + i, v, count); }
    };
    Row at(long r, float* = nullptr) const { return {from + r * columns, gradients + r * columns}; }
    const float* numbers(long r, const float* kept) const {
        return std::is_same_v<T, float> ? (const float*)from + r * columns : kept;
    }
};

// addend + branch * weight * factor, with a weight for each column or none and a factor for each sample or none, written when
// it is read first. Its gradient is the norm's and that of whatever else reads the sum.
template <class T>
struct SummedRows {
    const float* addend;
    const T* branch;
    const float *weights, *factors;
    float* total;
    const float* total_gradient;
    float* addend_gradient;
    T* branch_gradient;
    float* weight_gradient;
    long columns, rows;  // of a sample

    struct Row {
        const float* addend;
        const T* branch;
        const float* weights;
        Vector factor;
        float* total;
        const float* total_gradient;
        float* addend_gradient;
        T* branch_gradient;
        float* sums;  // of the gradients of weights

        Vector first(long i, long count) const {
            Vector v = take(branch + i, count);
            if (weights) v = v * take(weights + i, count);
            v = take(addend + i, count) + v * factor;
            give(total + i, v, count);
            return v;
        }
        Vector again(long i, long count) const { return take(total + i, count); }
        void write(long i, long count, Vector v) const {
            v = v + take(total_gradient + i, count);
            give(addend_gradient + i, v, count);
            v = v * factor;
            if (sums) give(sums + i, take(sums + i, count) + v * take(branch + i, count), count);
            give(branch_gradient + i, weights ? v * take(weights + i, count) : v, count);
        }
    };
    Row at(long r, float* sums = nullptr) const {
        long n = r * columns;
        return {addend + n, branch + n, weights, all(factors ? factors[r / rows] : 1.0f), total + n, total_gradient + n,
                addend_gradient + n, branch_gradient + n, sums};
    }
    const float* numbers(long r, const float*) const { return total + r * columns; }
};

template <class Matrix, class Out>
void layer_norm(long rows, long columns, float epsilon, const Matrix& matrix, const float* scale, const float* shift, Out* to,
                float* means, float* variances, const Places& place) {
    // Some rows go through one step before the next, so that none waits for its sums, quotients and roots: few enough that
    // they stay in the nearest cache, and that the next ones are read from memory meanwhile.
    const long block = columns > 512 ? 4 : 8;
    auto run = [=, &matrix, &place](long start, long end, float* kept, float* factors) {
        const float* numbers = matrix.numbers(start, kept);
        const bool keeps = numbers == kept;
        for (long r = start; r < end; r++) {
            const auto from = matrix.at(r);
            float* row = kept + (r - start) * columns;
            means[r] = sum_over(columns, [=](long i, long count) {
                Vector v = from.first(i, count);
                if (keeps) give(row + i, v, count);
                return v;
            }) / columns;
        }
        by_four(start, end, [=](auto several, long r) {
            constexpr int N = several;
            const float* row = numbers + (r - start) * columns;
            Vector mean[N], total[N];
            for (int k = 0; k < N; k++) mean[k] = all(means[r + k]), total[k] = all(0.0f);
            walk(columns, [&](long i, long count) {
                for (int k = 0; k < N; k++) {
                    Vector v = within(take(row + k * columns + i, count) - mean[k], count);
                    total[k] = fma(v, v, total[k]);
                }
            });
            Vector variance = sums(total) / all(columns);
            give(variances + r, variance, N);
            give(factors + r - start, all(1.0f) / root(variance + all(epsilon)), N);
        });
        for (long r = start; r < end; r++) {
            const float* row = numbers + (r - start) * columns;
            Vector mean = all(means[r]), factor = all(factors[r - start]);
            map(columns, to + place(r) * columns, [=](long i, long count) {
                return fma((take(row + i, count) - mean) * factor, take(scale + i, count), take(shift + i, count));
            });
        }
    };
    for_ranges(rows, GRAIN / columns / block * block, [&](long first, long last) {
        static thread_local Scratch scratch;
        float* factors = scratch.floats(W + block * columns);
        for (; first < last; first += block) run(first, std::min(last, first + block), factors + W, factors);
    });
}

template <class Matrix, class Out>
void layer_norm_backward(long rows, long columns, float epsilon, const Matrix& matrix, const float* means,
                         const float* variances, const float* scale, const Out* gradient, float* scale_gradient,
                         float* shift_gradient, const Places& place) {
    // Parts of fixed size, so that the parameters' gradients do not depend on the number of threads.
    long part = std::max(16L, (rows + 63) / 64), parts = (rows + part - 1) / part;
    long width = (columns + W - 1) / W * W;
    float* const results[] = {scale_gradient, shift_gradient, matrix.weight_gradient};
    long count = matrix.weight_gradient ? 3 : 2;
    Floats partial(parts * count * width);
    auto run = [&](long p) {
        float *scale_sums = partial + p * count * width, *shift_sums = scale_sums + width;
        memset(scale_sums, 0, count * width * sizeof(float));
        for (long r = p * part; r < std::min(rows, (p + 1) * part); r++) {
            const auto from = matrix.at(r, matrix.weight_gradient ? shift_sums + width : nullptr);
            const Out* g = gradient + place(r) * columns;
            Vector mean = all(means[r]), factor = all(1.0f / std::sqrt(variances[r] + epsilon));
            Vector dot = all(0.0f), total = all(0.0f);
            walk(columns, [&](long i, long count) {
                Vector gradient = take(g + i, count), v = (from.again(i, count) - mean) * factor;
                give(scale_sums + i, take(scale_sums + i, count) + gradient * v, count);
                give(shift_sums + i, take(shift_sums + i, count) + gradient, count);
                gradient = gradient * take(scale + i, count);  // zero beyond the end
                total = total + gradient;
                dot = count == W ? fma(gradient, v, dot) : dot + choose(equal(gradient, all(0.0f)), gradient, gradient * v);
            });
            Vector average = all(sum(total) / columns), slope = all(sum(dot) / columns);
            walk(columns, [&](long i, long count) {
                Vector v = (from.again(i, count) - mean) * factor;
                Vector gradient = take(g + i, count) * take(scale + i, count);
                from.write(i, count, (gradient - average - v * slope) * factor);
            });
        }
    };
    for_tasks(rows * columns < GRAIN, parts, run);
    for (long k = 0; k < count; k++)
        walk(columns, [&](long i, long lanes) {
            Vector total = all(0.0f);
            for (long p = 0; p < parts; p++) total = total + load(partial + (p * count + k) * width + i);
            give(results[k] + i, total, lanes);
        });
}

}  // namespace

EXPORT int softmax(int format, long rows, long columns, Source x, Target y) {
    return for_format(format, [&](auto number) { softmax<decltype(number)>(rows, columns, x, y); });
}

EXPORT int softmax_backward(int format, long rows, long columns, Source y, Source gradient, Target out) {
    return for_format(format, [&](auto number) {
        softmax_backward<decltype(number)>(rows, columns, y, gradient, out);
    });
}

EXPORT int log_softmax(int format, long rows, long columns, Source x, Target y) {
    return for_format(format, [&](auto number) { log_softmax<decltype(number)>(rows, columns, x, y); });
}

EXPORT int log_softmax_backward(int format, long rows, long columns, Source x, Source gradient, Target out) {
    return for_format(format, [&](auto number) {
        log_softmax_backward<decltype(number)>(rows, columns, x, gradient, out);
    });
}

EXPORT int softmax_columns(int format, long outer, long columns, long inner, Source x, Target y) {
    return for_format(format, [&](auto number) { softmax_columns<decltype(number)>(outer, columns, inner, x, y); });
}

EXPORT int softmax_columns_backward(int format, long outer, long columns, long inner, Source y, Source gradient,
                                    Target out) {
    return for_format(format, [&](auto number) {
        softmax_columns_backward<decltype(number)>(outer, columns, inner, y, gradient, out);
    });
}

// The result has the format of x, or x is float32. windows: height and width of maps whose rows go to their windows, the
// side of those and the shift; null where the rows stay.
template <class F>
static int for_formats(int format, int result_format, F f) {
    if (format == FLOAT32) return for_format(result_format, [&](auto result) { f(float{}, result); });
    return format != result_format || for_format(format, [&](auto number) { f(number, number); });
}

EXPORT int layer_norm(int format, int result_format, long rows, long columns, float epsilon, const long* windows,
                      Source x, const float* scale, const float* shift, Target y, float* means, float* variances) {
    Places places(windows);
    return for_formats(format, result_format, [&](auto number, auto result) {
        PlainRows<decltype(number)> from{x, nullptr, columns};
        layer_norm(rows, columns, epsilon, from, scale, shift, (decltype(result)*)y, means, variances, places);
    });
}

EXPORT int layer_norm_backward(int format, int result_format, long rows, long columns, float epsilon,
                               const long* windows, Source x, const float* means, const float* variances,
                               const float* scale, Source gradient, Target out, float* scale_gradient,
                               float* shift_gradient) {
    Places places(windows);
    return for_formats(format, result_format, [&](auto number, auto result) {
        PlainRows<decltype(number)> from{x, out, columns};
        layer_norm_backward(rows, columns, epsilon, from, means, variances, scale, (const decltype(result)*)gradient,
                            scale_gradient, shift_gradient, places);
    });
}

// The norm of a residual sum, which is written too; `rows` are those of a sample. The branch, its gradient, the norm and
// the norm's gradient have one format.
EXPORT int residual_norm(int format, long samples, long rows, long columns, float epsilon, const float* addend,
                         Source branch, const float* weights, const float* factors, const float* scale,
                         const float* shift, float* total, Target y, float* means, float* variances) {
    return for_format(format, [&](auto number) {
        using T = decltype(number);
        SummedRows<T> from{addend, branch, weights, factors, total, nullptr, nullptr, nullptr, nullptr, columns, rows};
        layer_norm(samples * rows, columns, epsilon, from, scale, shift, (T*)y, means, variances, Places(nullptr));
    });
}

// The gradient of the weights may be null; otherwise the branch is read.
EXPORT int residual_norm_backward(int format, long samples, long rows, long columns, float epsilon, const float* total,
                                  Source branch, const float* weights, const float* factors, const float* means,
                                  const float* variances, const float* scale, const float* total_gradient,
                                  Source gradient, float* addend_gradient, Target branch_gradient,
                                  float* scale_gradient, float* shift_gradient, float* weight_gradient) {
    return for_format(format, [&](auto number) {
        using T = decltype(number);
        SummedRows<T> from{nullptr, branch, weights, factors, (float*)total, total_gradient, addend_gradient,
                           branch_gradient, weight_gradient, columns, rows};
        layer_norm_backward(samples * rows, columns, epsilon, from, means, variances, scale, (const T*)gradient,
                            scale_gradient, shift_gradient, Places(nullptr));
    });
}
