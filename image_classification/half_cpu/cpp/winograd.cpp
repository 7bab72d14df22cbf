// Convolution of images [B, H, W, C] with 3 x 3 filters, and its gradients, by Winograd's F(4 x 4, 3 x 3): Lavin and
// Gray, Fast Algorithms for Convolutional Neural Networks, 2016. Tiles of 6 x 6 pixels and the filters are transformed,
// multiplied number by number and summed over the channels, which are 36 products of matrices, and turned back into 4 x 4
// results: a quarter of the multiplications. The gradient of the filters is the same backwards: tiles times transformed
// gradients, summed over the tiles. All of it is float32, rounded once at the end.
//
// inf and NaN would spread over a tile, and large numbers overflow on the way. Images that get a result that is not finite,
// and no others, so that no image depends on another one, and filters that get such a gradient are computed again without
// tiles.
#include <atomic>
#include <vector>

#include "activations.h"
#include "depthwise.h"
#include "interface.h"
#include "lanes.h"

namespace {

constexpr long IN = 6, OUT = 4, TAPS = 3, POINTS = IN * IN;
constexpr long COLUMNS = VECTORS * W;  // results of a part of the transformed filters
constexpr long GAP = 16;               // floats between two points, so that they do not fall upon each other in the cache

long whole(long channels) { return parts(channels, W) * W; }
// The results of a part that begins with one of them, as whole vectors.
long width_of(long outputs, long first) { return whole(std::min(COLUMNS, outputs - first)); }
// Floats from one point of a part of the filters to the next.
long filter_step(long inputs, long width) { return inputs * width + GAP; }

struct Line {
    const Vector* from;
    long step;
    Vector operator[](long i) const { return from[i * step]; }
};
// The polynomials are interpolated at 0, inf, and the roots of 1/2 and of 2, each with both signs: results are three times
// as near to the exact ones as with 1 and 2 instead of the roots, by which all else is the paper's.
const Vector LOW = all(0.70710678f), HIGH = all(1.41421356f);

// One axis of a filter, of a tile, of a gradient of results; and back, of results and of the filters' gradient.
const auto filter_of = [](Line g, Vector* to, long step) __attribute__((always_inline)) {
    Vector low = fma(g[2], all(0.5f), g[0]) * all(-2.0f / 3), low_odd = g[1] * LOW * all(-2.0f / 3);
    Vector high = fma(g[2], all(2.0f), g[0]) * all(1.0f / 6), high_odd = g[1] * HIGH * all(1.0f / 6);
    to[0] = g[0], to[step] = low + low_odd, to[2 * step] = low - low_odd;
    to[3 * step] = high + high_odd, to[4 * step] = high - high_odd, to[5 * step] = g[2];
};
const auto tile_of = [](Line d, Vector* to, long step) __attribute__((always_inline)) {
    Vector low = fma(d[2], all(-2.0f), d[4]), low_odd = fma(d[1], all(-2.0f), d[3]) * LOW;
    Vector high = fma(d[2], all(-0.5f), d[4]), high_odd = fma(d[1], all(-0.5f), d[3]) * HIGH;
    to[0] = fma(d[2], all(-2.5f), d[0] + d[4]), to[step] = low + low_odd, to[2 * step] = low - low_odd;
    to[3 * step] = high + high_odd, to[4 * step] = high - high_odd, to[5 * step] = fma(d[3], all(-2.5f), d[1] + d[5]);
};
const auto gradient_of = [](Line y, Vector* to, long step) __attribute__((always_inline)) {
    Vector low = fma(y[2], all(0.5f), y[0]), low_odd = fma(y[3], all(0.5f), y[1]) * LOW;
    Vector high = fma(y[2], all(2.0f), y[0]), high_odd = fma(y[3], all(2.0f), y[1]) * HIGH;
    to[0] = y[0], to[step] = low + low_odd, to[2 * step] = low - low_odd;
    to[3 * step] = high + high_odd, to[4 * step] = high - high_odd, to[5 * step] = y[3];
};
const auto result_of = [](Line m, Vector* to, long step) __attribute__((always_inline)) {
    Vector low = m[1] + m[2], low_odd = (m[1] - m[2]) * LOW, high = m[3] + m[4], high_odd = (m[3] - m[4]) * HIGH;
    to[0] = m[0] + low + high, to[step] = low_odd + high_odd;
    to[2 * step] = fma(low, all(0.5f), high + high), to[3 * step] = fma(low_odd, all(0.5f), high_odd + high_odd) + m[5];
};
const auto taps_of = [](Line u, Vector* to, long step) __attribute__((always_inline)) {
    Vector low = (u[1] + u[2]) * all(-1.0f / 3), low_odd = (u[1] - u[2]) * LOW * all(-2.0f / 3);
    Vector high = (u[3] + u[4]) * all(1.0f / 6), high_odd = (u[3] - u[4]) * HIGH * all(1.0f / 6);
    to[0] = u[0] + low + low + high, to[step] = low_odd + high_odd, to[2 * step] = low + high + high + u[5];
};
// Both axes of the N x N numbers from(i, j), which become M x M, each given to(i, j, number): first all columns, then all
// rows.
template <long N, long M, class From, class F, class To>
ALWAYS_INLINE void both(From from, F transform, To to) {
    Vector rows[M * N];
#pragma GCC unroll 6
    for (long j = 0; j < N; j++) {
        Vector column[N];
#pragma GCC unroll 6
        for (long i = 0; i < N; i++) column[i] = from(i, j);
        transform(Line{column, 1}, rows + j, N);
    }
#pragma GCC unroll 6
    for (long i = 0; i < M; i++) {
        Vector row[M];
        transform(Line{rows + i * N, 1}, row, 1);
#pragma GCC unroll 6
        for (long j = 0; j < M; j++) to(i, j, row[j]);
    }
}

struct Images {
    long height, width, channels;
    long numbers() const { return height * width * channels; }  // of an image
};
// The tiles of images: where each begins, `before` pixels of padding away from its first result.
struct Tiles {
    long batch, height, width, before[2];  // of the results
    long across() const { return parts(width, OUT); }
    long of_image() const { return parts(height, OUT) * across(); }
    long count() const { return batch * of_image(); }
    long image(long tile) const { return tile / of_image(); }
    long down(long tile) const { return tile % of_image() / across() * OUT; }
    long along(long tile) const { return tile % across() * OUT; }
};

// Write N x N pixels of the tiles [first, first + count), transformed, as [point][tile][channel], in whole vectors.
template <long N, class T, class F>
void gather(const Tiles& tiles, const long* before, const Images& s, const T* x, long first, long count, float* to,
            long step, F transform) {
    for (long t = 0; t < count; t++) {
        long i0 = tiles.down(first + t) - before[0], j0 = tiles.along(first + t) - before[1];
        bool inside = i0 >= 0 && i0 + N <= s.height && j0 >= 0 && j0 + N <= s.width;
        const T* place = x + ((tiles.image(first + t) * s.height + i0) * s.width + j0) * s.channels;
        walk(s.channels, [&](long c, long lanes) {
            float* first_point = to + t * whole(s.channels) + c;
            auto point = [&](long i, long j, Vector number) { store(first_point + (i * IN + j) * step, number); };
            auto pixel = [&](long i, long j) { return load(place + (i * s.width + j) * s.channels + c); };
            auto some = [&](long i, long j) {
                bool inside = i0 + i >= 0 && i0 + i < s.height && j0 + j >= 0 && j0 + j < s.width;
                return inside ? take(place + (i * s.width + j) * s.channels + c, lanes) : all(0.0f);
            };
            if (inside && lanes == W) both<N, IN>(pixel, transform, point);
            else both<N, IN>(some, transform, point);
        });
    }
}
const long NONE[2] = {0, 0};

using Marks = std::vector<std::atomic<bool>>;  // of images

// Turn sums [point][tile][column] into results, and mark the images of which one is not finite.
template <class T>
void scatter(const Tiles& tiles, const Images& s, const float* from, long step, long first, long count, long channel,
             long width, T* y, const Ending<T>& ending, Marks& marks) {
    for (long t = 0; t < count; t++) {
        Vector broken = all(0.0f);
        long i0 = tiles.down(first + t), j0 = tiles.along(first + t), image = tiles.image(first + t);
        long high = std::min(OUT, s.height - i0), wide = std::min(OUT, s.width - j0);
        T* place = y + ((image * s.height + i0) * s.width + j0) * s.channels + channel;
        walk(std::min(width, s.channels - channel), [&](long c, long lanes) {
            Vector results[OUT * OUT];
            auto sum = [&](long i, long j) { return load(from + (i * IN + j) * step + t * width + c); };
            both<IN, OUT>(sum, result_of, [&](long i, long j, Vector result) { results[i * OUT + j] = result; });
            for (long i = 0; i < high; i++)
                for (long j = 0; j < wide; j++) {
                    T* pixel = place + (i * s.width + j) * s.channels + c;
                    broken = fma(results[i * OUT + j], all(0.0f), broken);
                    give(pixel, ending(results[i * OUT + j], channel + c, pixel - y, lanes), lanes);
                }
        });
        if (any(is_nan(broken))) marks[image] = true;
    }
}

template <class T>
void convolve(const Tiles& tiles, const Images& source, const Images& result, const T* x, const float* filters, T* y,
              const Ending<T>& ending, Marks& broken) {
    long inputs = whole(source.channels), blocks = parts(result.channels, COLUMNS);
    // Of few channels what is read and written of a share stays in a core's cache; of many the filters are read less often.
    // Each thread has as many of them as the others; where they are fewer, threads have parts of the filters instead, which
    // are large then.
    long shares = parts(tiles.count(), inputs < 128 ? 24 : 96), threads = omp_get_max_threads();
    long groups = shares < threads ? blocks : 1;
    if (shares > threads) shares = parts(shares, threads) * threads;
    for_tasks(shares * groups, [&](long task) {
        static thread_local Scratch scratch;
        long share = task / groups, group = task % groups;
        long first = tiles.count() * share / shares, count = tiles.count() * (share + 1) / shares - first;
        long tile_step = count * inputs + GAP, sum_step = count * COLUMNS + GAP;
        float* points = scratch.floats(POINTS * (tile_step + sum_step));
        float* sums = points + POINTS * tile_step;
        gather<IN>(tiles, tiles.before, source, x, first, count, points, tile_step, tile_of);
        for (long block = blocks * group / groups; block < blocks * (group + 1) / groups; block++) {
            long channel = block * COLUMNS, width = width_of(result.channels, channel);
            long step = filter_step(source.channels, width);
            const float* right = filters + POINTS * filter_step(source.channels, COLUMNS) * block;
            for (long k = 0; k < POINTS; k++)
                product<Lanes<float>>(count, width / W, source.channels, {points + k * tile_step, inputs, 1},
                                      right + k * step, Tile{sums + k * sum_step, width});
            scatter(tiles, result, sums, sum_step, first, count, channel, width, y, ending, broken);
        }
    });
}

// Write the gradient of the filters as [result][tap][input]. False where a number of it is not finite.
template <class T>
bool filters_gradient(const Tiles& tiles, const Images& source, const Images& result, const T* x, const T* gradient,
                      T* out) {
    long inputs = whole(source.channels), outputs = whole(result.channels), step = result.channels * inputs + GAP;
    long most = std::max(48L, std::min(512L, (2L << 20) / (POINTS * (inputs + outputs))));
    long rounds = parts(tiles.count(), most);
    long left_step = most * outputs + GAP, right_step = most * inputs + GAP;
    Floats left(POINTS * left_step), right(POINTS * right_step), sums(POINTS * step);
    for (long round = 0; round < rounds; round++) {
        long first = tiles.count() * round / rounds, count = tiles.count() * (round + 1) / rounds - first;
        for_tasks(parts(count, 8), [&](long task) {
            long t = task * 8, some = std::min(8L, count - t);
            gather<IN>(tiles, tiles.before, source, x, first + t, some, right + t * inputs, right_step, tile_of);
            gather<OUT>(tiles, NONE, result, gradient, first + t, some, left + t * outputs, left_step, gradient_of);
        });
        for_tasks(POINTS, [&](long k) {
            product<Lanes<float>>(result.channels, inputs / W, count, {left + k * left_step, 1, outputs},
                                  right + k * right_step, Waiting{sums + k * step, inputs, round == 0});
        });
    }
    std::atomic<bool> finite{true};
    for_ranges(result.channels, 4, [&](long first, long last) {
        Vector broken = all(0.0f);
        for (long o = first; o < last; o++)
            walk(source.channels, [&](long c, long lanes) {
                auto sum = [&](long i, long j) { return load(sums + (i * IN + j) * step + o * inputs + c); };
                both<IN, TAPS>(sum, taps_of, [&](long i, long j, Vector tap) {
                    broken = fma(tap, all(0.0f), broken);
                    give(out + (o * TAPS * TAPS + i * TAPS + j) * source.channels + c, tap, lanes);
                });
            });
        if (any(is_nan(broken))) finite = false;
    });
    return finite;
}

}  // namespace

EXPORT int convolution(int, int, const long*, const char*, const void*, const void*, void*, const float*, const float*,
                       const void*);

// Transform filters [tap][input][result], each turned round where `back`, to [part of the results][point][input][result],
// after which `size` floats are used.
EXPORT int winograd_filters(int format, int back, long inputs, long outputs, const void* filters, float* out) {
    return for_format(format, [&](auto number) {
        const auto* from = (const decltype(number)*)filters;
        for_ranges(inputs, 4, [&](long first, long last) {
            for (long c = first; c < last; c++)
                walk(outputs, [&](long o, long lanes) {
                    auto number = [&](long i, long j) {
                        long tap = i * TAPS + j;
                        if (back) tap = TAPS * TAPS - 1 - tap;
                        return take(from + (tap * inputs + c) * outputs + o, lanes);
                    };
                    long block = o / COLUMNS, channel = block * COLUMNS, width = width_of(outputs, channel);
                    float* to = out + POINTS * filter_step(inputs, COLUMNS) * block + c * width + o - channel;
                    both<TAPS, IN>(number, filter_of, [&](long i, long j, Vector point) {
                        store(to + (i * IN + j) * filter_step(inputs, width), point);
                    });
                });
        });
    });
}

// `convolution` with its arguments. The filters of the passes 0 and 1 are `size` floats, the transformed ones, and after
// these the same as there.
EXPORT int winograd(int format, int pass, const long* numbers, const char* activation, const void* first,
                    const void* second, void* out, const float* factor, const float* addend, const void* residual,
                    long size) {
    Numbers n;
    memcpy(&n, numbers, sizeof(n));
    Images images{n.height, n.width, n.in_channels}, results{n.out_height, n.out_width, n.out_channels};
    Tiles tiles{n.batch, n.out_height, n.out_width, {n.before[0], n.before[1]}};
    if (pass == 1) {
        std::swap(images, results);
        tiles = {n.batch, n.height, n.width, {TAPS - 1 - n.before[0], TAPS - 1 - n.before[1]}};
    }
    return for_format(format, [&](auto number) {
        using T = decltype(number);
        const T *a = (const T*)first, *added = (const T*)residual;
        Ending<T> ending{factor, addend, added};
        auto fuse = [&](auto f) { ending.activation = [](Vector v) { return decltype(f){}.forward(v); }; };
        if (activation && for_fused<T>(activation, fuse)) return 1;
        Marks broken(pass == 2 ? 1 : n.batch);
        if (pass == 2) broken[0] = !filters_gradient(tiles, images, results, a, (const T*)second, (T*)out);
        else convolve(tiles, images, results, a, (const float*)second, (T*)out, ending, broken);
        const void* plain = pass == 2 ? second : (const float*)second + size;
        n.batch /= broken.size();
        for (size_t i = 0; i < broken.size(); i++) {
            long to = i * results.numbers();
            if (broken[i])
                convolution(format, pass, (const long*)&n, activation, a + i * images.numbers(), plain, (T*)out + to,
                            factor, addend, added ? added + to : nullptr);
        }
        return 0;
    });
}
