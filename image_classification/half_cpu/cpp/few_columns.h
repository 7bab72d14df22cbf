// Products with a matrix so small that a core's cache holds it beside what it is multiplied with: packing rows, and sums
// that wait in memory, would take half of the time. Operands, results and the order of sums are those of `products`.
#pragma once
#include "split.h"

// Whether K rows of N columns are such a matrix, which has some; AMX is faster with what is packed.
template <class T>
static bool has_few_columns(long N, long K) {
    long most = 1 << 15;
#if HAS_AMX
    if (std::is_same_v<T, Float16> && amx::granted()) most = 2560;
#endif
    return K > 0 && K <= KC && K * parts(N, W) * W <= most;
}

// Rows first..last of one product; `packed` holds the right factor, in whole vectors of columns. Rows are widened a
// block at a time, and sums written from registers unless something else comes after them: a call within would take
// the sums' registers while they are summed, too.
template <class T, bool COLUMNS, class Finish>
static void multiply_few_columns(long first, long last, long N, long K, const LeftMatrix<T, COLUMNS>& a,
                                 const float* packed, const Finish& finish) {
    static thread_local Scratch scratch;
    constexpr long BLOCK = 8 * ROWS;  // rows, in whole vectors
    static_assert(BLOCK % W == 0, "columns of the left factor are widened in whole vectors");
    long vectors = parts(N, W), width = vectors * W, block = COLUMNS ? BLOCK : std::clamp(2048 / K / ROWS, 1L, 8L) * ROWS;
    float *wide = scratch.floats(BLOCK * (K + width)), *sums = wide + BLOCK * K;
    for (long m = first; m < last; m += block) {
        long rows = std::min(block, last - m);
        const T* from = a.data + m * a.row_stride;
        if (COLUMNS)
            for (long k = 0; k < K; k++)
                walk(rows, [&](long i, long n) { store(wide + k * BLOCK + i, take(from + k * a.column_stride + i, n)); });
        else if (a.row_stride == K) map(rows * K, wide, [&](long i, long n) { return take(from + i, n); });
        else
            for (long i = 0; i < rows; i++)
                walk(K, [&](long k, long n) { give(wide + i * K + k, take(from + i * a.row_stride + k, n), n); });
        Left left = COLUMNS ? Left{wide, 1, BLOCK} : Left{wide, K, 1};
        using Number = std::remove_pointer_t<decltype(finish.row(0))>;
        if (finish.rounds_only()) {
            product<Lanes<float>>(rows, vectors, K, left, packed, Rows<Number>{finish.row(m), finish.row_step(), N, 1.0f});
            continue;
        }
        product<Lanes<float>>(rows, vectors, K, left, packed, Tile{sums, width});
        for (long i = 0; i < rows; i++)
            for (long n = 0; n < N; n += NR)
                finish.write(finish.row(m + i), m + i, n, std::min(N - n, (long)NR), sums + i * width + n);
    }
}

// A batch of such products, as `products` computes it; a left factor's rows or columns lie side by side.
template <class Left, class Right, class Finish>
static void few_columns(long count, long M, long N, long K, Left left, Right right, Finish finish) {
    long panels = parts(N, NR), width = parts(N, W) * W, distance = K * NR + 4 * W;
    auto pack = [&](long index, float* panel, float* packed) {
        right(index).pack(0, N, 0, K, panel, distance);
        for (long k = 0; k < K; k++)
            for (long n = 0; n < width; n += W)
                store(packed + k * width + n, load(panel + n / NR * distance + k * NR + n % NR));
    };
    long size = panels * distance + K * width;
    if (count == 1) {
        Floats own(size);
        pack(0, own + K * width, own);
        for_ranges(M, 8 * ROWS, [&](long first, long last) {
            multiply_few_columns(first, last, N, K, left(0), own, finish(0));
        });
        return;
    }
    for_tasks(count, [&](long index) {
        static thread_local Scratch scratch;
        float* own = scratch.floats(size);
        pack(index, own + K * width, own);
        multiply_few_columns(0, M, N, K, left(index), own, finish(index));
    });
}
