// Matrix products in float32 of operands in any of the three formats: blocks are widened while they are packed, so that
// a product of half numbers costs no more than one of float32 numbers.
//
// Out[m, n] = sum over k of A[m, k] B[k, n]. A tile of the result is computed by one thread from blocks of KC columns of
// A and rows of B; the sums stay float32 until `finish(m, n, count, sums)` writes a row of the tile.
#pragma once
#include "parallel.h"
#include "vector.h"

#if defined(__AVX512F__)
constexpr int MR = 14;
constexpr long M_TILE = 12 * MR;
#else
constexpr int MR = 6;
constexpr long M_TILE = 24 * MR;
#endif
constexpr int NR = 2 * W;
constexpr long N_TILE = 256, KC = 256;
// Distances that are no powers of two: of the rows of A's panels, with room for a vector beyond the end, and of B's panels.
constexpr long KS = KC + 16, PANEL = NR * KC + 4 * W;

// A panel of A holds MR rows: side by side for each k (COLUMNS), or each row as it is.
template <int ROWS, int VECTORS, bool COLUMNS>
static inline void multiply_panels(long kc, const float* a, const float* b, float* c, bool first) {
    Vector sums[ROWS][VECTORS];
#pragma GCC unroll 14
    for (int i = 0; i < ROWS; i++)
#pragma GCC unroll 2
        for (int v = 0; v < VECTORS; v++) sums[i][v] = first ? all(0.0f) : load(c + i * N_TILE + v * W);
    for (long k = 0; k < kc; k++) {
        Vector right[VECTORS];
#pragma GCC unroll 2
        for (int v = 0; v < VECTORS; v++) right[v] = load(b + k * NR + v * W);
        _mm_prefetch((const char*)(b + (k + 8) * NR), _MM_HINT_T0);
        _mm_prefetch((const char*)(b + (k + 8) * NR + 16), _MM_HINT_T0);
#pragma GCC unroll 14
        for (int i = 0; i < ROWS; i++) {
            Vector left = all(COLUMNS ? a[k * MR + i] : a[i * KS + k]);
#pragma GCC unroll 2
            for (int v = 0; v < VECTORS; v++) sums[i][v] = fma(left, right[v], sums[i][v]);
        }
    }
#pragma GCC unroll 14
    for (int i = 0; i < ROWS; i++)
#pragma GCC unroll 2
        for (int v = 0; v < VECTORS; v++) store(c + i * N_TILE + v * W, sums[i][v]);
}

template <bool COLUMNS>
static void multiply_panels(long rows, long columns, long kc, const float* a, const float* b, float* c, bool first) {
    if (columns > W) {
        if (rows > MR / 2) multiply_panels<MR, 2, COLUMNS>(kc, a, b, c, first);
        else if (rows > 2) multiply_panels<MR / 2, 2, COLUMNS>(kc, a, b, c, first);
        else multiply_panels<2, 2, COLUMNS>(kc, a, b, c, first);
    } else {
        if (rows > MR / 2) multiply_panels<MR, 1, COLUMNS>(kc, a, b, c, first);
        else multiply_panels<MR / 2, 1, COLUMNS>(kc, a, b, c, first);
    }
}

// Ask for n elements that are read soon. An address beyond the tensor does no harm.
template <class T>
static inline void fetch(const T* from, long n) {
    for (long i = 0; i < n; i += 64 / (long)sizeof(T)) _mm_prefetch((const char*)(from + i), _MM_HINT_T0);
}

// Compute one tile. a.pack(m, rows, k, kc, panels) and b.pack(n, columns, k, kc, panels) fill whole panels with float32.
template <class A, class B, class Finish>
static void product_tile(long m0, long m1, long n0, long n1, long K, const A& a, const B& b, const Finish& finish) {
    static thread_local Scratch scratch;
    float* left = scratch.floats(M_TILE * KS + N_TILE / NR * PANEL + (M_TILE + MR) * N_TILE + 64);
    float* right = left + M_TILE * KS;
    float* tile = right + N_TILE / NR * PANEL;
    if (K == 0) memset(tile, 0, M_TILE * N_TILE * sizeof(float));
    for (long k = 0; k < K; k += KC) {
        long kc = std::min(KC, K - k);
        a.pack(m0, m1 - m0, k, kc, left);
        b.pack(n0, n1 - n0, k, kc, right);
        for (long n = n0; n < n1; n += NR)
            for (long m = m0; m < m1; m += MR)
                multiply_panels<A::COLUMNS>(
                    m1 - m, n1 - n, kc, left + (m - m0) * KS, right + (n - n0) / NR * PANEL,
                    tile + (m - m0) * N_TILE + n - n0,
                    k == 0);
    }
    for (long m = m0; m < m1; m++) finish(m, n0, n1 - n0, tile + (m - m0) * N_TILE);
}

// Compute a batch of products; `make(index, compute)` calls compute(a, b, finish) for one of them.
template <class Make>
static void products(long count, long M, long N, long K, Make make) {
    long rows = M_TILE, columns = N_TILE;
    auto tiles = [](long size, long tile) { return (size + tile - 1) / tile; };
    long wanted = 4L * omp_get_max_threads();
    while (rows > 4 * MR && count * tiles(M, rows) * tiles(N, columns) < wanted) rows /= 2, rows -= rows % MR;
    while (columns > 2 * NR && count * tiles(M, rows) * tiles(N, columns) < wanted) columns /= 2;
    long down = tiles(M, rows), across = tiles(N, columns);
    if (2.0 * count * M * N * K < 1e5) wanted = 0;
    auto run = [&](long task) {
        // Tiles below one another follow: their part of B stays in the cache.
        long index = task / (down * across), n = task / down % across * columns, m = task % down * rows;
        make(index, [&](const auto& a, const auto& b, const auto& finish) {
            product_tile(m, std::min(M, m + rows), n, std::min(N, n + columns), K, a, b, finish);
        });
    };
    if (wanted) for_tasks(count * down * across, run);
    else for (long task = 0; task < count * down * across; task++) run(task);
}

// A matrix in memory with strides of rows and columns, in elements.
template <class T, bool COLUMNS_>
struct LeftMatrix {
    static constexpr bool COLUMNS = COLUMNS_;  // the elements of a column, not those of a row, lie side by side
    const T* data;
    long row_stride, column_stride;

    void pack(long m0, long rows, long k0, long kc, float* panels) const {
        if (COLUMNS) {
            for (long k = 0; k < kc; k++) {
                fetch(data + m0 * row_stride + (k0 + k + 8) * column_stride, rows);
                for (long m = 0; m < rows; m += MR) {
                    const T* from = data + (m0 + m) * row_stride + (k0 + k) * column_stride;
                    float* to = panels + m * KS + k * MR;
                    // A vector is longer than MR: what lies beyond is overwritten by the next k.
                    if (m + W <= rows) store(to, load(from));
                    else store(to, load(from, std::min(rows - m, (long)W)));
                }
            }
            return;
        }
        for (long m = 0; m < (rows + MR - 1) / MR * MR; m++) {
            float* to = panels + m * KS;
            const T* from = data + (m0 + m) * row_stride + k0 * column_stride;
            if (m >= rows) memset(to, 0, kc * sizeof(float));
            else if (column_stride == 1) {
                fetch(from + 4 * row_stride, kc);
                walk(kc, [&](long k, long count) { store(to + k, take(from + k, count)); });
            }
            else for (long k = 0; k < kc; k++) to[k] = value(from + k * column_stride);
        }
    }
};

template <class T>
struct RightMatrix {
    const T* data;
    long row_stride, column_stride;

    void pack(long n0, long columns, long k0, long kc, float* panels) const {
        const T* block = data + k0 * row_stride + n0 * column_stride;
        if (column_stride == 1) {
            // Row by row, as it lies in memory; the rows to come are fetched early, since each may be a page of its own.
            for (long k = 0; k < kc; k++) {
                const T* from = block + k * row_stride;
                fetch(from + 8 * row_stride, columns);
                for (long n = 0; n < columns; n += W) {
                    float* to = panels + n / NR * PANEL + n % NR + k * NR;
                    store(to, n + W <= columns ? load(from + n) : load(from + n, columns - n));
                }
            }
            return;
        }
        for (long n = 0; n < columns; n += W) {
            float* to = panels + n / NR * PANEL + n % NR;
            const T* from = block + n * column_stride;
            long count = std::min(columns - n, (long)W);
            if (row_stride == 1) transposed(from, count, kc, to);
            else
                for (long k = 0; k < kc; k++)
                    for (long j = 0; j < W; j++)
                        to[k * NR + j] = j < count ? value(from + k * row_stride + j * column_stride) : 0.0f;
        }
    }

    void transposed(const T* from, long count, long kc, float* to) const {
        for (long j = 0; j < count; j++) fetch(from + (W + j) * column_stride, kc);
        walk(kc, [&](long k, long steps) {
            Vector block[W];
            for (long j = 0; j < W; j++) block[j] = j < count ? take(from + j * column_stride + k, steps) : all(0.0f);
            transpose(block);
            for (long j = 0; j < steps; j++) store(to + (k + j) * NR, block[j]);
        });
    }
};
