// Depthwise convolution of images [B, H, W, C], one filter for each channel, given as [tap][channel].
//
// A task takes a vector of channels of some rows. It widens them once, with their padding, so that every tap is a load
// and a multiplication, wherever the image ends.
#pragma once
#include <type_traits>
#include <vector>

#include "parallel.h"
#include "vector.h"

namespace {

struct Numbers {
    long batch, groups, in_channels, out_channels;  // of a group
    long height, width, out_height, out_width, taps[2], stride[2], dilation[2], before[2];
};

// What follows the sums before they are rounded: activation(factor * sum + addend + residual), or nothing.
template <class T>
struct Ending {
    const float *factor = nullptr, *addend = nullptr;  // of each channel
    const T* residual = nullptr;
    Vector (*activation)(Vector) = nullptr;

    Vector operator()(Vector v, long channel, long at, long count) const {
        if (!factor) return v;
        v = fma(v, take(factor + channel, count), take(addend + channel, count));
        if (residual) v = v + take(residual + at, count);
        return activation(v);
    }
};

// Which pixels of a source the outputs along one axis read. Output phase + k * phases reads start + k * step for each
// (tap, start) of its phase: the gradient of the images has a phase for each pixel of a stride, and no step.
struct Axis {
    long phases = 1, step = 1, lowest = 0, highest = 0;
    std::vector<std::vector<std::pair<long, long>>> reads;

    Axis(const Numbers& s, int axis, bool back) {
        (back ? phases : step) = s.stride[axis];
        reads.resize(phases);
        for (long phase = 0; phase < phases; phase++)
            for (long tap = 0; tap < s.taps[axis]; tap++) {
                long place = phase + (s.before[axis] - tap * s.dilation[axis]) * (back ? 1 : -1);
                if (place % phases) continue;
                reads[phase].push_back({tap, place / phases});
                lowest = std::min(lowest, place / phases);
                highest = std::max(highest, place / phases);
            }
    }
};

// A vector of channels of the rows [first, first + rows) of an image [H, W, C], widened, `columns` pixels of each from
// column `left` on; what is not of the image is zero.
template <class T>
void widen(const T* image, long height, long width, long C, long count, long first, long rows, long left, long columns,
           float* to) {
    long from = std::clamp(-left, 0L, columns), until = std::clamp(width - left, from, columns);
    for (long h = first; h < first + rows; h++, to += columns * W) {
        bool inside = h >= 0 && h < height;
        const T* row = image + (h * width + left) * C;
        long begin = inside ? from : columns, end = inside ? until : columns;
        memset(to, 0, begin * W * sizeof(float));
        if (count == W) for (long w = begin; w < end; w++) store(to + w * W, load(row + w * C));
        else for (long w = begin; w < end; w++) store(to + w * W, load(row + w * C, count));
        memset(to + end * W, 0, (columns - end) * W * sizeof(float));
    }
}

// Call f with 1..N as a constant, so that as many sums stay in registers.
template <int N, class F>
void for_constant(long n, F f) {
    if constexpr (N > 1)
        if (n < N) return for_constant<N - 1>(n, f);
    f(std::integral_constant<int, N>{});
}

constexpr int SUMS = 8;               // vectors that share a load
constexpr long WIDENED = 192 * 1024;  // bytes, of a core's second cache

// Rows of outputs whose source rows are widened at a time.
inline long rows_at_once(long rows, const Axis& down, long columns) {
    return std::clamp((WIDENED / (columns * W * (long)sizeof(float)) + down.lowest - down.highest) / down.step, 1L, rows);
}

template <class T>
void depthwise_pass(const Numbers& s, bool back, const T* x, const T* filters, T* y, const Ending<T>& ending) {
    long C = s.groups, taps = s.taps[0] * s.taps[1];
    long height = back ? s.out_height : s.height, width = back ? s.out_width : s.width;
    long out_height = back ? s.height : s.out_height, out_width = back ? s.width : s.out_width;
    Axis down(s, 0, back), across(s, 1, back);
    long rows = (out_height + down.phases - 1) / down.phases, strip = (out_width + across.phases - 1) / across.phases;
    long columns = across.highest - across.lowest + (strip - 1) * across.step + 1;
    long band = rows_at_once(rows, down, columns), bands = (rows + band - 1) / band, blocks = (C + W - 1) / W;
    auto run = [&](long task) {
        static thread_local Scratch scratch;
        long b = task / bands / blocks, c = task / bands % blocks * W, count = std::min(C - c, (long)W);
        long k0 = task % bands * band, k1 = std::min(rows, k0 + band);
        long source_rows = down.highest - down.lowest + (k1 - k0 - 1) * down.step + 1;
        float* factors = scratch.floats((taps + source_rows * columns) * W);
        float* wide = factors + taps * W;
        for (long t = 0; t < taps; t++) store(factors + t * W, take(filters + t * C + c, count));
        widen(x + b * height * width * C + c, height, width, C, count, down.lowest + k0 * down.step, source_rows,
              across.lowest, columns, wide);
        for (long r = k0 * down.phases; r < std::min(out_height, k1 * down.phases); r++)
            for (long phase = 0; phase < across.phases; phase++) {
                const auto &some_rows = down.reads[r % down.phases], &some_columns = across.reads[phase];
                long first_row = (r / down.phases - k0) * down.step - down.lowest;
                for (long j = 0; phase + j * across.phases < out_width; j += SUMS) {
                    long many = (out_width - phase + across.phases - 1) / across.phases - j;
                    for_constant<SUMS>(many, [&](auto constant) {
                        constexpr int N = decltype(constant)::value;
                        Vector sums[N];
                        for (int q = 0; q < N; q++) sums[q] = all(0.0f);
                        for (auto [tap_row, row] : some_rows) {
                            const float* start = wide + ((first_row + row) * columns + j * across.step - across.lowest) * W;
                            for (auto [tap_column, column] : some_columns) {
                                const float* from = start + column * W;
                                Vector factor = load(factors + (tap_row * s.taps[1] + tap_column) * W);
                                if (across.step == 1)
#pragma GCC unroll 8
                                    for (int q = 0; q < N; q++) sums[q] = fma(load(from + q * W), factor, sums[q]);
                                else
#pragma GCC unroll 8
                                    for (int q = 0; q < N; q++)
                                        sums[q] = fma(load(from + q * across.step * W), factor, sums[q]);
                            }
                        }
                        for (int q = 0; q < N; q++) {
                            long at = ((b * out_height + r) * out_width + phase + (j + q) * across.phases) * C + c;
                            give(y + at, ending(sums[q], c, at, count), count);
                        }
                    });
                }
            }
    };
    for_tasks(s.batch * blocks * bands, run);
}

template <class T>
void depthwise(const Numbers& s, const T* x, const T* filters, T* y, const Ending<T>& ending) {
    depthwise_pass(s, false, x, filters, y, ending);
}

template <class T>
void depthwise_back(const Numbers& s, const T* gradient, const T* filters, T* out) {
    depthwise_pass(s, true, gradient, filters, out, Ending<T>{});
}

template <class T>
void depthwise_filters(const Numbers& s, const T* x, const T* gradient, T* out) {
    long C = s.groups, taps = s.taps[0] * s.taps[1], blocks = (C + W - 1) / W;
    long part = (s.batch + 7) / 8, parts = (s.batch + part - 1) / part;  // the same for any number of threads
    Axis down(s, 0, false), across(s, 1, false);
    long columns = across.highest - across.lowest + (s.out_width - 1) * across.step + 1;
    long band = rows_at_once(s.out_height, down, columns);
    std::vector<float> partial(parts * taps * C);
    for_tasks(parts * blocks, [&](long task) {
        static thread_local Scratch scratch;
        long p = task / blocks, c = task % blocks * W, count = std::min(C - c, (long)W);
        long source_rows = down.highest - down.lowest + (band - 1) * down.step + 1;
        float* sums = scratch.floats((taps + s.out_width + source_rows * columns) * W);
        float *row = sums + taps * W, *wide = row + s.out_width * W;
        for (long i = 0; i < taps; i++) store(sums + i * W, all(0.0f));
        for (long b = p * part; b < std::min(s.batch, (p + 1) * part); b++)
            for (long i = 0; i < s.out_height; i++) {
                if (i % band == 0)
                    widen(x + b * s.height * s.width * C + c, s.height, s.width, C, count, down.lowest + i * down.step,
                          source_rows, across.lowest, columns, wide);
                widen(gradient + b * s.out_height * s.out_width * C + c, s.out_height, s.out_width, C, count, i, 1, 0,
                      s.out_width, row);
                for (auto [tap_row, start] : down.reads[0]) {
                    const float* source = wide + (i % band * down.step + start - down.lowest) * columns * W;
                    for (long first = 0; first < s.taps[1]; first += SUMS)
                        for_constant<SUMS>(s.taps[1] - first, [&](auto constant) {
                            constexpr int N = decltype(constant)::value;
                            float* at = sums + (tap_row * s.taps[1] + first) * W;
                            const float* from[N];
                            Vector totals[N];
                            for (int t = 0; t < N; t++) {
                                totals[t] = load(at + t * W);
                                from[t] = source + (across.reads[0][first + t].second - across.lowest) * W;
                            }
                            for (long j = 0; j < s.out_width; j++) {
                                Vector g = load(row + j * W);
#pragma GCC unroll 8
                                for (int t = 0; t < N; t++)
                                    totals[t] = fma(load(from[t] + j * across.step * W), g, totals[t]);
                            }
                            for (int t = 0; t < N; t++) store(at + t * W, totals[t]);
                        });
                }
            }
        for (long i = 0; i < taps; i++) give(partial.data() + (p * taps + i) * C + c, load(sums + i * W), count);
    });
    walk(taps * C, [&](long i, long count) {
        Vector total = take(partial.data() + i, count);
        for (long p = 1; p < parts; p++) total = total + take(partial.data() + p * taps * C + i, count);
        give(out + i, total, count);
    });
}

}  // namespace
