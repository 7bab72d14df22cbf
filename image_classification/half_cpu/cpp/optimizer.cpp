// What an optimizer does to one tensor, in one pass over memory; float32 inside, rounded once.
#include "interface.h"
#include "parallel.h"

namespace {

// Gradients times a factor, rounded to the format T of the weights as if they had been written in it.
template <class T, class G>
inline Vector scaled(const G* gradient, float factor, long count) {
    Vector g = take(gradient, count);
    if (factor == 1) return g;
    g = apart(g * all(factor));
    if (sizeof(T) == sizeof(float)) return g;
    T some[W];
    store(some, g);
    return load(some);
}

// What the rules of optimizers share: rule(index, count, gradient, weights) returns the new weights. Float32 weights may
// have a half copy, to which they are rounded in the same pass, and gradients in the format of that copy.
template <class F>
int update(int format, int gradient_format, int copy_format, long n, float factor, const void* gradient, void* weights,
           void* copy, F rule) {
    auto walk_all = [&](auto element, auto given, auto half) {
        using T = decltype(element);
        using G = decltype(given);
        using Half = decltype(half);
        for_ranges(n, GRAIN, [&](long first, long last) {
            walk(last - first, [&](long at, long count) {
                long i = first + at;
                Vector g = scaled<T>((const G*)gradient + i, factor, count);
                Vector w = rule(i, count, element, g, take((const T*)weights + i, count));
                give((T*)weights + i, w, count);
                if (copy) give((Half*)copy + i, w, count);
            });
        });
    };
    if (format != FLOAT32) return for_format(format, [&](auto element) { walk_all(element, element, element); });
    return for_format(copy_format, [&](auto half) {
        gradient_format == FLOAT32 ? walk_all(float{}, float{}, half) : walk_all(float{}, half, half);
    });
}

}  // namespace

// Adam with decoupled weight decay; the powers of the betas, and both averages, are float32 and change in place. The
// order of the operations is that of Paddle's adamw_ where it has AVX-512, bit for bit.
EXPORT int adam(int format, int gradient_format, int copy_format, long n, float factor, float beta1, float beta2,
                float epsilon, float decay, const float* rate, float* power1, float* power2, const void* gradient,
                float* average, float* square, void* weights, void* copy) {
    float root2 = sqrtf(1 - *power2), step = *rate * (root2 / (1 - *power1)), small = epsilon * root2;
    float decayed = *rate * decay, gain1 = 1 - beta1, gain2 = 1 - beta2;
    int status = update(format, gradient_format, copy_format, n, factor, gradient, weights, copy,
                        [&](long i, long count, auto, Vector g, Vector w) {
        Vector m = fma(all(beta1), take(average + i, count), all(gain1) * g);
        Vector v = fma(all(beta2), take(square + i, count), all(gain2) * (g * g));
        give(average + i, m, count);
        give(square + i, v, count);
        return fma(m / (root(v) + all(small)), all(-step), decay ? fma(all(-decayed), w, w) : w);
    });
    *power1 *= beta1;
    *power2 *= beta2;
    return status;
}

// Momentum, Nesterov's or the plain one, with the weight decay in the gradient; the velocity has the weights' format.
EXPORT int momentum(int format, int gradient_format, int copy_format, long n, float factor, float mu, float decay,
                    int nesterov, const float* rate, const void* gradient, void* velocity, void* weights, void* copy) {
    return update(format, gradient_format, copy_format, n, factor, gradient, weights, copy,
                  [&](long i, long count, auto element, Vector g, Vector w) {
        auto* at = (decltype(element)*)velocity + i;
        if (decay) g = apart(w * all(decay)) + g;
        Vector v = apart(take(at, count) * all(mu)) + g;
        give(at, v, count);
        return w - apart((nesterov ? g + apart(v * all(mu)) : v) * all(*rate));
    });
}

// The product is rounded, as Paddle's is where its MKL does not fuse it with the sum; that depends on the processor and on n.
EXPORT int sgd(int format, int gradient_format, int copy_format, long n, float factor, const float* rate,
               const void* gradient, void* weights, void* copy) {
    return update(format, gradient_format, copy_format, n, factor, gradient, weights, copy,
                  [&](long, long, auto, Vector g, Vector w) { return w - apart(g * all(*rate)); });
}

// Sums of the squares of n numbers, SUMS of them: each(index, count, square) calls square(which sum, vector). The order does
// not depend on the number of threads.
template <long SUMS, class F>
static void square_sums(long n, float* out, F each) {
    long part = std::max(GRAIN, (n + 255) / 256), parts = (n + part - 1) / part;
    Floats partial(parts * SUMS);
    for_tasks(parts, [&](long p) {
        Vector total[SUMS][2];
        for (auto& pair : total) pair[0] = pair[1] = all(0.0f);
        walk(std::min(part, n - p * part), [&](long i, long count) {
            each(p * part + i, count, [&](long which, Vector v) {
                total[which][i / W % 2] = fma(v, v, total[which][i / W % 2]);
            });
        });
        for (long which = 0; which < SUMS; which++) partial[p * SUMS + which] = sum(total[which][0] + total[which][1]);
    });
    for (long which = 0; which < SUMS; which++) {
        double total = 0;
        for (long p = 0; p < parts; p++) total += partial[p * SUMS + which];
        out[which] = total;
    }
}

// The sums of squares of tensors, each (format, number of elements, first element).
EXPORT int square_sums(long tensors, const long* described, float* out) {
    int status = 0;
    for (long i = 0; i < tensors; i++, described += 3)
        status |= for_format(described[0], [&](auto element) {
            auto* from = (decltype(element)*)described[2];
            square_sums<1>(described[1], out + i, [&](long at, long count, auto square) { square(0, take(from + at, count)); });
        });
    return status;
}

// Adam's averages of the gradient and of its square, the powers of their betas, all in place, and Adam's direction: the
// quotient of the averages, each divided by what it lacks for having started at 0 where that is corrected, plus the weights
// times their decay. squares: those of weights and direction, or null.
EXPORT int lamb_direction(long n, double beta1, double beta2, float epsilon, float decay, int corrects, const float* weights,
                          const float* gradient, float* average, float* square, double* power1, double* power2,
                          float* direction, float* squares) {
    *power1 *= beta1, *power2 *= beta2;
    Vector lack1 = all(corrects ? (float)(1 - *power1) : 1), lack2 = all(corrects ? (float)(1 - *power2) : 1);
    Vector keep1 = all((float)beta1), keep2 = all((float)beta2);
    Vector gain1 = all((float)(1 - beta1)), gain2 = all((float)(1 - beta2));  // float32 would round the difference off
    float unused[2];
    square_sums<2>(n, squares ? squares : unused, [&](long i, long count, auto add) {
        Vector g = take(gradient + i, count), w = take(weights + i, count);
        Vector m = fma(take(average + i, count), keep1, g * gain1);
        Vector v = fma(take(square + i, count), keep2, g * g * gain2);
        give(average + i, m, count);
        give(square + i, v, count);
        Vector d = m / lack1 / (root(v / lack2) + all(epsilon));
        d = decay ? fma(w, all(decay), d) : d;
        give(direction + i, d, count);
        add(0, w), add(1, within(d, count));
    });
    return 0;
}

// weights -= rate * direction, the rate times the trust ratio, of the roots of squares, where there are any and neither is 0.
EXPORT int lamb_descend(long n, float most, const float* rate, const float* squares, const float* direction,
                        float* weights) {
    float step = *rate;
    if (squares) {
        float above = sqrtf(squares[0]), below = sqrtf(squares[1]), trust = above > 0 && below > 0 ? above / below : 1;
        step *= trust > most ? most : trust;
    }
    for_ranges(n, GRAIN, [&](long first, long last) {
        walk(last - first, [&](long at, long count) {
            long i = first + at;
            give(weights + i, fma(take(direction + i, count), all(-step), take(weights + i, count)), count);
        });
    });
    return 0;
}
