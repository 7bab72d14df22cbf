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
        for (long w = 0; w < begin; w++) store(to + w * W, all(0.0f));
        if (count == W)
            for (long w = begin; w < end; w++) {
                _mm_prefetch((const char*)(row + (width + w) * C), _MM_HINT_T0);  // the pixel below
                store(to + w * W, load(row + w * C));
            }
        else for (long w = begin; w < end; w++) store(to + w * W, load(row + w * C, count));
        for (long w = end; w < columns; w++) store(to + w * W, all(0.0f));
    }
}

// Call f with 1..N as a constant, so that as many sums stay in registers.
template <int N, class F>
void for_constant(long n, F f) {
    if constexpr (N > 1)
        if (n < N) return for_constant<N - 1>(n, f);
    f(std::integral_constant<int, N>{});
}

constexpr int SUMS = 8, MOST = 9;     // vectors that share a load: outputs of a tap, taps of an output
constexpr long WIDENED = 192 * 1024;  // bytes, of a core's second cache

// Rows of outputs whose source rows are widened at a time.
inline long rows_at_once(long rows, const Axis& down, long columns) {
    return std::clamp((WIDENED / (columns * W * (long)sizeof(float)) + down.lowest - down.highest) / down.step, 1L, rows);
}

// A tap of an output: its factor, and what it reads from the first pixel on, in floats.
struct Reading {
    long factor, source;
};

// The sums of N outputs, whose pixels are `step` floats apart.
template <int N, class Step>
inline void sum_taps(const std::vector<Reading>& taps, const float* factors, const float* from, Step step, Vector* sums) {
    for (int q = 0; q < N; q++) sums[q] = all(0.0f);
    for (const Reading& tap : taps) {
        Vector factor = load(factors + tap.factor);
        const float* source = from + tap.source;
#pragma GCC unroll 8
        for (int q = 0; q < N; q++) sums[q] = fma(load(source + q * step), factor, sums[q]);
    }
}

// What follows the sums of some outputs: a function of its own, so that no call takes their registers.
template <class T>
__attribute__((noinline)) void finish(const Ending<T>& ending, const float* sums, long many, T* y, long at, long step,
                                      long channel, long count) {
    for (long q = 0; q < many; q++, at += step) give(y + at, ending(load(sums + q * W), channel, at, count), count);
}

template <class T>
void depthwise_pass(const Numbers& s, bool back, const T* x, const T* filters, T* y, const Ending<T>& ending) {
    long C = s.groups, taps = s.taps[0] * s.taps[1];
    long height = back ? s.out_height : s.height, width = back ? s.out_width : s.width;
    long out_height = back ? s.height : s.out_height, out_width = back ? s.width : s.out_width;
    Axis down(s, 0, back), across(s, 1, back);
    long rows = (out_height + down.phases - 1) / down.phases, strip = (out_width + across.phases - 1) / across.phases;
    long columns = across.highest - across.lowest + (strip - 1) * across.step + 1;
    std::vector<std::vector<Reading>> readings;  // of each phase of rows and of columns
    for (const auto& some_rows : down.reads)
        for (const auto& some_columns : across.reads) {
            auto& reading = readings.emplace_back();
            for (auto [tap_row, row] : some_rows)
                for (auto [tap_column, column] : some_columns)
                    reading.push_back({(tap_row * s.taps[1] + tap_column) * W, (row * columns + column) * W});
        }
    long band = rows_at_once(rows, down, columns), bands = (rows + band - 1) / band, blocks = (C + W - 1) / W;
    auto run = [&](long task) {
        static thread_local Scratch scratch;
        long b = task / bands / blocks, c = task / bands % blocks * W, count = std::min(C - c, (long)W);
        long k0 = task % bands * band, k1 = std::min(rows, k0 + band), widened = 0;
        long source_rows = down.highest - down.lowest + (k1 - k0 - 1) * down.step + 1;
        float* factors = scratch.floats((taps + source_rows * columns) * W);
        float* wide = factors + taps * W;
        for (long t = 0; t < taps; t++) store(factors + t * W, take(filters + t * C + c, count));
        for (long r = k0 * down.phases; r < std::min(out_height, k1 * down.phases); r++) {
            // Rows are widened right before they are read first, and lie in the nearest cache then.
            long first = (r / down.phases - k0) * down.step - down.lowest, end = first + down.highest + 1;
            if (widened < end)
                widen(x + b * height * width * C + c, height, width, C, count, down.lowest + k0 * down.step + widened,
                      end - widened, across.lowest, columns, wide + widened * columns * W);
            widened = std::max(widened, end);
            for (long phase = 0; phase < across.phases; phase++) {
                const auto& reading = readings[r % down.phases * across.phases + phase];
                const float* from = wide + (first * columns - across.lowest) * W;
                long at = ((b * out_height + r) * out_width + phase) * C + c, step = across.phases * C;
                long many = (out_width - phase + across.phases - 1) / across.phases;
                for (long j = 0; j < many; j += SUMS, from += SUMS * across.step * W, at += SUMS * step)
                    for_constant<SUMS>(many - j, [&](auto constant) {
                        constexpr int N = decltype(constant)::value;
                        Vector sums[N];
                        if (across.step == 1) sum_taps<N>(reading, factors, from, std::integral_constant<long, W>(), sums);
                        else sum_taps<N>(reading, factors, from, across.step * W, sums);
                        if (ending.factor) {
                            alignas(64) float some[N * W];
                            for (int q = 0; q < N; q++) store(some + q * W, sums[q]);
                            return finish(ending, some, N, y, at, step, c, count);
                        }
                        for (int q = 0; q < N; q++) give(y + at + q * step, sums[q], count);
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
    std::vector<long> places;  // of what each tap reads, from that of the first output on
    for (auto [tap_row, start] : down.reads[0])
        for (auto [tap_column, place] : across.reads[0]) places.push_back((start * columns + place - across.lowest) * W);
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
                const float* source = wide + (i % band * down.step - down.lowest) * columns * W;
                for (long first = 0, groups = (taps + MOST - 1) / MOST; groups; groups--)
                    for_constant<MOST>((taps - first + groups - 1) / groups, [&](auto constant) {
                        constexpr int N = decltype(constant)::value;
                        float* at = sums + first * W;
                        const float* from[N];
                        Vector totals[N];
                        for (int t = 0; t < N; t++) {
                            totals[t] = load(at + t * W);
                            from[t] = source + places[first + t];
                        }
                        for (long j = 0; j < s.out_width; j++) {
                            Vector g = load(row + j * W);
#pragma GCC unroll 9
                            for (int t = 0; t < N; t++) totals[t] = fma(load(from[t] + j * across.step * W), g, totals[t]);
                        }
                        for (int t = 0; t < N; t++) store(at + t * W, totals[t]);
                        first += N;
                    });
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
