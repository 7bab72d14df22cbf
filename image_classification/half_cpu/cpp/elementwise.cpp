// Conversions, activations, and arithmetic of two tensors with broadcasting: float32 inside, rounded once.
#include "interface.h"
#include "parallel.h"

namespace {

constexpr long GRAIN = 16384;  // elements: less is not worth a thread

template <class From, class To>
void convert(long n, const From* from, To* to) {
    for_ranges(n, GRAIN, [&](long first, long last) {
        walk(last - first, [&](long i, long count) { give(to + first + i, take(from + first + i, count), count); });
    });
}

// An activation: forward(x), and backward(kept, gradient), where what is kept is the result or the input.
struct Relu {
    static constexpr const char* NAME = "relu";
    Vector forward(Vector x) const { return maximum(all(0.0f), x); }
    Vector backward(Vector y, Vector g) const { return choose(less(all(0.0f), y), g, all(0.0f)); }
};
struct Relu6 {
    static constexpr const char* NAME = "relu6";
    Vector forward(Vector x) const { return minimum(all(6.0f), maximum(all(0.0f), x)); }
    Vector backward(Vector y, Vector g) const {
        return choose(less(all(0.0f), y), choose(less(y, all(6.0f)), g, all(0.0f)), all(0.0f));
    }
};
struct LeakyRelu {
    static constexpr const char* NAME = "leaky_relu";
    float slope, unused;
    Vector forward(Vector x) const { return choose(less(x, all(0.0f)), x * all(slope), x); }
    Vector backward(Vector x, Vector g) const { return choose(less(all(0.0f), x), g, g * all(slope)); }
};
struct Gelu {
    static constexpr const char* NAME = "gelu";
    Vector forward(Vector x) const { return x * normal_below(x); }
    Vector backward(Vector x, Vector g) const {
        Vector density = exponential(x * x * all(-0.5f)) * all(0.39894228f);
        return g * fma(x, density, normal_below(x));
    }
};
struct GeluTanh {
    static constexpr const char* NAME = "gelu_tanh";
    // tanh(u) = 2 sigmoid(2u) - 1, so the factor of x is a sigmoid, exact in the tails.
    static Vector twice(Vector x) { return x * fma(x * x, all(2 * 0.035677408f), all(2 * 0.79788456f)); }
    Vector forward(Vector x) const { return x * sigmoid(twice(x)); }
    Vector backward(Vector x, Vector g) const {
        Vector s = sigmoid(twice(x));
        Vector slope = fma(x * x, all(6 * 0.035677408f), all(2 * 0.79788456f));
        return g * fma(x * s * (all(1.0f) - s), slope, s);
    }
};
struct Sigmoid {
    static constexpr const char* NAME = "sigmoid";
    Vector forward(Vector x) const { return sigmoid(x); }
    Vector backward(Vector y, Vector g) const { return g * y * (all(1.0f) - y); }
};
struct Silu {
    static constexpr const char* NAME = "silu";
    Vector forward(Vector x) const { return x * sigmoid(x); }
    Vector backward(Vector x, Vector g) const {
        Vector s = sigmoid(x);
        return g * s * fma(x, all(1.0f) - s, all(1.0f));
    }
};
struct Tanh {
    static constexpr const char* NAME = "tanh";
    Vector forward(Vector x) const { return tanh(x); }
    Vector backward(Vector y, Vector g) const { return g * fma(-y, y, all(1.0f)); }
};
struct HardSwish {
    static constexpr const char* NAME = "hardswish";
    Vector forward(Vector x) const {
        return x * minimum(all(6.0f), maximum(all(0.0f), x + all(3.0f))) * all(1.0f / 6);
    }
    Vector backward(Vector x, Vector g) const {
        Vector slope = choose(less(all(-3.0f), x), fma(x, all(1.0f / 3), all(0.5f)), all(0.0f));
        return g * choose(less(x, all(3.0f)), slope, all(1.0f));
    }
};
struct HardSigmoid {
    static constexpr const char* NAME = "hardsigmoid";
    float slope, offset;
    Vector forward(Vector x) const {
        return minimum(all(1.0f), maximum(all(0.0f), fma(x, all(slope), all(offset))));
    }
    Vector backward(Vector y, Vector g) const {
        return choose(less(all(0.0f), y), choose(less(y, all(1.0f)), g * all(slope), all(0.0f)), all(0.0f));
    }
};

struct Elu {
    static constexpr const char* NAME = "elu";
    float alpha, unused;
    Vector forward(Vector x) const { return choose(less(x, all(0.0f)), all(alpha) * (exponential(x) - all(1.0f)), x); }
    Vector backward(Vector x, Vector g) const {
        return choose(less(x, all(0.0f)), g * all(alpha) * exponential(x), g);
    }
};
struct Mish {
    static constexpr const char* NAME = "mish";
    // tanh(log(1 + e^x)) = n / (n + 2) with n = e^x (e^x + 2), and 1 from x = 20 on, where n would overflow.
    static Vector ratio(Vector e) {
        Vector n = e * (e + all(2.0f));
        return n / (n + all(2.0f));
    }
    Vector forward(Vector x) const { return choose(less(all(20.0f), x), x, x * ratio(exponential(minimum(all(20.0f), x)))); }
    Vector backward(Vector x, Vector g) const {
        Vector e = exponential(minimum(all(20.0f), x)), t = ratio(e);
        Vector slope = fma(x * (e / (e + all(1.0f))), fma(-t, t, all(1.0f)), t);
        return g * choose(less(all(20.0f), x), all(1.0f), slope);
    }
};
struct Square {
    static constexpr const char* NAME = "square";
    Vector forward(Vector x) const { return x * x; }
    Vector backward(Vector x, Vector g) const { return g * (x + x); }
};
struct Sqrt {
    static constexpr const char* NAME = "sqrt";
    Vector forward(Vector x) const { return root(x); }
    Vector backward(Vector y, Vector g) const { return all(0.5f) * g / y; }
};
struct Rsqrt {
    static constexpr const char* NAME = "rsqrt";
    Vector forward(Vector x) const { return all(1.0f) / root(x); }
    Vector backward(Vector y, Vector g) const { return all(-0.5f) * g * y * y * y; }
};
struct Exp {
    static constexpr const char* NAME = "exp";
    Vector forward(Vector x) const { return exponential(x); }
    Vector backward(Vector y, Vector g) const { return g * y; }
};
struct Abs {
    static constexpr const char* NAME = "abs";
    Vector forward(Vector x) const { return magnitude(x); }
    Vector backward(Vector x, Vector g) const {
        return choose(less(x, all(0.0f)), -g, choose(less(all(0.0f), x), g, all(0.0f) * g));
    }
};
struct Clip {
    static constexpr const char* NAME = "clip";
    float low, high;
    Vector forward(Vector x) const { return minimum(all(high), maximum(all(low), x)); }
    Vector backward(Vector x, Vector g) const {
        return choose(less(x, all(low)), all(0.0f), choose(less(all(high), x), all(0.0f), g));
    }
};

struct Scale {  // the gradient needs nothing kept
    static constexpr const char* NAME = "scale";
    float factor, addend;
    Vector forward(Vector x) const { return x * all(factor) + all(addend); }
    Vector backward(Vector, Vector g) const { return g * all(factor); }
};

template <class F>
int for_activation(const char* name, float alpha, float beta, F f) {
    bool found = false;
    auto attempt = [&](auto activation) {
        if (found || strcmp(name, decltype(activation)::NAME)) return;
        found = true;
        f(activation);
    };
    attempt(Relu{}), attempt(Relu6{}), attempt(LeakyRelu{alpha, beta}), attempt(Gelu{}), attempt(GeluTanh{});
    attempt(Sigmoid{}), attempt(Silu{}), attempt(Tanh{}), attempt(HardSwish{}), attempt(HardSigmoid{alpha, beta});
    attempt(Scale{alpha, beta}), attempt(Elu{alpha, beta}), attempt(Mish{}), attempt(Square{}), attempt(Sqrt{});
    attempt(Rsqrt{}), attempt(Exp{}), attempt(Abs{}), attempt(Clip{alpha, beta});
    return found ? 0 : 1;
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

// Rows of the last of four axes; a stride of 0 repeats an element, other strides of the last axis are 1.
template <class T, class Out, class F>
void combine(const long* sizes, const long* left, const long* right, const T* a, const T* b, Out* out, F f) {
    long rows = sizes[0] * sizes[1] * sizes[2], columns = sizes[3];
    auto row = [&](const T* x, const T* y, Out* z, long n) {
        if (left[3] && right[3])
            walk(n, [&](long i, long count) { give(z + i, f(take(x + i, count), take(y + i, count)), count); });
        else if (left[3]) {
            Vector same = all(value(y));
            walk(n, [&](long i, long count) { give(z + i, f(take(x + i, count), same), count); });
        } else if (right[3]) {
            Vector same = all(value(x));
            walk(n, [&](long i, long count) { give(z + i, f(same, take(y + i, count)), count); });
        } else {
            Vector same = f(all(value(x)), all(value(y)));
            walk(n, [&](long i, long count) { give(z + i, same, count); });
        }
    };
    if (rows == 1) {
        for_ranges(columns, GRAIN, [&](long first, long last) {
            row(a + first * left[3], b + first * right[3], out + first, last - first);
        });
        return;
    }
    for_ranges(rows, GRAIN / columns, [&](long first, long last) {
        for (long r = first; r < last; r++) {
            long i = r / (sizes[1] * sizes[2]), j = r / sizes[2] % sizes[1], k = r % sizes[2];
            row(a + i * left[0] + j * left[1] + k * left[2], b + i * right[0] + j * right[1] + k * right[2],
                out + r * columns, columns);
        }
    });
}

}  // namespace

// The number of float32 lanes of a vector.
EXPORT int lanes() { return W; }

EXPORT int convert(int from_format, int to_format, long n, const void* from, void* to) {
    int unknown = 0;
    unknown |= for_format(from_format, [&](auto source) {
        unknown |= for_format(to_format, [&](auto target) {
            convert(n, (const decltype(source)*)from, (decltype(target)*)to);
        });
    });
    return unknown;
}

EXPORT int activation(const char* name, int format, long n, float alpha, float beta, const void* x, void* y) {
    int unknown = 0;
    unknown |= for_format(format, [&](auto number) {
        using T = decltype(number);
        unknown |= for_activation(name, alpha, beta, [&](auto f) {
            for_ranges(n, GRAIN, [&](long first, long last) {
                const T* from = (const T*)x + first;
                T* to = (T*)y + first;
                walk(last - first, [&](long i, long count) { give(to + i, f.forward(take(from + i, count)), count); });
            });
        });
    });
    return unknown;
}

EXPORT int activation_backward(const char* name, int format, long n, float alpha, float beta, const void* kept,
                               const void* gradient, void* out) {
    int unknown = 0;
    unknown |= for_format(format, [&](auto number) {
        using T = decltype(number);
        unknown |= for_activation(name, alpha, beta, [&](auto f) {
            for_ranges(n, GRAIN, [&](long first, long last) {
                const T *data = (const T*)kept + first, *g = (const T*)gradient + first;
                T* to = (T*)out + first;
                walk(last - first, [&](long i, long count) {
                    give(to + i, f.backward(take(data + i, count), take(g + i, count)), count);
                });
            });
        });
    });
    return unknown;
}

// sizes: four axes of the dense result; strides: those of left, then of right, in elements.
EXPORT int arithmetic(const char* name, int format, const long* sizes, const long* strides, const void* left,
                      const void* right, void* out) {
    int unknown = 0;
    unknown |= for_format(format, [&](auto number) {
        using T = decltype(number);
        unknown |= for_arithmetic(name, [&](auto f) {
            combine(sizes, strides, strides + 4, (const T*)left, (const T*)right, (T*)out, f);
        });
    });
    return unknown;
}

// factor times an element that is repeated along the axes whose stride is 0; sizes and strides: four numbers each.
EXPORT int expand(int from_format, int to_format, const long* sizes, const long* strides, float factor, const void* x,
                  void* out) {
    return for_format(from_format, [&](auto number) {
        using T = decltype(number);
        for_format(to_format, [&](auto result) {
            combine(sizes, strides, strides, (const T*)x, (const T*)x, (decltype(result)*)out,
                    [&](Vector a, Vector) { return a * all(factor); });
        });
    });
}

// The product with a mask of bytes, 0 or 1, times a factor: dropout.
EXPORT int mask(int format, long n, float factor, const uint8_t* kept, const void* x, void* out) {
    return for_format(format, [&](auto number) {
        using T = decltype(number);
        for_ranges(n, GRAIN, [&](long first, long last) {
            const T* from = (const T*)x + first;
            T* to = (T*)out + first;
            walk(last - first, [&](long i, long count) {
                give(to + i, take(from + i, count) * load_bytes(kept + first + i, count) * all(factor), count);
            });
        });
    });
}

// Which elements are not zero, as bytes.
EXPORT int kept(long n, const float* drawn, uint8_t* bytes) {
    for_ranges(n, GRAIN, [&](long first, long last) {
        for (long i = first; i < last; i++) bytes[i] = drawn[i] != 0;
    });
    return 0;
}
