// Products of matrices that fit a core's cache, of operands that are packed to float32 lanes first. A lane holds STEP
// numbers, which are multiplied with those of another lane and summed: two of bfloat16 where the processor has
// instructions for that, else one number, widened. Sums are float32.
#pragma once
#include <algorithm>
#include <type_traits>

#include "amx.h"
#include "parallel.h"
#include "vector.h"

// One number for each lane.
template <class T>
struct Lanes {
    static constexpr long STEP = 1;
    // How many rows of a left factor are best multiplied at a time, and how many lanes of a sum are: lanes beyond the
    // last are read, and 0.
    static constexpr long TOGETHER = 12, STEPS = 1;
    struct Use {};  // what a thread has while it multiplies
    static Vector multiply_add(Vector a, Vector b, Vector sum) { return fma(a, b, sum); }
    // n numbers of a row, side by side
    static Vector along(const T* row, long n) { return take(row, n); }
    // n numbers of STEP rows as STEP vectors, one row after the other within a lane; a second row may be missing
    static void across(const T* first, const T*, long n, Vector* to) { to[0] = take(first, n); }
    // the numbers of one of the rows
    static Vector row(Vector pairs, long) { return pairs; }
    static Vector across(const Vector* rows) { return rows[0]; }
    // STEP vectors of a row, side by side
    static Vector along(const Vector* row) { return row[0]; }
    // n numbers of packed ones
    static void keep(T* to, Vector packed, long n) { give(to, packed, n); }
};

#if defined(__AVX512BF16__) && defined(__AVX512BW__)
template <>
struct Lanes<BFloat16> {
    static constexpr long STEP = 2, TOGETHER = 12, STEPS = 1;
    struct Use {};
    static Vector multiply_add(Vector a, Vector b, Vector sum) {
        return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b);
    }
    static Vector along(const BFloat16* row, long n) {
        return _mm512_castsi512_ps(_mm512_maskz_loadu_epi16(n < 32 ? (1u << n) - 1 : 0xFFFFFFFF, row));
    }
    static void across(const BFloat16* first, const BFloat16* second, long n, Vector* to) {
        __m512i low = (__m512i)along(first, n), high = second ? (__m512i)along(second, n) : _mm512_setzero_si512();
        to[0] = (Vector)_mm512_permutex2var_epi16(low, mixed(0), high);
        to[1] = (Vector)_mm512_permutex2var_epi16(low, mixed(W), high);
    }
    static Vector row(Vector pairs, long which) {
        __m512i bits = _mm512_castps_si512(pairs);
        bits = which ? _mm512_and_si512(bits, _mm512_set1_epi32(0xFFFF0000)) : _mm512_slli_epi32(bits, 16);
        return _mm512_castsi512_ps(bits);
    }
    static Vector across(const Vector* rows) {
        __m512i both = (__m512i)_mm512_cvtne2ps_pbh(rows[1], rows[0]);
        return (Vector)_mm512_permutex2var_epi16(both, mixed(0, W), both);
    }
    // places from `first` on, each with the one so many behind
    static __m512i mixed(int first, int behind = 2 * W) {
        const __m512i order = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
        const __m512i pairs = _mm512_or_si512(order, _mm512_slli_epi32(order, 16));
        return _mm512_add_epi16(pairs, _mm512_set1_epi32((first + behind) << 16 | first));
    }
    static Vector along(const Vector* row) { return (Vector)_mm512_cvtne2ps_pbh(row[1], row[0]); }
    static void keep(BFloat16* to, Vector packed, long n) {
        if (n == 2 * W) _mm512_storeu_si512(to, _mm512_castps_si512(packed));
        else _mm512_mask_storeu_epi16(to, (1u << n) - 1, _mm512_castps_si512(packed));
    }
};
#endif

#if HAS_AMX
// The same lanes, whose products AMX computes.
struct TileLanes : Lanes<BFloat16> {
    static constexpr long TOGETHER = 2 * amx::SIDE, STEPS = amx::PAIRS;
    using Use = amx::Use;
};
#endif

// Call f with the lanes of a format that are the fastest to multiply here.
template <class T, class F>
static void with_lanes(F f) {
#if HAS_AMX
    if constexpr (std::is_same_v<T, BFloat16>)
        if (amx::granted()) return f(TileLanes{});
#endif
    f(Lanes<T>{});
}

constexpr int ROWS = 6;  // of a block of sums that stays in registers; even, for pairs of rows
#if defined(__AVX512F__)
constexpr int VECTORS = 4;
#else
constexpr int VECTORS = 2;
#endif

static inline long parts(long size, long part) { return (size + part - 1) / part; }

// The left factor of a product: place of the first lane, lanes from one row to the next and from one step to the next.
// Passed by reference: a copy is read as one what was written in two, and waits for all stores before.
struct Left {
    const float* data;
    long row, step;
};

// Where sums go: to float32 memory, which has place for whole blocks, or scaled and rounded to rows of a result.
struct Tile {
    float* to;
    long width;
    void operator()(long i, long v, Vector sum) const { store(to + i * width + v * W, sum); }
};
// Sums that wait in memory for the rest of them.
struct Waiting {
    float* to;
    long width;
    bool first;
    void operator()(long i, long v, Vector sum) const {
        float* place = to + i * width + v * W;
        store(place, first ? sum : sum + load(place));
    }
};
template <class T>
struct Rows {
    T* to;
    long step, columns;
    float scale;
    void operator()(long i, long v, Vector sum) const {
        give(to + i * step + v * W, sum * all(scale), std::min(columns - v * W, (long)W));
    }
};

template <class L, int R, int V, class Out>
static inline void block(long steps, const Left& a, const float* b, long width, const Out& out, long row, long vector) {
    Vector sums[R][V];
#pragma GCC unroll 6
    for (int i = 0; i < R; i++)
#pragma GCC unroll 4
        for (int v = 0; v < V; v++) sums[i][v] = all(0.0f);
    for (long k = 0; k < steps; k++) {
        Vector right[V];
#pragma GCC unroll 4
        for (int v = 0; v < V; v++) right[v] = load(b + k * width + v * W);
#pragma GCC unroll 6
        for (int i = 0; i < R; i++) {
            Vector left = all(a.data[i * a.row + k * a.step]);
#pragma GCC unroll 4
            for (int v = 0; v < V; v++) sums[i][v] = L::multiply_add(left, right[v], sums[i][v]);
        }
    }
#pragma GCC unroll 6
    for (int i = 0; i < R; i++)
#pragma GCC unroll 4
        for (int v = 0; v < V; v++) out(row + i, vector + v, sums[i][v]);
}

template <class L, int R, class Out>
static void some_rows(long vectors, long steps, const Left& a, const float* b, long width, const Out& out, long row) {
    for (long v = 0, groups = parts(vectors, VECTORS); groups; groups--) {
        long count = parts(vectors - v, groups);
        if (count == 1) block<L, R, 1>(steps, a, b + v * W, width, out, row, v);
        else if (count == 2) block<L, R, 2>(steps, a, b + v * W, width, out, row, v);
        else if (count == 3) block<L, R, std::min(3, VECTORS)>(steps, a, b + v * W, width, out, row, v);
        else block<L, R, VECTORS>(steps, a, b + v * W, width, out, row, v);
        v += count;
    }
}

#if HAS_AMX
// The place of a left factor's rows, up to 32; those that lie in columns are turned round into `scratch` first.
static inline amx::Factor left_tiles(long rows, long steps, Left a, float* scratch) {
    if (a.step == 1) return {a.data, a.row * 4, amx::PAIRS * 4, amx::SIDE * a.row * 4};
    for (long i = 0; i < rows; i += W)
        for (long k = 0; k < steps; k += W) {
            Vector square[W];
            for (long j = 0; j < W; j++) square[j] = load(a.data + i + (k + j) * a.step);
            transpose(square);
            for (long j = 0; j < W; j++) store(scratch + i * steps + k * W + j * W, square[j]);
        }
    return {scratch, W * 4, W * W * 4, W * steps * 4};
}

template <class Out>
static void product_by_tiles(long rows, long vectors, long steps, Left a, const float* b, const Out& out) {
    static thread_local Scratch scratch;
    float* turned = scratch.floats(TileLanes::TOGETHER * (steps + 2 * W));
    float* sums = turned + TileLanes::TOGETHER * steps;
    for (long i = 0; i < rows; i += TileLanes::TOGETHER) {
        long some = std::min(rows - i, TileLanes::TOGETHER), tall = parts(some, amx::SIDE);
        amx::Factor left = left_tiles(some, steps, {a.data + i * a.row, a.row, a.step}, turned);
        for (long v = 0; v < vectors; v += 2) {
            long wide = std::min(vectors - v, 2L);
            amx::Factor right{b + v * W, vectors * W * 4, amx::PAIRS * vectors * W * 4, W * 4};
            if constexpr (std::is_same_v<Out, Tile>) {
                float* to = out.to + i * out.width + v * W;
                amx::multiply(tall, wide, steps / amx::PAIRS, left, right, to, out.width, false);
            } else {
                amx::multiply(tall, wide, steps / amx::PAIRS, left, right, sums, 2 * W, false);
                for (long j = 0; j < some; j++)
                    for (long k = 0; k < wide; k++) out(i + j, v + k, load(sums + (2 * j + k) * W));
            }
        }
    }
}
#endif

// Write the product of some rows, of `steps` lanes each, with as many rows of `vectors` vectors. With TileLanes
// a left factor is read, and float32 sums are written, up to the next 16 rows.
template <class L, class Out>
static void product(long rows, long vectors, long steps, const Left& a, const float* b, const Out& out) {
#if HAS_AMX
    if constexpr (std::is_same_v<L, TileLanes>) return product_by_tiles(rows, vectors, steps, a, b, out);
#endif
    constexpr decltype(&some_rows<L, 1, Out>) run[] = {
        some_rows<L, 1, Out>, some_rows<L, 2, Out>, some_rows<L, 3, Out>,
        some_rows<L, 4, Out>, some_rows<L, 5, Out>, some_rows<L, 6, Out>,
    };
    static_assert(sizeof(run) == ROWS * sizeof(*run), "one for each number of rows");
    for (long i = 0, groups = parts(rows, ROWS); groups; groups--) {
        long count = parts(rows - i, groups);
        run[count - 1](vectors, steps, {a.data + i * a.row, a.row, a.step}, b, vectors * W, out, i);
        i += count;
    }
}
