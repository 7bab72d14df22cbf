// Arithmetic of two tensors, functions of a dense one and of one that may be repeated, and the gradients of these: float32
// inside, rounded once.
#include "broadcast.h"
#include "functions.h"

namespace {

constexpr float IGNORED = -100.0f;  // the label that counts for no loss

// 0 where the condition is not above 0; NaN hides in neither.
inline Vector where_positive(Vector condition, Vector result) {
    return choose(less(condition, all(0.0f)), all(0.0f), choose(equal(condition, all(0.0f)), all(0.0f), result));
}

template <class F>
int for_arithmetic(const char* name, F f) {
    if (!strcmp(name, "add")) f([](Vector a, Vector b) { return a + b; });
    else if (!strcmp(name, "subtract")) f([](Vector a, Vector b) { return a - b; });
    else if (!strcmp(name, "subtract_from")) f([](Vector a, Vector b) { return b - a; });
    else if (!strcmp(name, "multiply")) f([](Vector a, Vector b) { return a * b; });
    else if (!strcmp(name, "divide")) f([](Vector a, Vector b) { return a / b; });
    else return 1;
    return 0;
}

template <class T, class F>
int for_pair(const char* name, F f) {
    if (!strcmp(name, "maximum")) f([](Vector a, Vector b) { return largest(a, b); });
    else if (!strcmp(name, "minimum")) f([](Vector a, Vector b) { return smallest(a, b); });
    else if (!strcmp(name, "prelu")) f([](Vector a, Vector b) { return choose(less(all(0.0f), a), a, a * b); });
    else if (!strcmp(name, "divergence")) f([](Vector a, Vector b) {
        return where_positive(b, b * (logarithm<T>(b) - a));
    });
    else if (!strcmp(name, "smooth_l1")) f([](Vector a, Vector b) {
        Vector gap = magnitude(a - b);
        return choose(less(gap, all(1.0f)), all(0.5f) * gap * gap, gap - all(0.5f));
    });
    else if (!strcmp(name, "sigmoid_cross_entropy")) f([](Vector a, Vector b) {
        Vector loss = maximum(all(0.0f), a) - a * b + log_one_plus<T>(exponential<T>(-magnitude(a)));
        return choose(equal(b, all(IGNORED)), all(0.0f), loss);
    });
    else return 1;
    return 0;
}

// The gradients of the left or the right operand, from both and the gradient of the result.
template <class T, class F>
int for_slope(const char* name, F f) {
    auto shared = [](Vector g, Mask wins, Mask ties) {
        return choose(wins, g, all(0.0f) * g) + choose(ties, g * all(0.5f), all(0.0f) * g);
    };
    if (!strcmp(name, "greater")) f([=](Vector a, Vector b, Vector g) { return shared(g, less(b, a), equal(a, b)); });
    else if (!strcmp(name, "less")) f([=](Vector a, Vector b, Vector g) { return shared(g, less(a, b), equal(a, b)); });
    else if (!strcmp(name, "prelu")) f([](Vector a, Vector b, Vector g) { return choose(less(all(0.0f), a), g, g * b); });
    else if (!strcmp(name, "prelu_weight")) f([](Vector a, Vector b, Vector g) {
        return choose(less(all(0.0f), a), all(0.0f), g * a);
    });
    else if (!strcmp(name, "divergence")) f([](Vector, Vector b, Vector g) {
        return where_positive(b, -b * g);
    });
    else if (!strcmp(name, "smooth_l1")) f([](Vector a, Vector b, Vector g) {
        return smallest(all(1.0f), largest(all(-1.0f), a - b)) * g;
    });
    else if (!strcmp(name, "sigmoid_cross_entropy")) f([](Vector a, Vector b, Vector g) {
        return choose(equal(b, all(IGNORED)), all(0.0f), (sigmoid<T>(a) - b) * g);
    });
    else return 1;
    return 0;
}

}  // namespace

// sizes: four axes of the dense result; strides: those of the left tensor, which arithmetic alone may repeat, then of the
// right one, in elements.
EXPORT int pair(const char* name, int format, const long* sizes, const long* strides, const void* left, const void* right,
                void* out) {
    return for_format(format, [&](auto number) {
        using T = decltype(number);
        auto run = [&](auto any, auto f) {
            combine<any.value>(sizes, strides, strides + 4, (const T*)left, (const T*)right, (T*)out,
                               [f](Vector a, Vector b, long, long) { return f(a, b); });
        };
        return int(for_arithmetic(name, [&](auto f) { run(std::true_type(), f); }) &&
                   for_pair<T>(name, [&](auto f) { run(std::false_type(), f); }));
    });
}

// The gradient of an operand before it is summed over what repeats it; that of the result is dense.
EXPORT int slope(const char* name, int format, int out_format, const long* sizes, const long* strides, const void* left,
                 const void* right, const void* gradient, void* out) {
    return for_format(format, [&](auto number) {
        using T = decltype(number);
        return for_slope<T>(name, [&](auto f) {
            auto run = [&](auto* to) {
                combine<false>(sizes, strides, strides + 4, (const T*)left, (const T*)right, to,
                        [&](Vector a, Vector b, long at, long count) {
                            return f(a, b, take((const T*)gradient + at, count));
                        });
            };
            if (out_format == FLOAT32) run((float*)out);
            else run((T*)out);
        });
    });
}
