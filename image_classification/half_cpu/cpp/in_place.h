// left^T right of float32 matrices in rows, read where they lie: blocks of sums stay in registers, terms are added a few
// rows at a time, and what the next rows hold is asked for meanwhile.
#pragma once
#include <utility>

#include "lanes.h"

namespace in_place {

constexpr long DEPTH = 128;  // rows whose products are added up in registers, more or less

// Numbers from one row to the next of what is read and of the rows that are asked for.
struct Steps {
    long left, right, left_ahead, right_ahead;
};

struct Sums {
    float* to;
    long step, last;  // numbers from row to row, and of the last vector
    bool add;         // to what is there
};

// R rows of sums, each of V vectors. Where rows lie a power of two apart they push each other out of the first cache:
// then the first block copies what it reads of the right factor, for the others.
template <int R, int V, bool COPY>
static void tile(long rows, const float* left, const float* right, Steps steps, const Sums& sums, float* copy) {
    Vector total[R][V];
#pragma GCC unroll 12
    for (int i = 0; i < R; i++)
#pragma GCC unroll 4
        for (int v = 0; v < V; v++) total[i][v] = all(0.0f);
    for (long k = 0; k < rows; k++, left += steps.left, right += steps.right) {
        Vector b[V];
        if (R * V >= 10) {
            _mm_prefetch((const char*)(left + steps.left_ahead), _MM_HINT_T1);
            if (!COPY) _mm_prefetch((const char*)(right + steps.right_ahead), _MM_HINT_T1);
        }
#pragma GCC unroll 4
        for (int v = 0; v < V; v++) {
            if (COPY) _mm_prefetch((const char*)(right + v * W + steps.right_ahead), _MM_HINT_T1);
            b[v] = load(right + v * W);
            if (COPY) store(copy + v * W, b[v]);
        }
        copy += V * W;
#pragma GCC unroll 12
        for (int i = 0; i < R; i++) {
            Vector a = all(left[i]);
#pragma GCC unroll 4
            for (int v = 0; v < V; v++) total[i][v] = fma(a, b[v], total[i][v]);
        }
    }
    float* first = sums.to;
    long step = sums.step, last = sums.last;
    auto put = [&](auto add, auto whole) {
#pragma GCC unroll 12
        for (int i = 0; i < R; i++)
#pragma GCC unroll 4
            for (int v = 0; v < V; v++) {
                float* to = first + i * step + v * W;
                if (v < V - 1 || whole) store(to, add ? total[i][v] + load(to) : total[i][v]);
                else give(to, add ? total[i][v] + take(to, last) : total[i][v], last);
            }
    };
    using std::true_type, std::false_type;
    if (last == W) sums.add ? put(true_type{}, true_type{}) : put(false_type{}, true_type{});
    else sums.add ? put(true_type{}, false_type{}) : put(false_type{}, false_type{});
}

// Blocks of fewer vectors have more rows, of registers that would be idle.
constexpr long most_rows(int vectors) { return std::min(12, ::ROWS * VECTORS / vectors); }

template <int V, bool COPY, int... R>
static auto tile_of(long rows, std::integer_sequence<int, R...>) {
    static constexpr decltype(&tile<1, V, COPY>) tiles[] = {tile<R + 1, V, COPY>...};
    return tiles[rows - 1];
}

// The sums of V vectors of columns of the right factor with `tall` columns of the left.
template <int V>
static void strip(long tall, long rows, const float* left, const float* right, Steps steps, Sums sums, bool copies) {
    static thread_local Scratch scratch;
    constexpr std::make_integer_sequence<int, most_rows(V)> sizes;
    long ahead = steps.right_ahead;
    float* copy = nullptr;
    for (long m = 0, groups = parts(tall, most_rows(V)), turn = 0; groups; groups--, turn++) {
        long some = parts(tall - m, groups);
        steps.right_ahead = !copy && turn < V ? ahead + turn * W : 0;  // each block asks for one vector of them
        if (V == VECTORS && copies && !turn) {
            copy = scratch.floats(rows * V * W), steps.right_ahead = ahead;
            tile_of<V, V == VECTORS>(some, sizes)(rows, left, right, steps, sums, copy);
            right = copy, steps.right = V * W;
        } else {
            tile_of<V, false>(some, sizes)(rows, left + m, right, steps, sums, nullptr);
        }
        sums.to += some * sums.step, m += some;
    }
}

static void strip(long vectors, long tall, long rows, const float* left, const float* right, const Steps& steps,
                  const Sums& sums, bool copies) {
    if (vectors == 1) strip<1>(tall, rows, left, right, steps, sums, copies);
    else if (vectors == 2) strip<2>(tall, rows, left, right, steps, sums, copies);
    else if (vectors == 3) strip<std::min(3, VECTORS)>(tall, rows, left, right, steps, sums, copies);
    else strip<VECTORS>(tall, rows, left, right, steps, sums, copies);
}

// Write left^T right, of `rows` rows, to [tall, wide].
static void multiply(long rows, long tall, long wide, const float* left, const float* right, long left_step,
                     long right_step, float* to, long step) {
    bool copies = right_step % 128 == 0 && tall >= 128;
    // Vectors reach into the next rows, so that behind the last of these would be nothing to read.
    long beyond = parts(wide, W) * W - wide, ragged = right_step ? parts(beyond, right_step) : beyond ? rows : 0;
    long depth = parts(rows, std::max(1L, (rows + DEPTH / 2) / DEPTH));
    for (long row = 0; row < rows; row += depth, left += depth * left_step, right += depth * right_step) {
        long count = std::min(depth, rows - row), ahead = row + count < rows ? depth : 0;
        Steps steps{left_step, right_step, ahead * left_step, ahead * right_step};
        long whole = std::clamp(rows - ragged - row, 0L, count);
        for (long n = 0, groups = parts(parts(wide, W), VECTORS); groups; groups--) {
            long vectors = parts(parts(wide - n, W), groups), last = std::min((long)W, wide - n - (vectors - 1) * W);
            Sums sums{to + n, step, last, row > 0};
            if (whole) strip(vectors, tall, whole, left, right + n, steps, sums, copies);
            if (whole < count) {
                static thread_local Scratch scratch;
                float* end = scratch.floats((count - whole) * vectors * W);
                for (long k = whole; k < count; k++)
                    for (long i = 0; i < vectors; i++) {
                        long some = std::min((long)W, wide - n - i * W);
                        store(end + ((k - whole) * vectors + i) * W, take(right + k * right_step + n + i * W, some));
                    }
                sums.add |= whole > 0;
                strip(vectors, tall, count - whole, left + whole * left_step, end, {left_step, vectors * W, 0, 0}, sums,
                      false);
            }
            n += vectors * W, steps.left_ahead = 0;  // asked for by the first strip
        }
    }
}

}  // namespace in_place
