// Maximum and mean over windows of images [B, H, W, C]. Each gradient is gathered from the windows that an element is in
// and rounded once.
#include <type_traits>
#include <vector>

#include "interface.h"
#include "parallel.h"

namespace {

struct Geometry {
    long batch, channels, height, width;    // of the images
    long out_height, out_width;
    long window[2], stride[2], before[2];
    bool maximum, with_padding;             // the mean counts padding as zeros

    float divisor(long i, long j) const {
        if (with_padding) return (float)window[0] * window[1];
        long top = i * stride[0] - before[0], left = j * stride[1] - before[1];
        long rows = std::min(top + window[0], height) - std::max(top, 0L);
        return (float)rows * (std::min(left + window[1], width) - std::max(left, 0L));
    }
};

// A pixel that takes part in another one: its first channel, and its number in the window or its share.
struct Reading {
    long at;
    float value;
    Reading(long at, float value) : at(at), value(value) {}  // in its place: a copy would wait for both to be written
};

// Call f(pixel, readings) for each pixel of images; find(batch, row, column, readings) adds what takes part in one.
template <class Find, class F>
void for_pixels(long batch, long height, long width, long channels, Find find, F f) {
    for_ranges(batch * height * width, GRAIN / channels, [&](long first, long last) {
        std::vector<Reading> readings;
        long b = first / (height * width), i = first / width % height, j = first % width;
        for (long p = first; p < last; p++) {
            readings.clear();
            find(b, i, j, readings);
            f(p, readings);
            if (++j < width) continue;
            j = 0;
            if (++i == height) i = 0, b++;
        }
    });
}

// The largest number; the first one of equal ones, and a NaN that comes first.
template <class T, bool WHERE>
void maxima(long C, const std::vector<Reading>& readings, const T* x, T* y, uint8_t* positions) {
    for_vectors(C, [&](long c, long count, auto many) {
        Vector best[decltype(many)::value], where[decltype(many)::value];
        for (long v = 0; v < many; v++) {
            best[v] = take(x + readings[0].at + c + v * W, count);
            where[v] = all(readings[0].value);
        }
        for (size_t k = 1; k < readings.size(); k++) {
            const T* from = x + readings[k].at + c;
            Vector here = all(readings[k].value);
            for (long v = 0; v < many; v++) {
                Vector next = take(from + v * W, count);
                if (WHERE) where[v] = choose(less(best[v], next), here, where[v]);
                best[v] = maximum(next, best[v]);
            }
        }
        for (long v = 0; v < many; v++) {
            give(y + c + v * W, best[v], count);
            if (WHERE) store_bytes(positions + c + v * W, where[v], count);
        }
    });
}

template <class T>
void forward(const Geometry& g, const T* x, T* y, uint8_t* positions) {
    long C = g.channels;
    auto find = [&](long b, long i, long j, auto& readings) {
        long top = i * g.stride[0] - g.before[0], left = j * g.stride[1] - g.before[1];
        for (long h = std::max(0L, -top); h < std::min(g.window[0], g.height - top); h++)
            for (long w = std::max(0L, -left); w < std::min(g.window[1], g.width - left); w++)
                readings.emplace_back(((b * g.height + top + h) * g.width + left + w) * C, (float)(h * g.window[1] + w));
    };
    for_pixels(g.batch, g.out_height, g.out_width, C, find, [&](long p, const auto& readings) {
        if (g.maximum && readings.empty())
            return walk(C, [&](long c, long count) {
                give(y + p * C + c, all(-INFINITY), count);
                if (positions) store_bytes(positions + p * C + c, all(0.0f), count);
            });
        if (g.maximum) {
            if (positions) maxima<T, true>(C, readings, x, y + p * C, positions + p * C);
            else maxima<T, false>(C, readings, x, y + p * C, nullptr);
            return;
        }
        float factor = 1 / g.divisor(p / g.out_width % g.out_height, p % g.out_width);
        for_vectors(C, [&](long c, long count, auto many) {
            Vector total[decltype(many)::value];
            for (long v = 0; v < many; v++) total[v] = all(0.0f);
            for (const Reading& reading : readings)
                for (long v = 0; v < many; v++) total[v] = total[v] + take(x + reading.at + c + v * W, count);
            for (long v = 0; v < many; v++) give(y + p * C + c + v * W, total[v] * all(factor), count);
        });
    });
}

template <class T>
void backward(const Geometry& g, const T* gradient, T* out, const uint8_t* positions) {
    long C = g.channels;
    auto find = [&](long b, long row, long column, auto& readings) {
        long h = row + g.before[0], w = column + g.before[1];
        long first_i = h < g.window[0] ? 0 : (h - g.window[0]) / g.stride[0] + 1;
        long first_j = w < g.window[1] ? 0 : (w - g.window[1]) / g.stride[1] + 1;
        for (long i = first_i; i <= std::min(h / g.stride[0], g.out_height - 1); i++)
            for (long j = first_j; j <= std::min(w / g.stride[1], g.out_width - 1); j++) {
                long number = (h - i * g.stride[0]) * g.window[1] + w - j * g.stride[1];
                readings.emplace_back(((b * g.out_height + i) * g.out_width + j) * C,
                                      positions ? (float)number : 1 / g.divisor(i, j));
            }
    };
    for_pixels(g.batch, g.height, g.width, C, find, [&](long p, const auto& readings) {
        for_vectors(C, [&](long c, long count, auto many) {
            Vector total[decltype(many)::value];
            for (long v = 0; v < many; v++) total[v] = all(0.0f);
            for (const Reading& reading : readings)
                for (long v = 0; v < many; v++) {
                    long at = reading.at + c + v * W;
                    Vector g = take(gradient + at, count);
                    if (positions) {
                        Mask hit = equal(load_bytes(positions + at, count), all(reading.value));
                        total[v] = total[v] + choose(hit, g, all(0.0f));
                    } else {
                        total[v] = fma(g, all(reading.value), total[v]);
                    }
                }
            for (long v = 0; v < many; v++) give(out + p * C + c + v * W, total[v], count);
        });
    });
}

Geometry geometry(const long* n, int maximum, int with_padding) {
    return {n[0], n[1], n[2], n[3], n[4], n[5], {n[6], n[7]}, {n[8], n[9]}, {n[10], n[11]}, maximum != 0,
            with_padding != 0};
}

}  // namespace

// numbers: batch, channels, height, width, height and width of the result, then window, stride and padding before, each
// for height and width. `positions`, a byte for each result, may be null; windows have at most 256 elements where not.
EXPORT int pooling(int format, const long* numbers, int maximum, int with_padding, Source x, Target y,
                   uint8_t* positions) {
    return for_format(format, [&](auto number) {
        forward<decltype(number)>(geometry(numbers, maximum, with_padding), x, y, positions);
    });
}

EXPORT int pooling_backward(int format, const long* numbers, int maximum, int with_padding, Source gradient, Target out,
                            const uint8_t* positions) {
    return for_format(format, [&](auto number) {
        backward<decltype(number)>(geometry(numbers, maximum, with_padding), gradient, out, positions);
    });
}
