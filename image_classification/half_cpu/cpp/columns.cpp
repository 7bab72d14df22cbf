// The windows of images as columns, [B, C * window, places], and the sums of what overlaps; images lie as [B, C, H, W].
#include "interface.h"
#include "parallel.h"

namespace {

struct Geometry {
    long planes, height, width, rows, columns;  // of the images, and of the places of the window
    long window[2], strides[2], before[2], dilations[2];
};

// Call f(pixel, place, count, step) for each run of places of a plane that lie `step` pixels apart, and outside(place,
// count) for those that lie beyond the border.
template <class F, class G>
inline void for_runs(const Geometry& g, F f, G outside) {
    for (long i = 0; i < g.window[0]; i++)
        for (long j = 0; j < g.window[1]; j++) {
            long left = j * g.dilations[1] - g.before[1], step = g.strides[1];
            long begin = std::min(g.columns, left < 0 ? (-left + step - 1) / step : 0);
            long end = std::max(begin, std::min(g.columns, left < g.width ? (g.width - left + step - 1) / step : 0));
            for (long r = 0; r < g.rows; r++) {
                long y = r * g.strides[0] + i * g.dilations[0] - g.before[0];
                long place = ((i * g.window[1] + j) * g.rows + r) * g.columns;
                if (y < 0 || y >= g.height) {
                    outside(place, g.columns);
                    continue;
                }
                outside(place, begin);
                f(y * g.width + left + begin * step, place + begin, end - begin, step);
                outside(place + end, g.columns - end);
            }
        }
}

template <class U>
void unfold(const Geometry& g, const U* x, U* out) {
    long pixels = g.height * g.width, places = g.window[0] * g.window[1] * g.rows * g.columns;
    for_ranges(g.planes, 32768 / places, [&](long first, long last) {
        for (long p = first; p < last; p++) {
            const U* from = x + p * pixels;
            U* to = out + p * places;
            for_runs(g, [=](long pixel, long place, long count, long step) {
                if (step == 1) memcpy(to + place, from + pixel, count * sizeof(U));
                else for (long k = 0; k < count; k++) to[place + k] = from[pixel + k * step];
            }, [=](long place, long count) { memset(to + place, 0, count * sizeof(U)); });
        }
    });
}

template <class T>
void fold(const Geometry& g, const T* x, T* out) {
    long pixels = g.height * g.width, places = g.window[0] * g.window[1] * g.rows * g.columns;
    for_ranges(g.planes, 32768 / places, [&](long first, long last) {
        static thread_local Scratch scratch;
        float* sums = scratch.floats(pixels + W);
        for (long p = first; p < last; p++) {
            const T* from = x + p * places;
            memset(sums, 0, pixels * sizeof(float));
            for_runs(g, [=](long pixel, long place, long count, long step) {
                if (step == 1)
                    walk(count, [&](long k, long n) {
                        give(sums + pixel + k, take(sums + pixel + k, n) + take(from + place + k, n), n);
                    });
                else for (long k = 0; k < count; k++) sums[pixel + k * step] += value(from + place + k);
            }, [](long, long) {});
            walk(pixels, [&](long k, long n) { give(out + p * pixels + k, take(sums + k, n), n); });
        }
    });
}

}  // namespace

// numbers: a Geometry.
EXPORT int unfold(int bytes, const long* numbers, Source x, Target out) {
    return for_width(bytes, [&](auto unit) { unfold<decltype(unit)>(*(const Geometry*)numbers, x, out); });
}

EXPORT int fold(int format, const long* numbers, Source x, Target out) {
    return for_format(format, [&](auto number) { fold<decltype(number)>(*(const Geometry*)numbers, x, out); });
}
