// Rotary positions: each pair of channels of a head is turned by the angle of its token's place.
#include "interface.h"
#include "parallel.h"

namespace {

// The gradient of x1 cos1 - x2 sin1, x2 cos2 + x1 sin2 is g1 cos1 + g2 sin2, g2 cos2 - g1 sin1.
struct Turn {
    bool back;
    Vector first(Vector x1, Vector x2, Vector cos1, Vector sin1, Vector sin2) const {
        return back ? fma(x1, cos1, x2 * sin2) : fma(x1, cos1, -(x2 * sin1));
    }
    Vector second(Vector x1, Vector x2, Vector cos2, Vector sin1, Vector sin2) const {
        return back ? fma(x2, cos2, -(x1 * sin1)) : fma(x2, cos2, x1 * sin2);
    }
};

// A pair is a channel of the first half and that of the second.
template <class T>
void turn_halves(long dim, Turn turn, const float* sine, const float* cosine, const T* x, T* y) {
    long half = dim / 2;
    walk(half, [&](long i, long n) {
        Vector x1 = take(x + i, n), x2 = take(x + half + i, n);
        Vector sin1 = take(sine + i, n), sin2 = take(sine + half + i, n);
        give(y + i, turn.first(x1, x2, take(cosine + i, n), sin1, sin2), n);
        give(y + half + i, turn.second(x1, x2, take(cosine + half + i, n), sin1, sin2), n);
    });
}

// A pair is two neighbours: even lanes are first ones.
template <class T>
void turn_neighbours(long dim, Turn turn, const float* sine, const float* cosine, const T* x, T* y) {
    float signs[W];
    for (int lane = 0; lane < W; lane++) signs[lane] = (lane % 2 == 0) == turn.back ? 1.0f : -1.0f;
    Vector sign = load(signs);
    walk(dim, [&](long i, long n) {
        Vector v = take(x + i, n), s = take(sine + i, n);
        Vector across = turn.back ? neighbours(v * s) : neighbours(v) * s;
        give(y + i, fma(v, take(cosine + i, n), across * sign), n);
    });
}

}  // namespace

// numbers: samples, tokens, heads that are turned, all heads, channels of a head; the tables are [tokens, channels].
EXPORT int rotary(int format, const long* numbers, int halves, int back, const float* sine, const float* cosine,
                  const void* from, void* to) {
    long samples = numbers[0], tokens = numbers[1], turned = numbers[2], heads = numbers[3], dim = numbers[4];
    Turn turn{back != 0};
    return for_format(format, [&](auto kind) {
        using T = decltype(kind);
        for_ranges(samples * tokens, GRAIN / (heads * dim), [&](long first, long last) {
            for (long row = first; row < last; row++) {
                const T* x = (const T*)from + row * heads * dim;
                T* y = (T*)to + row * heads * dim;
                const float *s = sine + row % tokens * dim, *c = cosine + row % tokens * dim;
                for (long head = 0; head < turned; head++) {
                    if (halves) turn_halves(dim, turn, s, c, x + head * dim, y + head * dim);
                    else turn_neighbours(dim, turn, s, c, x + head * dim, y + head * dim);
                }
                memcpy(y + turned * dim, x + turned * dim, (heads - turned) * dim * sizeof(T));
            }
        });
    });
}
