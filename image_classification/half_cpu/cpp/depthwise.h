// Depthwise convolution of images [B, H, W, C], one or a few filters for each channel, given as [tap][result].
//
// A task takes a vector of channels of some rows. It widens each row once, with its padding, right before it is read
// first, so that every tap is a load and a multiplication, wherever the image ends. As many rows are kept as an output
// reads, in a ring: they stay in the nearest cache.
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

// The channels of a task, and their results, `many` side by side for each channel: no more than a vector has lanes.
struct Lot {
    long channel, count, result, results, many;
    alignas(64) float reads[W], sums[W];  // the lane of a result's channel, the first lane of a channel's results

    Lot(long task, long channels, long many) : many(many) {
        long most = W / many;
        channel = task * most, count = std::min(channels - channel, most);
        result = channel * many, results = count * many;
        if (many == 1) return;
        for (long i = 0; i < W; i++) reads[i] = std::min(i / many, most - 1), sums[i] = std::min(i, most - 1) * many;
    }
    static long tasks(long channels, long many) { return (channels + W / many - 1) / (W / many); }

    Vector spread(Vector v) const {
        if (many == 1) return v;
        alignas(64) float some[16];
        store(some, v);
        return look_up(some, load(reads));
    }
    // The sums of the results of each channel, of 16 numbers in memory.
    Vector folded(const float* some) const {
        Vector total = look_up(some, load(sums));
        for (long i = 1; i < many; i++) total = total + look_up(some, load(sums) + all(i));
        return total;
    }
};

// Which pixels of a source the outputs along one axis read. Output phase + k * phases reads start + k * step for each
// (tap, start) of its phase, the lowest first: the gradient of the images has a phase for each pixel of a stride, and
// no step.
struct Axis {
    long phases = 1, step = 1, lowest = 0, highest = 0;
    std::vector<std::vector<std::pair<long, long>>> reads;

    Axis(const Numbers& s, int axis, bool back) {
        (back ? phases : step) = s.stride[axis];
        reads.resize(phases);
        for (long phase = 0; phase < phases; phase++)
            for (long i = 0; i < s.taps[axis]; i++) {
                long tap = back ? s.taps[axis] - 1 - i : i;
                long place = phase + (s.before[axis] - tap * s.dilation[axis]) * (back ? 1 : -1);
                if (place % phases) continue;
                reads[phase].push_back({tap, place / phases});
                lowest = std::min(lowest, place / phases);
                highest = std::max(highest, place / phases);
            }
    }
};

// A vector of channels of row h of an image [H, W, C], widened and changed, `columns` pixels from column `left` on; what is
// not of the image is zero.
template <class T, class Change>
void widen(const T* image, long height, long width, long C, long count, long h, long left, long columns, float* to,
           Change change) {
    if (h < 0 || h >= height) width = 0;
    long begin = std::clamp(-left, 0L, columns), end = std::clamp(width - left, begin, columns);
    const T* row = image + (h * width + left) * C;
    for (long w = 0; w < begin; w++) store(to + w * W, all(0.0f));
    if (count == W) for (long w = begin; w < end; w++) store(to + w * W, load(row + w * C));
    else for (long w = begin; w < end; w++) store(to + w * W, change(load(row + w * C, count)));
    for (long w = end; w < columns; w++) store(to + w * W, all(0.0f));
}

template <int N>
using Constant = std::integral_constant<int, N>;

// Call f with 1..N as a constant, so that as many sums stay in registers.
template <int N, class F>
void for_constant(long n, F f) {
    if constexpr (N > 1)
        if (n < N) return for_constant<N - 1>(n, f);
    f(Constant<N>());
}

constexpr int FEW_RESULTS = 8;  // of a channel, as many as the shortest vector has lanes
constexpr int SUMS = 14, MOST = 9;  // vectors that share a load: outputs of a tap, taps of an output
constexpr int PIECE = 7;            // taps
constexpr long BAND = 24;           // rows of a source, about, of a task

// What the outputs of a phase of rows and of columns read. Taps side by side make pieces of as many each: a loop over
// single taps takes half as long again.
struct Reading {
    long taps = 1, first = 0;   // of a piece; of the factors, which lie in the order in which they are read
    std::vector<long> sources;  // of each piece, from the first pixel on, in floats
};

// Where outputs go: from `at` on, `step` numbers apart.
template <class T>
struct Outputs {
    const Ending<T>& ending;
    T* y;
    long at, step, channel, count;
    const Lot* folded;  // results that are summed, null for none
};

// Apart from the sums: a call would take their registers.
template <class T>
__attribute__((noinline)) void finish(const Outputs<T>& out, const float* sums, long many) {
    for (long q = 0, at = out.at; q < many; q++, at += out.step) {
        Vector v = out.folded ? out.folded->folded(sums + q * W) : load(sums + q * W);
        give(out.y + at, out.ending(v, out.channel, at, out.count), out.count);
    }
}

// N outputs, which read pixels `step` vectors apart. A function for each N: one for all would keep its sums in memory,
// as would loops over them that are not unrolled.
template <int N, class T, class Taps, class Step>
__attribute__((noinline)) void sum_taps(const Reading& reading, const float* factors, const float* from, Taps taps,
                                        Step step, const Outputs<T>& out) {
    Vector sums[N];
#pragma GCC unroll 14
    for (int q = 0; q < N; q++) sums[q] = all(0.0f);
    for (long source : reading.sources)
#pragma GCC unroll 7
        for (int t = 0; t < taps; t++, factors += W) {
            Vector factor = load(factors);
#pragma GCC unroll 14
            for (int q = 0; q < N; q++) sums[q] = fma(load(from + source + (q * step + t) * W), factor, sums[q]);
        }
    if (out.ending.factor || out.count < W) {
        alignas(64) float some[N * W + 16];  // a look-up reads 16
#pragma GCC unroll 14
        for (int q = 0; q < N; q++) store(some + q * W, sums[q]);
        return finish(out, some, N);
    }
    T* to = out.y + out.at;
    long distance = out.step;
#pragma GCC unroll 14
    for (int q = 0; q < N; q++, to += distance) store(to, sums[q]);
}

template <class T>
void depthwise_pass(const Numbers& s, bool back, const T* x, const T* filters, T* y, const Ending<T>& ending) {
    long taps = s.taps[0] * s.taps[1], many = s.out_channels, all_results = s.groups * many;
    long C = back ? all_results : s.groups, out_C = back ? s.groups : all_results;
    long height = back ? s.out_height : s.height, width = back ? s.out_width : s.width;
    long out_height = back ? s.height : s.out_height, out_width = back ? s.width : s.out_width;
    Axis down(s, 0, back), across(s, 1, back);
    long rows = (out_height + down.phases - 1) / down.phases, strip = (out_width + across.phases - 1) / across.phases;
    long columns = across.highest - across.lowest + (strip - 1) * across.step + 1;
    long ring = down.highest - down.lowest + 1;  // rows that are kept widened
    std::vector<Reading> readings;               // of each place of the first of them, phase of rows and of columns
    std::vector<long> order;                     // of the taps, as they are read
    for (long head = 0; head < ring; head++)
        for (const auto& some_rows : down.reads)
            for (const auto& some_columns : across.reads) {
                Reading& reading = readings.emplace_back();
                long side = some_columns.size();
                reading.first = order.size() % taps;
                if (side && some_columns[side - 1].second == some_columns[0].second + side - 1 && across.step == 1)
                    for (reading.taps = std::min(side, (long)PIECE); side % reading.taps;) reading.taps--;
                for (auto [tap_row, row] : some_rows)
                    for (long i = 0; i < side; i++) {
                        auto [tap_column, column] = some_columns[i];
                        order.push_back(tap_row * s.taps[1] + tap_column);
                        if (i % reading.taps) continue;
                        long line = (head + row - down.lowest) % ring;
                        reading.sources.push_back((line * columns + column - across.lowest) * W);
                    }
            }
    long bands = std::max(1L, rows * down.step / std::max(BAND, 4 * ring)), band = (rows + bands - 1) / bands;
    long blocks = Lot::tasks(s.groups, many);
    for_tasks(s.batch * blocks * bands, [&](long task) {
        static thread_local Scratch scratch;
        Lot lot(task / bands % blocks, s.groups, many);
        long b = task / bands / blocks, c = back ? lot.result : lot.channel, count = back ? lot.results : lot.count;
        long out_c = back ? lot.channel : lot.result, out_count = back ? lot.count : lot.results;
        auto change = [&](Vector v) { return back ? v : lot.spread(v); };
        long k0 = task % bands * band, head = 0, end = down.lowest + k0 * down.step;
        float* factors = scratch.floats((taps + ring * columns) * W);
        float* wide = factors + taps * W;
        const T* own = filters + lot.result;
        for (long t = 0; t < taps; t++) store(factors + t * W, take(own + order[t] * all_results, lot.results));
        for (long k = k0; k < std::min(rows, k0 + band); k++, head = (head + down.step) % ring) {
            long first = down.lowest + k * down.step;
            for (end = std::max(end, first); end < first + ring; end++)
                widen(x + b * height * width * C + c, height, width, C, count, end, across.lowest, columns,
                      wide + (head + end - first) % ring * columns * W, change);
            for (long phase = 0; phase < down.phases * across.phases; phase++) {
                long r = k * down.phases + phase / across.phases, j = phase % across.phases;
                long left = (out_width - j + across.phases - 1) / across.phases;
                if (r >= out_height || left <= 0) continue;
                const Reading& reading = readings[head * down.phases * across.phases + phase];
                const float *from = wide, *some = factors + reading.first * W;
                long at = ((b * out_height + r) * out_width + j) * out_C + out_c;
                Outputs<T> out{ending, y, at, across.phases * out_C, out_c, out_count, back && many > 1 ? &lot : nullptr};
                long groups = (left + SUMS - 1) / SUMS, size = (left + groups - 1) / groups;
                for (; left > 0; left -= size, from += size * across.step * W, out.at += size * out.step)
                    for_constant<SUMS>(std::min(size, left), [&](auto N) {
                        if (across.step > 1) return sum_taps<N>(reading, some, from, Constant<1>(), across.step, out);
                        for_constant<PIECE>(reading.taps, [&](auto taps) {
                            sum_taps<N>(reading, some, from, taps, Constant<1>(), out);
                        });
                    });
            }
        }
    });
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
    long C = s.groups, results = C * s.out_channels, taps = s.taps[0] * s.taps[1];
    long blocks = Lot::tasks(C, s.out_channels);
    long part = (s.batch + 7) / 8, parts = (s.batch + part - 1) / part;  // the same for any number of threads
    Axis down(s, 0, false), across(s, 1, false);
    long columns = across.highest - across.lowest + (s.out_width - 1) * across.step + 1;
    long ring = down.highest - down.lowest + 1;
    std::vector<long> places;  // of what each tap reads for the first output, for each place of the first row
    for (long head = 0; head < ring; head++)
        for (auto [tap_row, row] : down.reads[0])
            for (auto [tap_column, column] : across.reads[0])
                places.push_back(((head + row - down.lowest) % ring * columns + column - across.lowest) * W);
    std::vector<float> partial(parts * taps * results);
    for_tasks(parts * blocks, [&](long task) {
        static thread_local Scratch scratch;
        Lot lot(task % blocks, C, s.out_channels);
        auto spread = [&](Vector v) { return lot.spread(v); };
        auto same = [](Vector v) { return v; };
        long p = task / blocks;
        float* sums = scratch.floats((taps + s.out_width + ring * columns) * W);
        float *row = sums + taps * W, *wide = row + s.out_width * W;
        for (long i = 0; i < taps; i++) store(sums + i * W, all(0.0f));
        for (long b = p * part; b < std::min(s.batch, (p + 1) * part); b++)
            for (long i = 0, head = 0, end = down.lowest; i < s.out_height; i++, head = (head + down.step) % ring) {
                long lowest = down.lowest + i * down.step;
                for (end = std::max(end, lowest); end < lowest + ring; end++)
                    widen(x + b * s.height * s.width * C + lot.channel, s.height, s.width, C, lot.count, end,
                          across.lowest, columns, wide + (head + end - lowest) % ring * columns * W, spread);
                widen(gradient + b * s.out_height * s.out_width * results + lot.result, s.out_height, s.out_width,
                      results, lot.results, i, 0, s.out_width, row, same);
                const long* of_taps = places.data() + head * taps;
                for (long first = 0, groups = (taps + MOST - 1) / MOST; groups; groups--)
                    for_constant<MOST>((taps - first + groups - 1) / groups, [&](auto constant) {
                        constexpr int N = decltype(constant)::value;
                        float* at = sums + first * W;
                        const float* from[N];
                        Vector totals[N];
                        for (int t = 0; t < N; t++) {
                            totals[t] = load(at + t * W);
                            from[t] = wide + of_taps[first + t];
                        }
                        for (long j = 0; j < s.out_width; j++) {
                            Vector g = load(row + j * W);
#pragma GCC unroll 9
                            for (int t = 0; t < N; t++)
                                totals[t] = fma(load(from[t] + j * across.step * W), g, totals[t]);
                        }
                        for (int t = 0; t < N; t++) store(at + t * W, totals[t]);
                        first += N;
                    });
            }
        for (long i = 0; i < taps; i++)
            give(partial.data() + (p * taps + i) * results + lot.result, load(sums + i * W), lot.results);
    });
    walk(taps * results, [&](long i, long count) {
        Vector total = take(partial.data() + i, count);
        for (long p = 1; p < parts; p++) total = total + take(partial.data() + p * taps * results + i, count);
        give(out + i, total, count);
    });
}

}  // namespace
