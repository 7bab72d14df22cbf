// Cross-entropy of rows of logits, with whole numbers or probabilities as labels; float32 inside, rounded once.
#include "rows.h"

namespace {

// Paddle's: what is further below the largest logit counts as if it lay there, so that no logarithm is infinite.
constexpr float LOWEST = -64.0f;

bool are_classes(long rows, long columns, long ignored, const long* labels) {
    for (long r = 0; r < rows; r++)
        if (labels[r] != ignored && (labels[r] < 0 || labels[r] >= columns)) return false;
    return true;
}

template <class T>
void cross_entropy(long rows, long columns, long ignored, const T* from, const long* labels, const T* soft, T* rounded,
                   float* probabilities, T* losses) {
    for_rows(rows, columns, [&](long r, float* row) {
        const T* x = from + r * columns;
        auto [largest, total] = exponentials(columns, x, row, LOWEST);
        float logarithm = std::log(total), loss = 0.0f;
        Vector factor = all(1.0f / total), top = all(largest), rest = all(logarithm);
        walk(columns, [&](long i, long count) {
            Vector p = load(row + i) * factor;
            give(rounded + r * columns + i, p, count);
            if ((void*)rounded != probabilities) give(probabilities + r * columns + i, p, count);
        });
        if (soft)
            loss = sum_over(columns, [&](long i, long count) {
                return take(soft + r * columns + i, count) * (rest - maximum(all(LOWEST), take(x + i, count) - top));
            });
        else if (labels[r] != ignored) {
            float gap = value(x + labels[r]) - largest;
            loss = logarithm - (gap < LOWEST ? LOWEST : gap);
        }
        put(losses + r, loss);
    });
}

template <class T>
void cross_entropy_backward(long rows, long columns, long ignored, const float* probabilities, const long* labels,
                            const T* soft, const T* gradient, T* out) {
    for_rows(rows, columns, [&](long r, float*) {
        const float* p = probabilities + r * columns;
        const T* shares = soft + r * columns;
        T* to = out + r * columns;
        float slope = value(gradient + r);
        if (soft)
            walk(columns, [&](long i, long count) {
                give(to + i, (take(p + i, count) - take(shares + i, count)) * all(slope), count);
            });
        else if (labels[r] == ignored)
            memset(to, 0, columns * sizeof(T));
        else {
            walk(columns, [&](long i, long count) { give(to + i, take(p + i, count) * all(slope), count); });
            put(to + labels[r], (p[labels[r]] - 1.0f) * slope);
        }
    });
}

}  // namespace

// Labels are one whole number for each row, or `soft` has a share for each class; 1 for a label that is no class. The
// backward pass wants the probabilities unrounded: one that was rounded to 1 would leave its class without gradient.
EXPORT int cross_entropy(int format, long rows, long columns, long ignored, Source x, const long* labels, Source soft,
                         Target rounded, float* probabilities, Target losses) {
    if (labels && !are_classes(rows, columns, ignored, labels)) return 1;
    return for_format(format, [&](auto number) {
        cross_entropy<decltype(number)>(rows, columns, ignored, x, labels, soft, rounded, probabilities, losses);
    });
}

EXPORT int cross_entropy_backward(int format, long rows, long columns, long ignored, const float* probabilities,
                                  const long* labels, Source soft, Source gradient, Target out) {
    if (labels && !are_classes(rows, columns, ignored, labels)) return 1;  // somebody may have written them since
    return for_format(format, [&](auto number) {
        cross_entropy_backward<decltype(number)>(rows, columns, ignored, probabilities, labels, soft, gradient, out);
    });
}
