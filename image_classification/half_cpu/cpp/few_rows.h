// Products of a few rows with a large matrix, which is read once for each eight of them, as it lies in memory: to pack it
// would take longer than to multiply. Operands and results are those of `products`.
#pragma once
#include "gemm.h"

constexpr long FEW = 16;
constexpr int AT_ONCE = 8;  // rows whose sums are in registers together
constexpr long BLOCK = 512, APART = BLOCK + 16;  // columns whose sums stay in the cache, and where those of the next row begin

// Add rows of `a`, each `distance` from the next, times `count` columns of numbers that lie side by side in rows of `b`:
// rows first..last, STEP at a time. Returns the first one that is left.
template <int ROWS, int STEP, class T>
static inline long add_rows(long first, long last, long count, const float* a, long distance, const T* b, long stride,
                            float* sums) {
    for (; first + STEP <= last; first += STEP) {
        const T* from = b + first * stride;
        float factor[ROWS][STEP];
        for (int r = 0; r < ROWS; r++)
            for (int j = 0; j < STEP; j++) factor[r][j] = a[r * distance + first + j];
        walk(count, [&](long n, long lanes) {
            Vector sum[ROWS];
            for (int r = 0; r < ROWS; r++) sum[r] = load(sums + r * APART + n);
            for (int j = 0; j < STEP; j++) {
                // a row may be a page of its own
                _mm_prefetch((const char*)(from + (STEP + j) * stride + n), _MM_HINT_T0);
                Vector right = take(from + j * stride + n, lanes);
                for (int r = 0; r < ROWS; r++) sum[r] = fma(all(factor[r][j]), right, sum[r]);
            }
            for (int r = 0; r < ROWS; r++) store(sums + r * APART + n, sum[r]);
        });
    }
    return first;
}

// The same with numbers that lie side by side in columns of `b`.
template <int ROWS, class T>
static inline void add_columns(long K, long count, const float* a, long distance, const T* b, long stride, float* sums) {
    constexpr int COLUMNS = ROWS < AT_ONCE ? 8 / ROWS : W / 8;  // sums in registers
    for (long n = 0; n < count; n += COLUMNS) {
        Vector sum[ROWS][COLUMNS];
        const T* from[COLUMNS];
        for (int j = 0; j < COLUMNS; j++) {
            from[j] = b + std::min(n + j, count - 1) * stride;
            for (int r = 0; r < ROWS; r++) sum[r][j] = all(0.0f);
        }
        walk(K, [&](long k, long lanes) {
            Vector right[COLUMNS];
            for (int j = 0; j < COLUMNS; j++) right[j] = take(from[j] + k, lanes);
            for (int r = 0; r < ROWS; r++) {
                Vector left = load(a + r * distance + k);  // beyond the end 0
                for (int j = 0; j < COLUMNS; j++) sum[r][j] = fma(left, right[j], sum[r][j]);
            }
        });
        for (int j = 0; j < COLUMNS && n + j < count; j++)
            for (int r = 0; r < ROWS; r++) sums[r * APART + n + j] = ::sum(sum[r][j]);
    }
}

// Whether a factor has so few rows. Those of float16 are multiplied by AMX from five on, where there is one.
template <class T>
static bool has_few_rows(long M) {
#if HAS_AMX
    if (std::is_same_v<T, Float16> && amx::granted()) return M <= 4;
#endif
    return M <= FEW;
}

// Sums of ROWS rows of `a` with a block of columns of `b`, whose rows are summed in the order of packed ones.
template <int ROWS, class T>
static void multiply_block(long K, long count, const float* a, long distance, const T* b, RightMatrix<T> right,
                           float* sums) {
    if (right.column_stride == 1) {
        float part[ROWS * APART];
        long first = 0;
        do {
            float* to = first ? part : sums;
            memset(to, 0, ROWS * APART * sizeof(float));
            long last = std::min(K, first + KC);
            long done = add_rows<ROWS, 4>(first, last, count, a, distance, b, right.row_stride, to);
            add_rows<ROWS, 1>(done, last, count, a, distance, b, right.row_stride, to);
            if (first)
                for (long i = 0; i < ROWS * APART; i += W) store(sums + i, load(part + i) + load(sums + i));
            first = last;
        } while (first < K);
    } else add_columns<ROWS>(K, count, a, distance, b, right.column_stride, sums);
}

// Out[m, n] = sum over k of A[m, k] B[k, n] for a few rows; the rows or the columns of B have stride 1.
template <class Left, class T, class Finish>
static void few_rows(long M, long N, long K, Left left, RightMatrix<T> right, Finish finish) {
    long distance = parts(K, W) * W, block = std::min(BLOCK, std::max(64L, parts(N, 4L * omp_get_max_threads())));
    Floats a((M + AT_ONCE) * distance);  // rows beyond the last are multiplied, too, and not written
    memset(a, 0, (M + AT_ONCE) * distance * sizeof(float));
    for (long m = 0; m < M; m++)
        for (long k = 0; k < K; k++) a[m * distance + k] = value(left.data + m * left.row_stride + k * left.column_stride);
    for_tasks(parts(N, block), [&](long task) {
        float sums[AT_ONCE * APART];
        long n = task * block, count = std::min(N - n, block);
        const T* b = right.data + n * right.column_stride;
        for (long first = 0; first < M; first += AT_ONCE) {
            long rows = std::min(M - first, (long)AT_ONCE);
            const float* from = a + first * distance;
            auto multiply = rows == 1 ? multiply_block<1, T> : rows == 2 ? multiply_block<2, T>
                          : rows <= 4 ? multiply_block<4, T> : multiply_block<AT_ONCE, T>;
            multiply(K, count, from, distance, b, right, sums);
            for (long m = 0; m < rows; m++) finish.write(finish.row(first + m), first + m, n, count, sums + m * APART);
        }
    });
}
