// Products of float16 operands by AMX, which multiplies bfloat16: a number of 11 significant bits is the sum of its
// first 8 and of the rest, both bfloat16, and a product is the sum of four products, each of them exact in float32.
//
// Parts of NaN are NaN, and so is what they are multiplied to. inf has no such parts: rows of the result that it has to do
// with, and no others, so that no row depends on another one, are computed again, widened.
#pragma once
#include <type_traits>
#include <vector>

#include "amx.h"
#include "gemm.h"

#if HAS_AMX
// A result of which some rows are written only.
template <class Finish>
struct Some {
    Finish finish;
    const std::atomic<bool>* marks;  // of its rows
    bool wanted;

    auto row(long m) const { return finish.row(m); }
    template <class Place>
    void write(Place place, long m, long n, long count, float* sums) const {
        if (marks[m].load(std::memory_order_relaxed) == wanted) finish.write(place, m, n, count, sums);
    }
};

// A panel is a row of steps, each of two tiles of 16 rows of 32 numbers of A, or 16 columns of B: the first parts of
// one tile, its rest, and the same of the other. Number k of 32 stands beside number k + 16.
struct Split {
    using Ready = amx::Use;
    static constexpr long SIDE = amx::SIDE, STEP = 2 * amx::PAIRS, TILE = SIDE * SIDE;  // floats of a tile
    static constexpr long ROWS = 2 * SIDE, DEPTH = 192, STRIDE = DEPTH, MOST = 16;
    static_assert(NR == 2 * SIDE && W == SIDE && DEPTH <= KC && DEPTH % STEP == 0, "two tiles each way");

    std::atomic<bool>* broken;  // the rows of all products that are not to be had this way
    long rows;                  // of one product

    // About as many of B as there are sums, so that neither is most of what goes to memory and back.
    static long right_floats(long sums) { return std::max(1L << 18, std::min(1L << 22, sums)); }

    void mark(long index, long first, long count) const {
        for (long m = first; m < first + count; m++) broken[index * rows + m].store(true, std::memory_order_relaxed);
    }

    // Two vectors as pairs of bfloat16: their first parts, and the rest, NaN where there is none, which `check` keeps.
    static void split(Vector a, Vector b, Vector& first, Vector& rest, Vector& check) {
        const __m512i upper = _mm512_set1_epi32(0xFFFF0000);
        auto high = [&](Vector x) { return (Vector)_mm512_and_si512((__m512i)x, upper); };
        auto pair = [&](Vector low, Vector high) {
            return (Vector)_mm512_or_si512(_mm512_srli_epi32((__m512i)low, 16), (__m512i)high);
        };
        Vector a_high = high(a), b_high = high(b), a_low = a - a_high, b_low = b - b_high;
        first = pair(a_high, b_high);
        rest = pair(a_low, b_low);
        check = check + (a_low + b_low);
    }
    // The same of 16 pairs of the 32 vectors from `from` on, `distance` floats apart; beyond `count` they are zero.
    static void split_steps(const float* from, long distance, long count, Vector* first, Vector* rest, Vector& check) {
        auto step = [&](long k) { return k < count ? load(from + k * distance) : all(0.0f); };
        for (long p = 0; p < SIDE; p++) split(step(p), step(p + SIDE), first[p], rest[p], check);
    }
    static void store_tiles(float* to, const Vector* first, const Vector* rest) {
        for (long p = 0; p < SIDE; p++) {
            store(to + p * W, first[p]);
            store(to + TILE + p * W, rest[p]);
        }
    }

    static void look_at(Vector x, Mask& inf, Mask& nan) {
        inf |= equal(magnitude(x), all(INFINITY));
        nan |= is_nan(x);
    }
    // The lanes in which one of some vectors is inf and none of them NaN.
    template <class F>
    static Mask with_inf(long count, F vector) {
        Mask inf = 0, nan = 0;
        for (long k = 0; k < count; k++) look_at(vector(k), inf, nan);
        return inf & ~nan;
    }

    template <class Left>
    void pack_left(long index, const Left& a, long m0, long count, long k0, long kc, float* panels) const {
        static thread_local Scratch scratch;
        float* wide = scratch.floats(ROWS * KS + W);
        for (long m = 0; m < count; m += SIDE) {
            if (m % ROWS == 0) a.pack(m0 + m, std::min(count - m, ROWS), k0, kc, wide, SIDE);
            const float* from = wide + m % ROWS * KS;
            float* to = panels + m / ROWS * ROWS * STRIDE + m % ROWS * 2 * SIDE;
            long some = std::min(count - m, SIDE);
            if (Left::COLUMNS) split_columns(index, m0 + m, some, kc, from, to);
            else split_rows(index, m0 + m, some, kc, from, to);
        }
    }
    void split_columns(long index, long m, long count, long kc, const float* from, float* to) const {
        Vector check = all(0.0f), first[SIDE], rest[SIDE];
        for (long k = 0; k < kc; k += STEP, to += 4 * TILE) {
            split_steps(from + k * SIDE, SIDE, kc - k, first, rest, check);
            transpose(first);
            transpose(rest);
            store_tiles(to, first, rest);
        }
        if (!any(is_nan(check))) return;
        Mask inf = with_inf(kc, [=](long k) { return load(from + k * SIDE); });
        for (long r = 0; r < count; r++)
            if (inf >> r & 1) mark(index, m + r, 1);
    }
    void split_rows(long index, long m, long count, long kc, const float* from, float* to) const {
        for (long r = 0; r < count; r++) {
            Vector check = all(0.0f), first, rest;
            const float* row = from + r * KS;
            auto some = [&](long k) { return k < kc ? take(row + k, std::min(kc - k, (long)W)) : all(0.0f); };
            for (long k = 0; k < kc; k += STEP) {
                float* place = to + k / STEP * 4 * TILE + r * W;
                split(some(k), some(k + SIDE), first, rest, check);
                store(place, first);
                store(place + TILE, rest);
            }
            if (!any(is_nan(check))) continue;
            Mask inf = 0, nan = 0;
            for (long k = 0; k < kc; k += W) look_at(some(k), inf, nan);
            if (inf && !nan) mark(index, m + r, 1);
        }
    }

    template <class Right>
    void pack_right(long index, const Right& b, long n0, long columns, long k0, long kc, float* panels,
                    long distance) const {
        static thread_local Scratch scratch;
        constexpr long WIDE = DEPTH * NR + 4 * W;
        float* wide = scratch.floats(GROUP * WIDE);
        Vector check = all(0.0f), first[SIDE], rest[SIDE];
        b.pack(n0, columns, k0, kc, wide, WIDE);
        for (long n = 0; n < columns; n += SIDE) {
            const float* from = wide + n / NR * WIDE + n % NR;
            float* to = panels + n / NR * distance + n % NR * 2 * SIDE;
            for (long k = 0; k < kc; k += STEP) {
                split_steps(from + k * NR, NR, kc - k, first, rest, check);
                store_tiles(to + k / STEP * 4 * TILE, first, rest);
            }
        }
        if (!any(is_nan(check))) return;
        for (long n = 0; n < columns; n += SIDE) {
            const float* from = wide + n / NR * WIDE + n % NR;
            if (with_inf(kc, [=](long k) { return load(from + k * NR); })) return mark(index, 0, rows);
        }
    }

    // What is fetched for later, `ahead` floats from `next` on, is spread over the steps.
    template <bool>
    void multiply(long rows, long columns, long kc, const float* a, const float* b, float* c, bool first,
                  const float* next, long ahead) const {
        long steps = parts(kc, STEP);
        if (rows > SIDE && columns > SIDE) multiply_tiles<2, 2>(steps, a, b, c, first, next, ahead);
        else if (rows > SIDE) multiply_tiles<2, 1>(steps, a, b, c, first, next, ahead);
        else if (columns > SIDE) multiply_tiles<1, 2>(steps, a, b, c, first, next, ahead);
        else multiply_tiles<1, 1>(steps, a, b, c, first, next, ahead);
    }
    template <int R, int C>
    static void multiply_tiles(long steps, const float* a, const float* b, float* c, bool first, const float* next,
                               long ahead) {
        constexpr long TILE_LINE = SIDE * sizeof(float);
        amx::begin<R, C>(c, NR, !first);
        auto left = [&](long part) __attribute__((always_inline)) {
            _tile_loadd(4, a + part * TILE, TILE_LINE);
            if (R > 1) _tile_loadd(5, a + (2 + part) * TILE, TILE_LINE);
        };
        auto right = [&](long part) __attribute__((always_inline)) {
            _tile_loadd(6, b + part * TILE, TILE_LINE);
            if (C > 1) _tile_loadd(7, b + (2 + part) * TILE, TILE_LINE);
        };
        long share = parts(parts(ahead, 16), steps) * 16;
        for (long step = 0; step < steps; step++, a += 4 * TILE, b += 4 * TILE, next += share) {
            for (long i = 0; i < share; i += 16) _mm_prefetch((const char*)(next + i), _MM_HINT_T1);
            right(0);
            left(0);
            amx::add_products<R, C>();
            right(1);
            amx::add_products<R, C>();
            left(1);
            amx::add_products<R, C>();
            right(0);
            amx::add_products<R, C>();
        }
        amx::end<R, C>(c, NR);
    }
};
#endif

// Compute a batch of products, as `compute` does. The way does not depend on the number of rows, and so no row does.
template <class Left, class Right, class Finish>
static void products(long count, long M, long N, long K, Left left, Right right, Finish finish) {
#if HAS_AMX
    if constexpr (std::is_same_v<typename decltype(left(0))::Number, Float16>)
        if (K > amx::PAIRS && amx::granted()) {  // fewer fill no tile
            std::vector<std::atomic<bool>> broken(count * M);
            auto some = [&](bool wanted) {
                return [&, wanted](long index) {
                    return Some<decltype(finish(0))>{finish(index), broken.data() + index * M, wanted};
                };
            };
            compute(Split{broken.data(), M}, count, M, N, K, left, right, some(false));
            for (const auto& one : broken)
                if (one) return compute(Widened{}, count, M, N, K, left, right, some(true));
            return;
        }
#endif
    compute(Widened{}, count, M, N, K, left, right, finish);
}
