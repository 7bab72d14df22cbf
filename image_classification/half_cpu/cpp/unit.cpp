// Columns of matrices scaled to length one: what channels over all tokens are compared by.
#include <vector>

#include "interface.h"
#include "parallel.h"

namespace {

constexpr long SEVERAL = 4;        // vectors of columns at a time: whole cache lines
constexpr float TINY = 1e-24f;     // added to the squared length

struct Sizes {
    long batch, rows, columns, step, width;  // of x from one row to the next; columns that share a number of the scale
    long heads;                              // numbers of the scale, for the first columns; the others have none
};

// Call f(sample, column, count) for each vector of columns of each sample, neighbours after one another.
template <class F>
void for_strips(const Sizes& s, F f) {
    long strips = (s.columns + SEVERAL * W - 1) / (SEVERAL * W);
    for_tasks(s.batch * strips, [&](long task) {
        long first = task % strips * SEVERAL * W;
        for (long c = first; c < std::min(first + SEVERAL * W, s.columns); c += W)
            f(task / strips, c, std::min(s.columns - c, (long)W));
    });
}

std::vector<float> repeated(const Sizes& s, const float* scale) {
    std::vector<float> all(s.columns, 1.0f);
    for (long c = 0; c < std::min(s.columns, s.heads * s.width); c++) all[c] = scale[c / s.width];
    return all;
}

template <class T>
void unit(const Sizes& s, const T* x, const float* scale, T* y, float* factors) {
    std::vector<float> scales = repeated(s, scale);
    for_strips(s, [&](long b, long c, long count) {
        const T* from = x + b * s.rows * s.step + c;
        T* to = y + b * s.rows * s.columns + c;
        Vector squares = all(0.0f);
        for (long n = 0; n < s.rows; n++) {
            Vector v = take(from + n * s.step, count);
            squares = fma(v, v, squares);
        }
        Vector factor = all(1.0f) / root(squares + all(TINY)), scale = take(&scales[c], count);
        give(factors + b * s.columns + c, factor, count);
        for (long n = 0; n < s.rows; n++) give(to + n * s.columns, take(from + n * s.step, count) * factor * scale, count);
    });
}

template <class T>
void unit_backward(const Sizes& s, const T* x, const float* scale, const float* factors, const T* gradient, T* out,
                   float* scale_gradient) {
    std::vector<float> scales = repeated(s, scale), sums(s.batch * s.columns);
    for_strips(s, [&](long b, long c, long count) {
        const T *from = x + b * s.rows * s.step + c, *g = gradient + b * s.rows * s.columns + c;
        T* to = out + b * s.rows * s.step + c;
        Vector factor = take(factors + b * s.columns + c, count), total = all(0.0f);
        for (long n = 0; n < s.rows; n++)
            total = fma(take(g + n * s.columns, count), take(from + n * s.step, count) * factor, total);
        give(&sums[b * s.columns + c], total, count);
        Vector scaled = factor * take(&scales[c], count);
        for (long n = 0; n < s.rows; n++) {
            Vector along = take(from + n * s.step, count) * factor * total;
            give(to + n * s.step, (take(g + n * s.columns, count) - along) * scaled, count);
        }
    });
    for (long head = 0; head < s.heads; head++) {
        float total = 0;
        for (long b = 0; b < s.batch; b++)
            for (long c = head * s.width; c < (head + 1) * s.width; c++) total += sums[b * s.columns + c];
        scale_gradient[head] = total;
    }
}

}  // namespace

// x is [batch, rows, step], of which the first columns are read; y [batch, rows, columns]; factors are one over the
// lengths, [batch, columns].
EXPORT int unit(int format, const long* numbers, Source x, const float* scale, Target y, float* factors) {
    Sizes s;
    memcpy(&s, numbers, sizeof(s));
    return for_format(format, [&](auto number) { unit<decltype(number)>(s, x, scale, y, factors); });
}

EXPORT int unit_backward(int format, const long* numbers, Source x, const float* scale, const float* factors,
                         Source gradient, Target out, float* scale_gradient) {
    Sizes s;
    memcpy(&s, numbers, sizeof(s));
    return for_format(format, [&](auto number) {
        unit_backward<decltype(number)>(s, x, scale, factors, gradient, out, scale_gradient);
    });
}
