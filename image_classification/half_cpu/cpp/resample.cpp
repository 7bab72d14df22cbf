// Images whose rows and columns are weighted sums of other rows and columns: mean pooling of every kind, interpolation,
// padding, and, with the tables transposed, the gradients of all of them. float32 inside, rounded once.
#include "interface.h"
#include "parallel.h"

namespace {

// Row i of the result is the sum over t in starts[i] .. starts[i + 1] of weights[t] times row index[t] of the source.
struct Taps {
    long size;  // of the result
    const long *starts, *index;
    const float* weights;
};

// inner elements lie side by side for each pixel: the channels of [B, H, W, C], or one, where images lie as planes
template <class T>
void resample(long outer, long height, long width, long inner, const Taps& down, const Taps& across, const T* x, T* y) {
    long taps = std::max(1L, down.starts[down.size] / std::max(1L, down.size));
    for_ranges(outer * down.size, GRAIN / std::max(1L, across.size * inner * taps), [&](long first, long last) {
        static thread_local Scratch scratch;
        float* sums = scratch.floats((width + W) * (inner == 1));
        for (long r = first; r < last; r++) {
            long i = r % down.size, begin = down.starts[i], end = down.starts[i + 1];
            const T* image = x + r / down.size * height * width * inner;
            T* row = y + r * across.size * inner;
            if (inner == 1) {
                if (begin == end) memset(sums, 0, width * sizeof(float));
                for (long t = begin; t < end; t++) {
                    const T* from = image + down.index[t] * width;
                    Vector weight = all(down.weights[t]);
                    walk(width, [&](long k, long count) {
                        Vector v = take(from + k, count) * weight;
                        store(sums + k, t == begin ? v : v + load(sums + k));
                    });
                }
                float results[W];
                for (long j = 0; j < across.size; j += W) {
                    long count = std::min(across.size - j, (long)W);
                    for (long k = 0; k < count; k++) {
                        long t = across.starts[j + k], stop = across.starts[j + k + 1];
                        float total = t < stop ? across.weights[t] * sums[across.index[t]] : 0.0f;
                        while (++t < stop) total += across.weights[t] * sums[across.index[t]];
                        results[k] = total;
                    }
                    give(row + j, load(results), count);
                }
                continue;
            }
            for (long j = 0; j < across.size; j++) {
                long left = across.starts[j], right = across.starts[j + 1];
                walk(inner, [&](long c, long count) {
                    Vector total = all(0.0f);
                    for (long t = begin; t < end; t++) {
                        const T* from = image + down.index[t] * width * inner + c;
                        Vector sum = all(0.0f);
                        for (long s = left; s < right; s++) {
                            Vector v = take(from + across.index[s] * inner, count), weight = all(across.weights[s]);
                            sum = s == left ? v * weight : fma(v, weight, sum);  // a sum of one term keeps -0
                        }
                        sum = sum * all(down.weights[t]);
                        total = t == begin ? sum : total + sum;
                    }
                    give(row + j * inner + c, total, count);
                });
            }
        }
    });
}

}  // namespace

// sizes: outer, height and width of the source, inner, height and width of the result
EXPORT int resample(int format, const long* sizes, const long* row_starts, const long* rows, const float* row_weights,
                    const long* column_starts, const long* columns, const float* column_weights, Source x, Target y) {
    Taps down{sizes[4], row_starts, rows, row_weights}, across{sizes[5], column_starts, columns, column_weights};
    return for_format(format, [&](auto number) {
        resample<decltype(number)>(sizes[0], sizes[1], sizes[2], sizes[3], down, across, x, y);
    });
}
