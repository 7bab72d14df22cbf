// softmax(scale q k^T + bias) v and its gradients, for one sample and head at a time: what lies between the products
// stays in a core's cache. Scores are float32; probabilities and the gradients of scores are rounded where they become
// factors of a product of bfloat16 pairs.
#include <array>
#include <vector>

#include "functions.h"
#include "interface.h"
#include "lanes.h"
#include "parallel.h"

namespace {

constexpr float LOG2E = 1.44269504f;
constexpr long AHEAD = 2048;  // numbers of what is kept, which no processor fetches in time before they are written

// 2^x for x up to 0; 0 below -150, NaN stays.
template <class T>
Vector power_of_two(Vector x) {
    x = maximum(all(-200.0f), x);
    Vector n = nearest(x);
    return times_power_of_two(power_of_rest<T>(x - n), n);
}

struct Sizes {
    long batch, heads, queries, keys, dim, value_dim;
    long biases;  // of so many samples each has a bias of its own
    long causal;  // a query sees the keys up to its own
};

struct Steps {  // strides in elements; 0 where a bias is the same for all
    long sample, head, token;
};

enum { QUERY, KEY, VALUE, OUT, BIAS, QUERY_GRADIENT, KEY_GRADIENT, VALUE_GRADIENT, OPERANDS };

static inline long up(long n, long step) { return parts(n, step) * step; }

// What one sample and head needs, in a thread's memory.
template <class L, class T>
struct Head {
    static constexpr long STEP = L::STEP;

    const Sizes& s;
    // vectors of keys and channels; lanes of a row of scores, which may be packed along to half as many
    const long keys = parts(s.keys, W), dims = parts(s.dim, W), value_dims = parts(s.value_dim, W);
    const long width = parts(s.keys, STEP * W) * STEP * W;
    const long rows = up(s.queries, L::STEPS);  // of a left factor, as products read them
    const long query_steps = steps(s.queries), key_steps = steps(s.keys);
    const long dim_steps = steps(s.dim), value_steps = steps(s.value_dim);
    const long dim_lanes = parts(dim_steps, W) * W, value_lanes = parts(value_steps, W) * W;

    static void clear(float* from, long n) { memset(from, 0, n * sizeof(float)); }
    static long steps(long numbers) { return up(parts(numbers, STEP), L::STEPS); }

    // Rows side by side: what a product sums along them.
    static void pack_along(const T* from, long step, long rows, long columns, float* to, long lanes) {
        for (long i = 0; i < rows; i++)
            for (long c = 0, lane = 0; lane < lanes; c += STEP * W, lane += W)
                store(to + i * lanes + lane, L::along(from + i * step + c, std::min(columns - c, STEP * W)));
    }
    // Rows in lanes, STEP together: what a product sums over them.
    static void pack_across(const T* from, long step, long rows, long columns, float* to) {
        long width = up(columns, W);
        clear(to + parts(rows, STEP) * width, (steps(rows) - parts(rows, STEP)) * width);
        for (long i = 0; i < rows; i += STEP) {
            const T *first = from + i * step, *second = i + 1 < rows ? first + step : nullptr;
            for (long c = 0; c < columns; c += STEP * W) {
                Vector packed[STEP];
                L::across(first + c, second ? second + c : nullptr, std::min(columns - c, STEP * W), packed);
                for (long k = 0; k < STEP && c + k * W < width; k++)
                    store(to + i / STEP * width + c + k * W, packed[k]);
            }
        }
    }
    // Rows as columns, STEP channels in a lane.
    static void pack_transposed(const T* from, long step, long rows, long columns, float* to) {
        long width = up(rows, W);
        clear(to + parts(columns, STEP) * width, (steps(columns) - parts(columns, STEP)) * width);
        for (long i = 0; i < rows; i += W)
            for (long c = 0; c < columns; c += STEP * W) {
                Vector square[W];
                for (long j = 0; j < W; j++)
                    square[j] = i + j < rows ? L::along(from + (i + j) * step + c, std::min(columns - c, STEP * W))
                                             : all(0.0f);
                transpose(square);
                long lanes = std::min((long)W, parts(columns - c, STEP));
                for (long j = 0; j < lanes; j++) store(to + (c / STEP + j) * width + i, square[j]);
            }
    }

    // Scores of some queries, `query` the first, to powers of two that are in proportion to their probabilities, zero for
    // keys that a query does not see, and beyond; `factors` make them probabilities. All rows go through one step before
    // the next one begins, so that no row waits for the sums of its own lanes.
    void softmax(long query, long rows, float* scores, float scale, const T* bias, long bias_step,
                 float* factors) const {
        static const float counting[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
        const long keys = this->keys, width = this->width, all_keys = s.keys, causal = s.causal;
        const Vector multiple = all(scale);
        for (long i = 0; i < rows; i++) {
            float* row = scores + i * width;
            const T* add = bias ? bias + i * bias_step : nullptr;
            long seen = causal ? query + i + 1 : all_keys;
            Vector top = all(-INFINITY);
            for (long v = 0; v < keys; v++) {
                Vector x = load(row + v * W) * multiple;
                if (add) x = x + take(add + v * W, std::min(all_keys - v * W, (long)W));
                if (seen < (v + 1) * W) x = choose(less(load(counting), all(seen - v * W)), x, all(-INFINITY));
                top = maximum(x, top);
                store(row + v * W, x);
            }
            factors[i] = largest(top);
        }
        for (long i = 0; i < rows; i++) {
            float* row = scores + i * width;
            Vector top = all(factors[i]), total = all(0.0f);
            for (long v = 0; v < keys; v++) {
                // What is taken off comes first: products of masks of -1e30 leave rests beyond any power.
                Vector x = power_of_two<T>((load(row + v * W) - top) * all(LOG2E));
                total = total + x;
                store(row + v * W, x);
            }
            factors[i] = 1.0f / sum(total);
        }
    }

    // Rows with a factor each packed across, STEP at a time: the first `rows` of them count.
    void pack_weights(long rows, const float* scores, const float* factors, float* to) const {
        for (long i = 0; i < rows; i += STEP, scores += STEP * width, to += keys * W)
            for (long v = 0; v < keys; v++) {
                Vector some[STEP];
                for (long r = 0; r < STEP; r++)
                    some[r] = i + r < rows ? load(scores + r * width + v * W) * all(factors[i + r]) : all(0.0f);
                store(to + v * W, L::across(some));
            }
    }

    // The gradients of packed weights to those of the scores, packed across and along, STEP rows together, and added to
    // `sums` unless that is null.
    void softmax_backward(long rows, const float* weights, const float* gradients, float* packed_across,
                          float* packed_along, float* sums) const {
        const long keys = this->keys, width = this->width;
        float dots[ROWS_AT_ONCE];
        for (long i = 0; i < rows; i++) {
            Vector dot = all(0.0f), total = all(0.0f);
            for (long v = 0; v < keys; v++) {
                Vector some = L::row(load(weights + i / STEP * keys * W + v * W), i % STEP);
                dot = fma(some, load(gradients + i * width + v * W), dot);
                total = total + some;
            }
            dots[i] = sum(dot) / sum(total);  // rounded, they are not 1 together: what all gradients share must go
        }
        for (long i = 0; i < rows; i += STEP)
            for (long v = 0; v < keys; v += STEP) {
                Vector results[STEP][STEP];  // of a row, side by side
                long place = (i / STEP * keys + v) * W, count = std::min(keys - v, STEP);
                for (long k = 0; k < STEP; k++) {
                    Vector column[STEP];
                    for (long r = 0; r < STEP; r++) {
                        bool counts = k < count && i + r < rows;
                        column[r] = counts ? L::row(load(weights + place + k * W), r) *
                                                 (load(gradients + (i + r) * width + (v + k) * W) - all(dots[i + r]))
                                           : all(0.0f);
                        results[r][k] = column[r];
                    }
                    if (k < count) store(packed_across + place + k * W, L::across(column));
                }
                for (long r = 0; r < STEP && i + r < rows; r++)
                    store(packed_along + ((i + r) * width + v * W) / STEP, L::along(results[r]));
                for (long r = 0; sums && r < STEP && i + r < rows; r++)
                    for (long k = 0; k < count; k++) {
                        float* sum = sums + (i + r) * s.keys + (v + k) * W;
                        long n = std::min(s.keys - (v + k) * W, (long)W);
                        give(sum, take(sum, n) + results[r][k], n);
                    }
            }
    }

    // Pack rows of `scores` along, each with its factor, and write them to `kept` unless it is null.
    void pack_rows(long rows, const float* scores, const float* factors, float* to, T* kept) const {
        const long width = this->width, keys = s.keys;
        for (long i = 0; i < rows; i++)
            for (long j = 0; j < width; j += STEP * W) {
                Vector some[STEP];
                for (long k = 0; k < STEP; k++) some[k] = load(scores + i * width + j + k * W) * all(factors[i]);
                Vector packed = L::along(some);
                store(to + (i * width + j) / STEP, packed);
                if (!kept || j >= keys) continue;
                L::keep(kept + i * keys + j, packed, std::min(keys - j, STEP * W));
                __builtin_prefetch(kept + i * keys + j + AHEAD, 1, 2);
            }
    }

    // Queries at a time: an even number, for pairs, so that blocks of sums are full.
    static constexpr long ROWS_AT_ONCE = std::max(L::TOGETHER, std::max(2L, L::STEPS));
    long some_queries() const { return up(parts(s.queries, parts(s.queries, L::TOGETHER)), std::max(2L, L::STEPS)); }
};

struct Call {
    Sizes s;
    Steps steps[OPERANDS];

    template <class T>
    T* at(const void* data, int operand, long sample, long head) const {
        const Steps& step = steps[operand];
        return (T*)data + sample * step.sample + head * step.head;
    }

    // Call f(sample, head, part) for all; a part is some samples that share a bias, one after another. The parts are the
    // same for any number of threads.
    template <class F>
    void each(F f) const {
        long share = samples_at_once(), all = s.batch / s.biases, tasks = s.biases * parts(all, share);
        long together = parts(s.heads, std::min(s.heads, parts(TASKS, tasks))), groups = parts(s.heads, together);
        for_tasks(tasks * groups, [&](long task) {
            long head = task % groups * together, bias = task / groups % s.biases, part = task / groups / s.biases;
            long heads = std::min(s.heads - head, together), samples = std::min(all - part * share, share);
            for (long n = part * share; n < part * share + samples; n++)
                for (long h = head; h < head + heads; h++) f(n * s.biases + bias, h, part);
        });
    }
    static constexpr long TASKS = 32;
    long samples_at_once() const { return parts(s.batch / s.biases, std::max(1L, TASKS / s.biases)); }
};

// A thread's memory in parts of so many floats each.
template <size_t N>
static std::array<float*, N> divided(const long (&sizes)[N]) {
    static thread_local Scratch scratch;
    long total = 0;
    for (long size : sizes) total += parts(size, W) * W;
    std::array<float*, N> places;
    float* place = scratch.floats(total);
    for (size_t i = 0; i < N; place += parts(sizes[i], W) * W, i++) places[i] = place;
    return places;
}

template <class L, class T>
void attend(const Call& call, float scale, const T* query, const T* key, const T* value, const T* bias, T* kept,
            T* out) {
    const Sizes& s = call.s;
    const Head<L, T> head{s};
    call.each([&](long b, long h, long) {
        typename L::Use use;
        float factors[head.ROWS_AT_ONCE];
        long columns = head.keys * W, channels = head.value_dims * W, some = head.some_queries();
        auto [queries, keys, values, scores, weights] =
            divided({head.rows * head.dim_lanes, head.dim_steps * columns, head.key_steps * channels, some * head.width,
                     some * head.width});
        head.clear(scores, some * head.width);
        head.pack_along(call.at<const T>(query, QUERY, b, h), call.steps[QUERY].token, s.queries, s.dim, queries,
                        head.dim_lanes);
        head.pack_transposed(call.at<const T>(key, KEY, b, h), call.steps[KEY].token, s.keys, s.dim, keys);
        head.pack_across(call.at<const T>(value, VALUE, b, h), call.steps[VALUE].token, s.keys, s.value_dim, values);
        const T* add = bias ? call.at<const T>(bias, BIAS, b % s.biases, h) : nullptr;
        T* keep = kept ? kept + (b * s.heads + h) * s.queries * s.keys : nullptr;
        T* to = call.at<T>(out, OUT, b, h);
        long add_step = call.steps[BIAS].token, step = call.steps[OUT].token;
        for (long i = 0; i < s.queries; i += some) {
            long rows = std::min(s.queries - i, some);
            product<L>(rows, head.keys, head.dim_steps, {queries + i * head.dim_lanes, head.dim_lanes, 1}, keys,
                       Tile{scores, head.width});
            head.softmax(i, rows, scores, scale, add ? add + i * add_step : nullptr, add_step, factors);
            head.pack_rows(rows, scores, factors, weights, keep ? keep + i * s.keys : nullptr);
            product<L>(rows, head.value_dims, head.key_steps, {weights, head.width / head.STEP, 1}, values,
                       Rows<T>{to + i * step, step, s.value_dim, 1.0f});
        }
    });
}

template <class L, class T>
void attend_backward(const Call& call, float scale, const T* query, const T* key, const T* value, const T* bias,
                     const T* kept, const T* gradient, T* query_gradient, T* key_gradient, T* value_gradient,
                     T* bias_gradient) {
    constexpr long STEP = L::STEP;
    const Sizes& s = call.s;
    const Head<L, T> head{s};
    // Sums of the bias's gradient: of each part, bias and head one after another
    long square = s.queries * s.keys, whole = s.biases * s.heads * square;
    long count = parts(s.batch / s.biases, call.samples_at_once());
    std::vector<float> partial(bias_gradient ? count * whole : 0);
    call.each([&](long b, long h, long part) {
        typename L::Use use;
        float factors[head.ROWS_AT_ONCE];
        long columns = head.keys * W, channels = head.dims * W, value_channels = head.value_dims * W;
        long some = head.some_queries();
        auto [queries_along, keys_across, queries, keys, values, slopes_along, slopes, weights, score_slopes, scores,
              packed] = divided(
            {kept ? 0 : head.rows * head.dim_lanes, kept ? 0 : head.dim_steps * columns, head.query_steps * channels,
             head.key_steps * channels, head.value_steps * columns, head.rows * head.value_lanes,
             head.query_steps * value_channels, head.query_steps * columns, head.query_steps * columns,
             some * head.width, some * head.width});
        head.clear(scores, some * head.width);
        for (float* lanes : {score_slopes, weights}) {
            long count = parts(s.queries, STEP);
            head.clear(lanes + count * columns, (head.query_steps - count) * columns);
        }
        const T* slope = call.at<const T>(gradient, OUT, b, h);
        head.pack_across(call.at<const T>(query, QUERY, b, h), call.steps[QUERY].token, s.queries, s.dim, queries);
        head.pack_across(call.at<const T>(key, KEY, b, h), call.steps[KEY].token, s.keys, s.dim, keys);
        head.pack_transposed(call.at<const T>(value, VALUE, b, h), call.steps[VALUE].token, s.keys, s.value_dim,
                             values);
        head.pack_along(slope, call.steps[OUT].token, s.queries, s.value_dim, slopes_along, head.value_lanes);
        head.pack_across(slope, call.steps[OUT].token, s.queries, s.value_dim, slopes);
        if (kept) {
            head.pack_across(kept + (b * s.heads + h) * square, s.keys, s.queries, s.keys, weights);
        } else {
            head.pack_along(call.at<const T>(query, QUERY, b, h), call.steps[QUERY].token, s.queries, s.dim,
                            queries_along, head.dim_lanes);
            head.pack_transposed(call.at<const T>(key, KEY, b, h), call.steps[KEY].token, s.keys, s.dim, keys_across);
        }
        const T* add = bias ? call.at<const T>(bias, BIAS, b % s.biases, h) : nullptr;
        long add_step = call.steps[BIAS].token;
        float* sums = bias_gradient ? partial.data() + part * whole + (b % s.biases * s.heads + h) * square : nullptr;
        T* of_queries = call.at<T>(query_gradient, QUERY_GRADIENT, b, h);
        T* of_keys = call.at<T>(key_gradient, KEY_GRADIENT, b, h);
        T* of_values = call.at<T>(value_gradient, VALUE_GRADIENT, b, h);
        long query_step = call.steps[QUERY_GRADIENT].token;
        for (long i = 0; i < s.queries; i += some) {
            long rows = std::min(s.queries - i, some);
            if (!kept) {
                product<L>(rows, head.keys, head.dim_steps, {queries_along + i * head.dim_lanes, head.dim_lanes, 1},
                           keys_across, Tile{scores, head.width});
                head.softmax(i, rows, scores, scale, add ? add + i * add_step : nullptr, add_step, factors);
                head.pack_weights(rows, scores, factors, weights + i / STEP * columns);
            }
            product<L>(rows, head.keys, head.value_steps, {slopes_along + i * head.value_lanes, head.value_lanes, 1},
                       values, Tile{scores, head.width});
            head.softmax_backward(rows, weights + i / STEP * columns, scores, score_slopes + i / STEP * columns, packed,
                                  sums ? sums + i * s.keys : nullptr);
            product<L>(rows, head.dims, head.key_steps, {packed, head.width / STEP, 1}, keys,
                       Rows<T>{of_queries + i * query_step, query_step, s.dim, scale});
        }
        product<L>(s.keys, head.dims, head.query_steps, {score_slopes, 1, columns}, queries,
                   Rows<T>{of_keys, call.steps[KEY_GRADIENT].token, s.dim, scale});
        product<L>(s.keys, head.value_dims, head.query_steps, {weights, 1, columns}, slopes,
                   Rows<T>{of_values, call.steps[VALUE_GRADIENT].token, s.value_dim, 1.0f});
    });
    if (!bias_gradient) return;
    for_ranges(whole, 4096, [&](long first, long last) {
        walk(last - first, [&](long i, long n) {
            Vector total = all(0.0f);
            for (long part = 0; part < count; part++)
                total = total + take(partial.data() + part * whole + first + i, n);
            give(bias_gradient + first + i, total, n);
        });
    });
}

}  // namespace

// numbers: the sizes, then the strides (sample, head, token) of queries, keys, values, result and bias. `kept` gets the
// probabilities, [batch, heads, queries, keys]; it and the bias may be null.
EXPORT int attention(int format, const long* numbers, float scale, Source query, Source key, Source value, Source bias,
                     Target kept, Target out) {
    Call call;
    memcpy(&call, numbers, sizeof(Sizes) + (BIAS + 1) * sizeof(Steps));
    return for_format(format, [&](auto number) {
        using T = decltype(number);
        with_lanes<T>([&](auto lanes) {
            attend<decltype(lanes), T>(call, scale, query, key, value, bias, kept, out);
        });
    });
}

// numbers: as above, then the strides of the gradients of queries, keys and values. Where `kept` is null, probabilities
// are computed again. The gradient of the bias, null where none is wanted, is dense, [biases, heads, queries, keys].
EXPORT int attention_backward(int format, const long* numbers, float scale, Source query, Source key, Source value,
                              Source bias, Source kept, Source gradient, Target query_gradient, Target key_gradient,
                              Target value_gradient, Target bias_gradient) {
    Call call;
    memcpy(&call, numbers, sizeof(Call));
    return for_format(format, [&](auto number) {
        using T = decltype(number);
        with_lanes<T>([&](auto lanes) {
            attend_backward<decltype(lanes), T>(call, scale, query, key, value, bias, kept, gradient, query_gradient,
                                                key_gradient, value_gradient, bias_gradient);
        });
    });
}
