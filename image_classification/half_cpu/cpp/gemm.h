// Matrix products in float32 of operands in any of the three formats: blocks are widened while they are packed, so that
// a product of half numbers costs no more than one of float32 numbers.
//
// Out[m, n] = sum over k of A[m, k] B[k, n]. All of B is packed first, by all threads; then each tile of rows of A is
// packed by one thread and multiplied with every panel of B. The sums stay float32 until the result is written.
#pragma once
#include "lanes.h"
#include "parallel.h"

#if defined(__AVX512F__)
constexpr int MR = 14;
constexpr bool TURNS = false;
#else
constexpr int MR = 6;
constexpr bool TURNS = true;  // six rows a KS apart take more of a small first cache than one row of their columns
#endif
constexpr int NR = 2 * W;
constexpr long KC = 384;
// The distance of the rows of A's panels: no power of two, and room for a vector beyond the end.
constexpr long KS = KC + 16;
constexpr long GROUP = 8;  // panels of B that are packed together, because they lie side by side in memory
constexpr long LEFT_FLOATS = 1 << 18, RIGHT_FLOATS = 1 << 20;  // what may be packed at a time, of a tile of A and of B
constexpr long CACHED_FLOATS = 1 << 17;  // of several B, those of a batch, that each core's cache keeps

// A panel of A holds MR rows: side by side for each k (COLUMNS), or each row as it is.
// What is fetched meanwhile: with AVX-512 what comes next of this panel of B; with AVX2, whose step takes 6 cycles, a
// share of the panel after it, a line each so many bytes, to the second cache.
template <int ROWS, int VECTORS, bool COLUMNS>
static inline void multiply_panels(long kc, const float* a, const float* b, float* c, bool first, const char* next,
                                   long bytes) {
    Vector sums[ROWS][VECTORS];
#pragma GCC unroll 14
    for (int i = 0; i < ROWS; i++) {
        _mm_prefetch((const char*)(c + i * NR), _MM_HINT_T0);
        if (NR > 16) _mm_prefetch((const char*)(c + i * NR + 16), _MM_HINT_T0);
#pragma GCC unroll 2
        for (int v = 0; v < VECTORS; v++) sums[i][v] = all(0.0f);
    }
    for (long k = 0; k < kc; k++) {
        Vector right[VECTORS];
#pragma GCC unroll 2
        for (int v = 0; v < VECTORS; v++) right[v] = load(b + k * NR + v * W);
#if defined(__AVX512F__)
        _mm_prefetch((const char*)(b + (k + 8) * NR), _MM_HINT_T0);
        _mm_prefetch((const char*)(b + (k + 8) * NR + 16), _MM_HINT_T0);
#else
        _mm_prefetch(next, _MM_HINT_T1);
        next += bytes;
#endif
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
        for (int v = 0; v < VECTORS; v++) {
            float* to = c + i * NR + v * W;
            store(to, first ? sums[i][v] : sums[i][v] + load(to));
        }
}

template <bool COLUMNS>
static void multiply_panels(long rows, long columns, long kc, const float* a, const float* b, float* c, bool first,
                            const char* next, long bytes) {
    if (columns > W) {
        if (rows > MR / 2) multiply_panels<MR, 2, COLUMNS>(kc, a, b, c, first, next, bytes);
        else if (rows > 2) multiply_panels<MR / 2, 2, COLUMNS>(kc, a, b, c, first, next, bytes);
        else multiply_panels<2, 2, COLUMNS>(kc, a, b, c, first, next, bytes);
    } else {
        if (rows > MR / 2) multiply_panels<MR, 1, COLUMNS>(kc, a, b, c, first, next, bytes);
        else multiply_panels<MR / 2, 1, COLUMNS>(kc, a, b, c, first, next, bytes);
    }
}

// Ask for n elements that are read soon. An address beyond the tensor does no harm.
template <class T>
static inline void fetch(const T* from, long n) {
    for (long i = 0; i < n; i += 64 / (long)sizeof(T)) _mm_prefetch((const char*)(from + i), _MM_HINT_T0);
}

// How blocks are packed and multiplied by `compute`: here widened, one number after the other. `Ready` lives as long as
// a thread multiplies.
struct Widened {
    struct Ready {};
    static constexpr long ROWS = MR, DEPTH = KC, STRIDE = KS, STEP = 1, MOST = 12;  // rows of a panel, panels of a tile

    // What may be packed of B at a time: the rest waits with the sums.
    static long right_floats(long) { return RIGHT_FLOATS; }
    template <class Left>
    void pack_left(long, const Left& a, long m0, long rows, long k0, long kc, float* panels) const {
        a.pack(m0, rows, k0, kc, panels, MR);
        if constexpr (TURNS && !Left::COLUMNS)
            for (long m = 0; m < rows; m += MR) turn(kc, panels + m * KS);
    }
    // Make a panel of rows one of columns.
    static void turn(long kc, float* panel) {
        alignas(64) static thread_local float columns[MR * KS];  // on the stack it took twice as long
        for (long k = 0; k < kc; k += W) {
            Vector block[W];
            for (int i = 0; i < W; i++) block[i] = i < MR ? load(panel + i * KS + k) : all(0.0f);
            transpose(block);
            for (int i = 0; i < W; i++) store(columns + (k + i) * MR, block[i]);
        }
        memcpy(panel, columns, kc * MR * sizeof(float));
    }
    template <class Right>
    void pack_right(long, const Right& b, long n0, long columns, long k0, long kc, float* panels, long distance) const {
        b.pack(n0, columns, k0, kc, panels, distance);
    }
    template <bool COLUMNS>
    void multiply(long rows, long columns, long kc, const float* a, const float* b, float* c, bool first,
                  const float* next, long ahead) const {
        long bytes = ahead * sizeof(float) / std::max(kc, 1L) + 1;
        multiply_panels<COLUMNS || TURNS>(rows, columns, kc, a, b, c, first, (const char*)next, bytes);
    }
};

// Whether products take less time than to call the other threads.
static bool is_small(long count, long M, long N, long K) { return 2.0 * count * M * N * K < 1e5; }

// Compute `count` products of a batch, from `first` on, all of whose right factors are packed before.
template <class Engine, class Left, class Right, class Finish>
static void compute_some(const Engine& engine, long first, long count, long M, long N, long K, Left left, Right right,
                         Finish finish) {
    static thread_local Scratch packed_scratch, sums_scratch;
    constexpr long ROWS = Engine::ROWS, DEPTH = Engine::DEPTH, STRIDE = Engine::STRIDE;
    long panels = parts(N, NR);
    // Where B is too large it is packed and multiplied in parts of K, and the sums wait in memory.
    long most = Engine::right_floats(count * M * N) / (count * panels * NR * DEPTH);
    long depth = std::min(parts(K, DEPTH), std::max(1L, most)) * DEPTH;
    long distance = parts(std::min(depth, K), Engine::STEP) * Engine::STEP * NR + 4 * W;
    float* packed = packed_scratch.floats(count * panels * distance);
    float* waiting = depth < K ? sums_scratch.floats(count * panels * M * NR) : nullptr;

    most = LEFT_FLOATS / (ROWS * std::max(DEPTH, std::min(depth, K)));
    long rows = std::max(2L, std::min(Engine::MOST, most)) * ROWS, share = panels;
    long wanted = 3L * omp_get_max_threads();
    while (rows > 4 * ROWS && count * parts(M, rows) < wanted) rows -= ROWS;
    if (count * parts(M, rows) < wanted) share = std::max(2L, parts(panels, parts(wanted, count * parts(M, rows))));
    auto run = [&](long tasks, auto f) {
        if (is_small(count, M, N, K)) for (long task = 0; task < tasks; task++) f(task);
        else for_tasks(tasks, f);
    };

    // Tiles as large as each other, so many that each thread has as many as the others.
    long tall = parts(M, ROWS), down = parts(M, rows), threads = omp_get_max_threads();
    if (count * down > threads) down = std::min(tall, parts(count * down, threads) * threads / count);
    long across = parts(panels, share), groups = parts(panels, GROUP);
    long start = 0;
    do {
        long end = std::min(K, start + depth), blocks = std::max(1L, parts(end - start, DEPTH));
        run(count * groups * blocks, [&](long task) {
            long index = task / (groups * blocks), group = task / blocks % groups * GROUP, k = task % blocks * DEPTH;
            long n = group * NR, kc = std::min(DEPTH, end - start - k);
            engine.pack_right(first + index, right(first + index), n, std::min(N - n, GROUP * NR), start + k, kc,
                              packed + (index * panels + group) * distance + k * NR, distance);
        });
        run(count * down * across, [&](long task) {
            static thread_local Scratch left_scratch;
            typename Engine::Ready ready;
            long index = task / (down * across), place = task / across % down, q0 = task % across * share;
            long m0 = tall * place / down * ROWS, m1 = std::min(M, tall * (place + 1) / down * ROWS);
            long tile = parts(m1 - m0, ROWS) * ROWS;
            float* sums = left_scratch.floats(tile * NR + blocks * tile * STRIDE + 64);
            float* block = sums + tile * NR;
            auto a = left(first + index);
            auto to = finish(first + index);
            for (long k = 0; k < blocks; k++)
                engine.pack_left(first + index, a, m0, m1 - m0, start + k * DEPTH, std::min(DEPTH, end - start - k * DEPTH),
                                 block + k * tile * STRIDE);
            decltype(to.row(0)) places[Engine::MOST * ROWS];
            if (end == K)
                for (long m = m0; m < m1; m++) places[m - m0] = to.row(m);
            for (long q = q0; q < std::min(panels, q0 + share); q++) {
                float* wait = waiting + ((index * panels + q) * M + m0) * NR;
                float* c = waiting ? wait : sums;
                const float* b = packed + (index * panels + q) * distance;
                for (long k = 0; k < blocks; k++) {
                    long kc = std::min(DEPTH, end - start - k * DEPTH);
                    // What comes after it of B, a share of it with each panel of A.
                    const float* next = b + (k + 1 < blocks ? (k + 1) * DEPTH * NR : distance);
                    long ahead = parts(kc * NR, parts(m1 - m0, ROWS));
                    for (long m = 0; m < m1 - m0; m += ROWS) {
                        // A last panel of A may reach beyond the sums that wait in memory.
                        float* target = waiting && m + ROWS > m1 - m0 ? sums : c + m * NR;
                        long valid = (m1 - m0 - m) * NR * sizeof(float);
                        if (target == sums && waiting && start + k) memcpy(sums, c + m * NR, valid);
                        if (end == K && k + 1 == blocks)  // where the next rows of the result will be written
                            for (long i = m; i < std::min(m + ROWS, m1 - m0 - ROWS); i++)
                                __builtin_prefetch(places[i + ROWS] + q * NR, 1);
                        engine.template multiply<decltype(a)::COLUMNS>(
                            m1 - m0 - m, N - q * NR, kc, block + (k * tile + m) * STRIDE, b + k * DEPTH * NR, target,
                            start + k == 0, next + m / ROWS * ahead, ahead);
                        if (end < K || k + 1 < blocks) {
                            if (target == sums && waiting) memcpy(c + m * NR, sums, valid);
                            continue;
                        }
                        long last = std::min(ROWS, m1 - m0 - m), columns = std::min((long)NR, N - q * NR);
                        for (long i = 0; i < last; i++)
                            to.write(places[m + i], m0 + m + i, q * NR, columns, target + i * NR);
                    }
                }
            }
        });
        start = end;
    } while (start < K);
}

// Compute a batch of products. left(index) has pack(m, rows, k, kc, panels, height), for panels of so many rows, and
// right(index) pack(n, columns, k, kc, panels, distance); both fill whole panels with float32. finish(index) has
// row(m), the place of a row of the result, and write(place, m, n, count, sums).
template <class Engine, class Left, class Right, class Finish>
static void compute(const Engine& engine, long count, long M, long N, long K, Left left, Right right, Finish finish) {
    // Of many products a thread packs some, which stay in its cache, and multiplies them.
    long many = count / (4 * omp_get_max_threads());
    if (!many || is_small(count, M, N, K)) return compute_some(engine, 0, count, M, N, K, left, right, finish);
    long some = std::clamp(CACHED_FLOATS / (parts(N, NR) * NR * std::max(K, 1L)), 1L, many);
    for_tasks(parts(count, some), [&](long task) {
        compute_some(engine, task * some, std::min(some, count - task * some), M, N, K, left, right, finish);
    });
}

// A matrix in memory with strides of rows and columns, in elements.
template <class T, bool COLUMNS_>
struct LeftMatrix {
    using Number = T;
    static constexpr bool COLUMNS = COLUMNS_;  // the elements of a column, not those of a row, lie side by side
    const T* data;
    long row_stride, column_stride;

    void pack(long m0, long rows, long k0, long kc, float* panels, long height) const {
        if (COLUMNS) {
            for (long k = 0; k < kc; k++) {
                fetch(data + m0 * row_stride + (k0 + k + 8) * column_stride, rows);
                for (long m = 0; m < rows; m += height) {
                    const T* from = data + (m0 + m) * row_stride + (k0 + k) * column_stride;
                    float* to = panels + m * KS + k * height;
                    // A vector may be longer than a column: what lies beyond is overwritten by the next k.
                    if (m + W <= rows) store(to, load(from));
                    else store(to, load(from, std::min(rows - m, (long)W)));
                }
            }
            return;
        }
        for (long m = 0; m < parts(rows, height) * height; m++) {
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

    void pack(long n0, long columns, long k0, long kc, float* panels, long distance) const {
        const T* block = data + k0 * row_stride + n0 * column_stride;
        if (column_stride == 1) {
            // Row by row, as it lies in memory; the rows to come are fetched early, since each may be a page of its own.
            for (long k = 0; k < kc; k++) {
                const T* from = block + k * row_stride;
                fetch(from + 8 * row_stride, columns);
                for (long n = 0; n < columns; n += W) {
                    float* to = panels + n / NR * distance + n % NR + k * NR;
                    store(to, n + W <= columns ? load(from + n) : load(from + n, columns - n));
                }
            }
            return;
        }
        for (long n = 0; n < columns; n += W) {
            float* to = panels + n / NR * distance + n % NR;
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
