// What an optimizer does to one tensor, in one pass over memory; float32.
#include "interface.h"
#include "parallel.h"

namespace {

constexpr long GRAIN = 16384;  // elements: less is not worth a thread

}  // namespace

// Adam's averages of the gradient and of its square, in place, and its direction, their quotient, each divided by what
// it lacks for having started at 0, plus the weights times their decay. gain: 1 - beta, which float32 would round off.
EXPORT int adam_direction(long n, float beta1, float beta2, float gain1, float gain2, float lack1, float lack2,
                          float epsilon, float decay, const float* weights, const float* gradient, float* average,
                          float* square, float* direction) {
    for_ranges(n, GRAIN, [&](long first, long last) {
        walk(last - first, [&](long at, long count) {
            long i = first + at;
            Vector g = take(gradient + i, count);
            Vector m = fma(take(average + i, count), all(beta1), g * all(gain1));
            Vector v = fma(take(square + i, count), all(beta2), g * g * all(gain2));
            give(average + i, m, count);
            give(square + i, v, count);
            Vector d = m / all(lack1) / (root(v / all(lack2)) + all(epsilon));
            give(direction + i, decay ? fma(take(weights + i, count), all(decay), d) : d, count);
        });
    });
    return 0;
}

// The sum of squares.
EXPORT int square_sum(long n, const float* x, float* out) {
    long part = std::max(GRAIN, (n + 255) / 256), parts = (n + part - 1) / part;  // whatever the number of threads
    float* partial = (float*)malloc(parts * sizeof(float));
    for_tasks(parts, [&](long p) {
        const float* from = x + p * part;
        Vector total[2] = {all(0.0f), all(0.0f)};
        walk(std::min(part, n - p * part), [&](long i, long count) {
            Vector v = take(from + i, count);
            total[i / W % 2] = fma(v, v, total[i / W % 2]);
        });
        partial[p] = sum(total[0] + total[1]);
    });
    double total = 0;
    for (long p = 0; p < parts; p++) total += partial[p];
    *out = total;
    free(partial);
    return 0;
}

// weights -= rate * direction
EXPORT int descend(long n, float rate, const float* direction, float* weights) {
    for_ranges(n, GRAIN, [&](long first, long last) {
        walk(last - first, [&](long i, long count) {
            give(weights + first + i, fma(take(direction + first + i, count), all(-rate), take(weights + first + i, count)),
                 count);
        });
    });
    return 0;
}
