// Elementwise functions and their gradients.
#pragma once
#include "functions.h"

namespace {

// An activation: forward(x), and backward(kept, gradient), where what is kept is the result or the input.
struct Identity {
    static constexpr const char* NAME = "identity";
    Vector forward(Vector x) const { return x; }
    Vector backward(Vector, Vector g) const { return g; }
};
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
    Vector backward(Vector x, Vector g) const { return choose(less(x, all(0.0f)), g * all(slope), g); }
};
template <class T>
struct Gelu;
template <>
struct Gelu<float> {
    static constexpr const char* NAME = "gelu";
    Vector forward(Vector x) const { return x * normal_below(x); }
    Vector backward(Vector x, Vector g) const {
        Vector density = exponential<float>(x * x * all(-0.5f)) * all(0.39894228f);
        return g * fma(x, density, normal_below(x));
    }
};

// A smooth function on [0, END) by polynomials through five Chebyshev points of each piece, 0 beyond; within 1e-6.
struct Pieces {
    static constexpr int COUNT = 16, POINTS = 5;
    static constexpr float END = 5.6f, SCALE = (COUNT - 0.5f) / END;  // piece i is around i / SCALE
    alignas(64) float coefficients[POINTS][COUNT];

    template <class F>
    explicit Pieces(F f) {
        for (int piece = 0; piece < COUNT; piece++) {
            double at[POINTS], slopes[POINTS], sums[POINTS] = {};
            for (int i = 0; i < POINTS; i++) {
                at[i] = 0.5 * std::cos((i + 0.5) * M_PI / POINTS);
                slopes[i] = f((piece + at[i]) / SCALE);
            }
            for (int order = 1; order < POINTS; order++)  // divided differences
                for (int i = POINTS - 1; i >= order; i--)
                    slopes[i] = (slopes[i] - slopes[i - 1]) / (at[i] - at[i - order]);
            for (int i = POINTS - 1; i >= 0; i--) {  // sums = sums * (t - at[i]) + slopes[i]
                for (int power = POINTS - 1; power > 0; power--) sums[power] = sums[power - 1] - at[i] * sums[power];
                sums[0] = slopes[i] - at[i] * sums[0];
            }
            for (int power = 0; power < POINTS; power++) coefficients[power][piece] = sums[power];
        }
    }
    Vector operator()(Vector u) const {
        Vector place = u * all(SCALE), piece = nearest(minimum(place, all(COUNT - 1.0f))), t = place - piece;
        Vector sum = look_up(coefficients[POINTS - 1], piece);
        for (int power = POINTS - 2; power >= 0; power--) sum = fma(sum, t, look_up(coefficients[power], piece));
        return choose(less(all(END), u), all(0.0f), sum);
    }
};
static inline double normal_above(double u) { return 0.5 * std::erfc(u * M_SQRT1_2); }
static const Pieces ABOVE([](double u) { return normal_above(u); });
static const Pieces SLOPE_BELOW([](double u) { return normal_above(u) - u * std::exp(-0.5 * u * u) * 0.3989422804014327; });

// What is rounded to a half format: by the probability, and the slope, at -|x|.
template <class T>
struct Gelu {
    static constexpr const char* NAME = "gelu";
    Vector forward(Vector x) const {
        Vector above = ABOVE(magnitude(x));  // 0 from Pieces::END on, and inf times 0 would be NaN
        return choose(less(x, all(0.0f)), x * above, x - minimum(all(Pieces::END), x) * above);
    }
    Vector backward(Vector x, Vector g) const {
        Vector slope = SLOPE_BELOW(magnitude(x));
        return g * choose(less(x, all(0.0f)), slope, all(1.0f) - slope);
    }
};
template <class T>
struct GeluTanh {
    static constexpr const char* NAME = "gelu_tanh";
    // tanh(u) = 2 sigmoid(2u) - 1, so the factor of x is a sigmoid, exact in the tails.
    static Vector twice(Vector x) { return x * fma(x * x, all(2 * 0.035677408f), all(2 * 0.79788456f)); }
    Vector forward(Vector x) const { return x * sigmoid<T>(twice(x)); }
    Vector backward(Vector x, Vector g) const {
        Vector s = sigmoid<T>(twice(x));
        Vector slope = fma(x * x, all(6 * 0.035677408f), all(2 * 0.79788456f));
        return g * fma(x * s * (all(1.0f) - s), slope, s);
    }
};
template <class T>
struct Sigmoid {
    static constexpr const char* NAME = "sigmoid";
    Vector forward(Vector x) const { return sigmoid<T>(x); }
    Vector backward(Vector y, Vector g) const { return g * y * (all(1.0f) - y); }
};
template <class T>
struct Silu {
    static constexpr const char* NAME = "silu";
    Vector forward(Vector x) const { return x * sigmoid<T>(x); }
    Vector backward(Vector x, Vector g) const {
        Vector s = sigmoid<T>(x);
        return g * s * fma(x, all(1.0f) - s, all(1.0f));
    }
};
template <class T>
struct Tanh {
    static constexpr const char* NAME = "tanh";
    Vector forward(Vector x) const { return tanh<T>(x); }
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
struct HardSigmoid {  // bit for bit Paddle's
    static constexpr const char* NAME = "hardsigmoid";
    float slope, offset;
    Vector forward(Vector x) const {
        return minimum(all(1.0f), maximum(all(0.0f), apart(x * all(slope)) + all(offset)));
    }
    Vector backward(Vector y, Vector g) const {
        Vector inside = choose(less(all(0.0f), y), choose(less(y, all(1.0f)), all(1.0f), all(0.0f)), all(0.0f));
        return g * inside * all(slope);
    }
};

template <class T>
struct Elu {
    static constexpr const char* NAME = "elu";
    float alpha, unused;
    Vector forward(Vector x) const { return choose(less(x, all(0.0f)), all(alpha) * exponential_less_one<T>(x), x); }
    Vector backward(Vector x, Vector g) const {
        return choose(less(all(0.0f), x), g, g * all(alpha) * exponential<T>(x));
    }
};
template <class T>
struct Celu {
    static constexpr const char* NAME = "celu";
    float alpha, unused;
    Vector scaled(Vector x) const { return x * all(1.0f / alpha); }
    Vector forward(Vector x) const {
        return choose(less(all(0.0f), x), x, all(alpha) * exponential_less_one<T>(scaled(x)));
    }
    Vector backward(Vector x, Vector g) const {
        return choose(less(all(0.0f), x), g, g * exponential<T>(scaled(x)));
    }
};
template <class T>
struct Selu {
    static constexpr const char* NAME = "selu";
    float scale, alpha;
    Vector forward(Vector x) const {
        return all(scale) * choose(less(all(0.0f), x), x, all(alpha) * exponential_less_one<T>(x));
    }
    Vector backward(Vector x, Vector g) const {
        return g * all(scale) * choose(less(all(0.0f), x), all(1.0f), all(alpha) * exponential<T>(x));
    }
};
template <class T>
struct Softplus {
    static constexpr const char* NAME = "softplus";
    float beta, threshold;
    Vector forward(Vector x) const {
        Vector scaled = x * all(beta), rest = log_one_plus<T>(exponential<T>(-magnitude(scaled)));
        return choose(less(all(threshold), scaled), x, (maximum(all(0.0f), scaled) + rest) * all(1.0f / beta));
    }
    Vector backward(Vector x, Vector g) const {
        Vector scaled = x * all(beta);
        return choose(less(all(threshold), scaled), g, g * sigmoid<T>(scaled));
    }
};
template <class T>
struct LogSigmoid {
    static constexpr const char* NAME = "logsigmoid";
    Vector forward(Vector x) const { return minimum(all(0.0f), x) - log_one_plus<T>(exponential<T>(-magnitude(x))); }
    Vector backward(Vector x, Vector g) const { return g * sigmoid<T>(-x); }
};
struct Softsign {
    static constexpr const char* NAME = "softsign";
    Vector forward(Vector x) const { return x / (all(1.0f) + magnitude(x)); }
    Vector backward(Vector x, Vector g) const {
        Vector divisor = all(1.0f) + magnitude(x);
        return g / (divisor * divisor);
    }
};
struct HardTanh {
    static constexpr const char* NAME = "hardtanh";
    float low, high;
    Vector forward(Vector x) const { return minimum(all(high), maximum(all(low), x)); }
    Vector backward(Vector x, Vector g) const {
        return choose(less(all(low), x), choose(less(x, all(high)), g, all(0.0f)), all(0.0f));
    }
};
template <class T>
struct Mish {
    static constexpr const char* NAME = "mish";
    // tanh(log(1 + e^x)) = n / (n + 2) with n = e^x (e^x + 2), and 1 from x = 20 on, where n would overflow.
    static Vector ratio(Vector e) {
        Vector n = e * (e + all(2.0f));
        return n / (n + all(2.0f));
    }
    Vector forward(Vector x) const {
        return choose(less(all(20.0f), x), x, x * ratio(exponential<T>(minimum(all(20.0f), x))));
    }
    Vector backward(Vector x, Vector g) const {
        Vector e = exponential<T>(minimum(all(20.0f), x)), t = ratio(e);
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
template <class T>
struct Exp {
    static constexpr const char* NAME = "exp";
    Vector forward(Vector x) const { return exponential<T>(x); }
    Vector backward(Vector y, Vector g) const { return g * y; }
};
template <class T>
struct Log {
    static constexpr const char* NAME = "log";
    Vector forward(Vector x) const { return logarithm<T>(x); }
    Vector backward(Vector x, Vector g) const { return g / x; }
};
template <class T>
struct Sin {
    static constexpr const char* NAME = "sin";
    Vector forward(Vector x) const { return wave<T>(x, false); }
    Vector backward(Vector x, Vector g) const { return g * wave<T>(x, true); }
};
template <class T>
struct Cos {
    static constexpr const char* NAME = "cos";
    Vector forward(Vector x) const { return wave<T>(x, true); }
    Vector backward(Vector x, Vector g) const { return -g * wave<T>(x, false); }
};
struct Power {  // x to the power of a whole number and some quarters
    static constexpr const char* NAME = "power";
    float exponent, unused;
    static Vector power(Vector x, float exponent) {
        float size = std::abs(exponent);
        int whole = (int)size, quarters = (int)((size - whole) * 4);
        Vector y = all(1.0f), factor = x;
        for (; whole; whole /= 2, factor = factor * factor)
            if (whole & 1) y = y * factor;
        if (quarters & 2) y = y * root(x);
        if (quarters & 1) y = y * root(root(x));
        return exponent < 0 ? all(1.0f) / y : y;
    }
    Vector forward(Vector x) const { return power(x, exponent); }
    Vector backward(Vector x, Vector g) const { return g * all(exponent) * power(x, exponent - 1); }
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

// Call f with the activation of this name.
template <class F, class... A>
int for_named(const char* name, F f, A... activations) {
    return ((!strcmp(name, A::NAME) && (f(activations), true)) || ...) ? 0 : 1;
}

template <class T, class F>
int for_activation(const char* name, float alpha, float beta, F f) {
    return for_named(
        name, f, Relu{}, Relu6{}, LeakyRelu{alpha, beta}, Gelu<T>{}, GeluTanh<T>{}, Sigmoid<T>{}, Silu<T>{}, Tanh<T>{},
        HardSwish{}, HardSigmoid{alpha, beta}, Scale{alpha, beta}, Elu<T>{alpha, beta}, Mish<T>{}, Square{}, Sqrt{},
        Celu<T>{alpha, beta}, Selu<T>{alpha, beta}, Softplus<T>{alpha, beta}, LogSigmoid<T>{}, Softsign{},
        HardTanh{alpha, beta}, Log<T>{}, Sin<T>{}, Cos<T>{}, Power{alpha, beta}, Rsqrt{}, Exp<T>{}, Abs{}, Clip{alpha, beta});
}

// The ones that a normalisation ends with: all of them know their gradient by their input.
template <class T, class F>
int for_fused(const char* name, F f) {
    return for_named(name, f, Identity{}, Relu{}, Relu6{}, HardSwish{}, Silu<T>{}, Gelu<T>{});
}

}  // namespace
