// Conversions, activations, and elements that are repeated: float32 inside, rounded once.
#include "activations.h"
#include "broadcast.h"

namespace {

template <class From, class To>
void convert(long n, const From* from, To* to) {
    for_ranges(n, GRAIN, [&](long first, long last) {
        map(last - first, to + first, [&](long i, long count) { return take(from + first + i, count); });
    });
}

// Up to FEW copies of each element side by side; the sizes and strides are those of the three axes before them.
constexpr long FEW = 16;
template <class Unit>
void repeat(const long* sizes, const long* strides, const Unit* x, Unit* out) {
    long copies = sizes[3];
    auto row = [=](long n, long step, const Unit* from, Unit* to) {
        auto fill = [=](auto count) {
            for (long k = 0; k < n; k++)
                for (long j = 0; j < count; j++) to[k * count + j] = from[k * step];
        };
        if (copies == 2) fill(std::integral_constant<long, 2>());
        else if (copies == 3) fill(std::integral_constant<long, 3>());
        else fill(copies);
    };
    for_ranges(sizes[0] * sizes[1] * sizes[2], GRAIN / copies, [=](long first, long last) {
        for (long r = first, end; r < last; r = end) {
            long k = r % sizes[2], j = r / sizes[2] % sizes[1], i = r / sizes[2] / sizes[1];
            end = std::min(last, r - k + sizes[2]);
            const Unit* from = x + i * strides[0] + j * strides[1] + k * strides[2];
            row(end - r, strides[2], from, out + r * copies);
        }
    });
}

}  // namespace

// The number of float32 lanes of a vector.
EXPORT int lanes() { return W; }

EXPORT int convert(int from_format, int to_format, long n, Source from, Target to) {
    return for_format(from_format, [&](auto source) {
        return for_format(to_format, [&](auto target) { convert<decltype(source), decltype(target)>(n, from, to); });
    });
}

EXPORT int activation(const char* name, int format, long n, float alpha, float beta, const void* x, void* y) {
    return for_format(format, [&](auto number) {
        using T = decltype(number);
        return for_activation<T>(name, alpha, beta, [&](auto function) {
            for_ranges(n, GRAIN, [&](long first, long last) {
                const auto f = function;  // its constants in registers: a store might change what others can reach
                const T* from = (const T*)x + first;
                T* to = (T*)y + first;
                map(last - first, to, [=](long i, long count) { return f.forward(take(from + i, count)); });
            });
        });
    });
}

EXPORT int activation_backward(const char* name, int format, long n, float alpha, float beta, const void* kept,
                               const void* gradient, void* out) {
    return for_format(format, [&](auto number) {
        using T = decltype(number);
        return for_activation<T>(name, alpha, beta, [&](auto function) {
            for_ranges(n, GRAIN, [&](long first, long last) {
                const auto f = function;
                const T *data = (const T*)kept + first, *g = (const T*)gradient + first;
                T* to = (T*)out + first;
                map(last - first, to, [=](long i, long count) {
                    return f.backward(take(data + i, count), take(g + i, count));
                });
            });
        });
    });
}

// factor times an element that is repeated along the axes whose stride is 0; sizes and strides: four numbers each.
EXPORT int expand(int from_format, int to_format, const long* sizes, const long* strides, float factor, const void* x,
                  void* out) {
    if (from_format == to_format && factor == 1 && !strides[3] && sizes[3] <= FEW) {
        if (from_format == FLOAT32) repeat(sizes, strides, (const float*)x, (float*)out);
        else repeat(sizes, strides, (const Bits*)x, (Bits*)out);
        return 0;
    }
    if (from_format == to_format && factor == 1 && strides[3]) {
        long bytes = from_format == FLOAT32 ? 4 : 2;
        for_rows_of(sizes, [=](long first, long n, auto at) {
            memcpy((char*)out + first * bytes, (const char*)x + at(strides) * bytes, n * bytes);
        });
        return 0;
    }
    return for_format(from_format, [&](auto number) {
        using T = decltype(number);
        return for_format(to_format, [&](auto result) {
            combine<true>(sizes, strides, strides, (const T*)x, (const T*)x, (decltype(result)*)out,
                    [&](Vector a, Vector, long, long) { return a * all(factor); });
        });
    });
}
