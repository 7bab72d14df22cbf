// Convolutions of single pixels of bfloat16 images [B, H, W, C] by AVX512-BF16, and what follows them. Sums stay in registers
// until they are results; filters lie in panels that a core's first cache keeps, pixels in its second one.
#include <cpuid.h>

#include <utility>

#include "depthwise.h"
#include "interface.h"
#include "lanes.h"

#if defined(__AVX512BF16__) && defined(__AVX512BW__)
namespace dots {

using Pairs = Lanes<BFloat16>;
constexpr long PANEL = VECTORS * W;          // results whose filters lie together
constexpr int MOST = 7;                      // pixels at a time: their sums and what they are multiplied with fill the registers
constexpr long PIXELS = 56 * MOST;           // of a task
constexpr long NUMBERS = 1 << 17;            // of the pixels of a task
constexpr long FEW = 4 * MOST;               // pixels of a task that are too few to read all filters for

// Results of a panel: clamp(factor * sum + addend + residual).
struct Results {
    BFloat16* to;
    long step;
    const float *factor, *addend;
    const BFloat16* residual;  // may be `to`
    Vector low, high;
};

// What is asked for while something else is multiplied.
struct Ahead {
    const char* from;
    long bytes;
};

// R pixels of some steps with V vectors of results.
template <int R, int V, bool ENDS, bool ADDS>
static void block(long steps, const float* left, const float* right, const Results& out, long row, Ahead ahead) {
    Vector sums[R][V];
    const long K = steps, first = row * out.step;
#pragma GCC unroll 7
    for (int i = 0; i < R; i++)
#pragma GCC unroll 4
        for (int v = 0; v < V; v++) sums[i][v] = all(0.0f);
#pragma GCC unroll 7
    for (int i = 0; i < R; i++)
#pragma GCC unroll 4
        for (int v = 0; v < V; v += 2) {
            __builtin_prefetch(out.to + first + (i + R) * out.step + v * W, 1);
            if (ADDS) __builtin_prefetch(out.residual + first + (i + R) * out.step + v * W);
        }
    for (long i = 0; i < ahead.bytes; i += 64) __builtin_prefetch(ahead.from + i, 0, 2);
    left += row * K;
    for (long k = 0; k < steps; k++) {
        Vector filters[V];
#pragma GCC unroll 4
        for (int v = 0; v < V; v++) filters[v] = load(right + (k * V + v) * W);
#pragma GCC unroll 7
        for (int i = 0; i < R; i++) {
            Vector pair = all(left[i * K + k]);
#pragma GCC unroll 4
            for (int v = 0; v < V; v++) sums[i][v] = Pairs::multiply_add(pair, filters[v], sums[i][v]);
        }
    }
#pragma GCC unroll 4
    for (int v = 0; v < V; v++) {
        Vector factor = all(1.0f), addend = factor;
        if (ENDS) factor = load(out.factor + v * W), addend = load(out.addend + v * W);
#pragma GCC unroll 7
        for (int i = 0; i < R; i++) {
            const long at = first + i * out.step + v * W;
            Vector sum = sums[i][v];
            if (ENDS) sum = fma(sum, factor, addend);
            if (ADDS) sum = sum + load(out.residual + at);
            if (ENDS) sum = minimum(out.high, maximum(out.low, sum));
            store(out.to + at, sum);
        }
    }
}

template <int V, bool ENDS, bool ADDS, int... R>
static void panel(long rows, long steps, const float* left, const float* right, const Results& out, Ahead ahead,
                  std::integer_sequence<int, R...>) {
    static constexpr decltype(&block<1, V, ENDS, ADDS>) run[] = {block<R + 1, V, ENDS, ADDS>...};
    const long all = parts(rows, MOST), each = parts(ahead.bytes, all * 64) * 64;
    for (long i = 0, groups = all; groups; groups--) {
        long count = parts(rows - i, groups);
        run[count - 1](steps, left, right, out, i, {ahead.from, std::min(each, ahead.bytes)});
        i += count, ahead.from += each, ahead.bytes = std::max(0L, ahead.bytes - each);
    }
}

template <bool ENDS, bool ADDS>
static void panel(long vectors, long rows, long steps, const float* left, const float* right, const Results& out, Ahead ahead) {
    constexpr std::make_integer_sequence<int, MOST> sizes;
    if (vectors == 1) panel<1, ENDS, ADDS>(rows, steps, left, right, out, ahead, sizes);
    else if (vectors == 2) panel<2, ENDS, ADDS>(rows, steps, left, right, out, ahead, sizes);
    else if (vectors == 3) panel<3, ENDS, ADDS>(rows, steps, left, right, out, ahead, sizes);
    else panel<4, ENDS, ADDS>(rows, steps, left, right, out, ahead, sizes);
}

// The pixels that some results read where they move by strides, side by side.
static void copy_read(const Numbers& s, const BFloat16* x, long first, long last, BFloat16* to) {
    for (long p = first; p < last; p++, to += s.in_channels) {
        long b = p / (s.out_height * s.out_width), i = p / s.out_width % s.out_height, j = p % s.out_width;
        const BFloat16* from = x + ((b * s.height + i * s.stride[0]) * s.width + j * s.stride[1]) * s.in_channels;
        memcpy(to, from, s.in_channels * sizeof(BFloat16));
    }
}

static void convolve(const Numbers& s, const BFloat16* x, const float* filters, const Results& results) {
    long K = s.in_channels, N = s.out_channels, pixels = s.batch * s.out_height * s.out_width, panels = parts(N, PANEL);
    long threads = omp_get_max_threads(), most = std::clamp(NUMBERS / K, (long)MOST, PIXELS);
    long tasks = parts(parts(pixels, most), threads) * threads, groups = 1;
    // Of few pixels each thread has some of the panels instead.
    if (pixels < tasks * FEW) tasks = parts(pixels, most), groups = std::min(panels, parts(threads, tasks));
    for_tasks(tasks * groups, [&](long task) {
        static thread_local Scratch scratch;
        long group = task % groups, part = task / groups, first = pixels * part / tasks, last = pixels * (part + 1) / tasks;
        const BFloat16* left = x + first * K;
        if (s.stride[0] != 1 || s.stride[1] != 1) {
            BFloat16* read = (BFloat16*)scratch.floats(parts((last - first) * K, 2));
            copy_read(s, x, first, last, read), left = read;
        }
        for (long panel = panels * group / groups; panel < panels * (group + 1) / groups; panel++) {
            long n = panel * PANEL, at = first * N + n, width = std::min(N - n, PANEL);
            Results out{results.to + at, N, results.factor + n, results.addend + n, results.residual + at, results.low, results.high};
            const float* right = filters + n * (K / 2);
            Ahead ahead{(const char*)(right + width * (K / 2)), std::min(N - n - width, PANEL) * K * 2};
            auto run = results.residual ? dots::panel<true, true> : results.factor ? dots::panel<true, false> : dots::panel<false, false>;
            run(width / W, last - first, K / 2, (const float*)left, right, out, ahead);
        }
    });
}

}  // namespace dots
#endif

// Filters [inputs, outputs], pairs of inputs and whole vectors of outputs, in the order of the next function.
EXPORT int dot_filters(long inputs, long outputs, const void* filters, float* out) {
#if defined(__AVX512BF16__) && defined(__AVX512BW__)
    for_ranges(inputs / 2, 16, [&](long first, long last) {
        for (long k = first; k < last; k++)
            for (long n = 0; n < outputs; n += W) {
                const BFloat16* from = (const BFloat16*)filters + 2 * k * outputs + n;
                long panel = n / dots::PANEL * dots::PANEL, width = std::min(outputs - panel, dots::PANEL);
                Vector pairs[2];
                dots::Pairs::across(from, from + outputs, W, pairs);
                store(out + panel * (inputs / 2) + k * width + n - panel, pairs[0]);
            }
    });
    return 0;
#else
    return 1;
#endif
}

// numbers: as in convolution.cpp, of single pixels, without groups and padding. clamp(factor * convolution + addend +
// residual) from low to high. Factors and addends may be null, and then nothing follows; the residual may be null, or the
// result itself.
EXPORT int dot_convolution(const long* numbers, float low, float high, const void* images, const float* filters, void* out,
                           const float* factor, const float* addend, const void* residual) {
#if defined(__AVX512BF16__) && defined(__AVX512BW__)
    Numbers s;
    memcpy(&s, numbers, sizeof(s));
    dots::convolve(s, (const BFloat16*)images, filters,
             {(BFloat16*)out, s.out_channels, factor, addend, (const BFloat16*)residual, all(low), all(high)});
    return 0;
#else
    return 1;
#endif
}

// Whether the processor computes vectors of 512 bits in two halves: Zen 4 alone of its family has them.
EXPORT int halves_vectors() {
    unsigned a = 0, b, c, d;
    __builtin_cpu_init();
    __get_cpuid(1, &a, &b, &c, &d);
    unsigned family = (a >> 8 & 15) + (a >> 20 & 255);
    return __builtin_cpu_is("amd") && __builtin_cpu_supports("avx512f") && family == 0x19;
}
