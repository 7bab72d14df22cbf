// Maximum and mean over windows of images [B, H, W, C]. Each gradient is gathered from the windows that an element is in
// and rounded once.
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

template <class F>
void for_pixels(long pixels, long channels, F f) {
    for_ranges(pixels, 16384 / channels, [&](long first, long last) {
        for (long p = first; p < last; p++) f(p);
    });
}

template <class T>
void forward(const Geometry& g, const T* x, T* y, uint8_t* positions) {
    long C = g.channels;
    for_pixels(g.batch * g.out_height * g.out_width, C, [&](long p) {
        long b = p / (g.out_height * g.out_width), i = p / g.out_width % g.out_height, j = p % g.out_width;
        long top = i * g.stride[0] - g.before[0], left = j * g.stride[1] - g.before[1];
        float factor = g.maximum ? 1 : 1 / g.divisor(i, j);
        walk(C, [&](long c, long count) {
            Vector best = all(g.maximum ? -INFINITY : 0.0f), where = all(0.0f);
            bool first = true;
            for (long h = std::max(0L, -top); h < g.window[0] && top + h < g.height; h++)
                for (long w = std::max(0L, -left); w < g.window[1] && left + w < g.width; w++) {
                    Vector v = take(x + ((b * g.height + top + h) * g.width + left + w) * C + c, count);
                    if (!g.maximum) {
                        best = best + v;
                        continue;
                    }
                    Vector here = all((float)(h * g.window[1] + w));
                    where = first ? here : choose(less(best, v), here, where);
                    best = first ? v : choose(less(best, v), v, best);
                    first = false;
                }
            give(y + p * C + c, g.maximum ? best : best * all(factor), count);
            if (positions) store_bytes(positions + p * C + c, where, count);
        });
    });
}

template <class T>
void backward(const Geometry& g, const T* gradient, T* out, const uint8_t* positions) {
    long C = g.channels;
    for_pixels(g.batch * g.height * g.width, C, [&](long p) {
        long b = p / (g.height * g.width), h = p / g.width % g.height + g.before[0], w = p % g.width + g.before[1];
        long first_i = std::max(0L, (h - g.window[0] + g.stride[0]) / g.stride[0]);
        long first_j = std::max(0L, (w - g.window[1] + g.stride[1]) / g.stride[1]);
        if (h < g.window[0]) first_i = 0;
        if (w < g.window[1]) first_j = 0;
        long last_i = std::min(h / g.stride[0], g.out_height - 1), last_j = std::min(w / g.stride[1], g.out_width - 1);
        walk(C, [&](long c, long count) {
            Vector total = all(0.0f);
            for (long i = first_i; i <= last_i; i++)
                for (long j = first_j; j <= last_j; j++) {
                    long at = ((b * g.out_height + i) * g.out_width + j) * C + c;
                    Vector v = take(gradient + at, count);
                    if (positions) {
                        long here = (h - i * g.stride[0]) * g.window[1] + w - j * g.stride[1];
                        Mask hit = equal(load_bytes(positions + at, count), all((float)here));
                        total = total + choose(hit, v, all(0.0f));
                    } else {
                        total = fma(v, all(1 / g.divisor(i, j)), total);
                    }
                }
            give(out + p * C + c, total, count);
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
EXPORT int pooling(int format, const long* numbers, int maximum, int with_padding, const void* x, void* y,
                   uint8_t* positions) {
    return for_format(format, [&](auto number) {
        using T = decltype(number);
        forward(geometry(numbers, maximum, with_padding), (const T*)x, (T*)y, positions);
    });
}

EXPORT int pooling_backward(int format, const long* numbers, int maximum, int with_padding, const void* gradient,
                            void* out, const uint8_t* positions) {
    return for_format(format, [&](auto number) {
        using T = decltype(number);
        backward(geometry(numbers, maximum, with_padding), (const T*)gradient, (T*)out, positions);
    });
}
