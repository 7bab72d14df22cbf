// left^T right for matrices of many rows, as the gradients of weights are: [rows, M] and [rows, N]. Both are read by
// blocks of rows. Sums are float32; their order depends on the sizes alone.

#include "in_place.h"
#include "interface.h"
#include "lanes.h"

namespace {

long up(long n, long step) { return (n + step - 1) / step * step; }

template <class T>
struct Matrix {
    const T* data;
    long step, rows, columns;  // elements from row to row

    Matrix part(long row, long count, long column, long width) const {
        return {data + row * step + column, step, count, std::min(width, columns - column)};
    }
};

// Blocks are widened to float32, whole vectors of columns.
template <class T>
struct Widened {
    static constexpr long STRIP = W;  // columns of sums that lie together
    static constexpr long ROWS = 1;   // of a block, or multiples of so many
    static constexpr long PART = 2048, TALLEST = 1 << 30;  // rows of a part, columns of a block of the left factor

    // How many of so many sums a block has, which the cache holds.
    static long area(long sums) { return std::clamp(sums, 4096L, 147456L); }

    // Ask for a row that is read soon.
    static void fetch(const T* from, long n) {
        for (long i = 0; i < n; i += 64 / (long)sizeof(T)) _mm_prefetch((const char*)(from + i), _MM_HINT_T1);
    }
    static void widen(const Matrix<T>& from, float* to) {
        for (long row = 0; row < from.rows; row++, to += up(from.columns, W))
            walk(from.columns, [&](long i, long count) { store(to + i, take(from.data + row * from.step + i, count)); });
    }
    // Write the product to sums [left.columns, right.columns in whole strips], and from there to `out`, if given.
    static void multiply(const Matrix<T>& left, const Matrix<T>& right, float* sums, T* out, long out_step) {
        static thread_local Scratch scratch;
        long tall = up(left.columns, W), wide = up(right.columns, W);
        long most = std::max(32L, std::min(256L, 98304 / (tall + wide)));
        float* lefts = scratch.floats(most * (tall + wide));
        for (long row = 0; row < left.rows; row += most) {
            long count = std::min(most, left.rows - row);
            widen(left.part(row, count, 0, left.columns), lefts);
            widen(right.part(row, count, 0, right.columns), lefts + most * tall);
            long next = std::min(most, left.rows - row - count);
            for (long m = 0; m < left.columns; m += ::ROWS) {
                long some = std::min((long)::ROWS, left.columns - m), end = next * (m + some) / left.columns;
                product<Lanes<float>>(some, wide / W, count, {lefts + m, 1, tall}, lefts + most * tall,
                                      Waiting{sums + m * wide, wide, row == 0});
                for (long r = next * m / left.columns; r < end; r++)
                    fetch(left.data + (row + count + r) * left.step, left.columns),
                        fetch(right.data + (row + count + r) * right.step, right.columns);
            }
        }
        if (out) finish(sums, 1, 0, left.columns, right.columns, out, out_step);
    }
    // Round the sum of parts, `apart` elements from each other, to a matrix of rows x columns.
    static void finish(const float* sums, long parts, long apart, long rows, long columns, T* out, long out_step) {
        for (long row = 0; row < rows; row++, sums += up(columns, W))
            map(columns, out + row * out_step, [&](long n, long) {
                Vector total = load(sums + n);
                for (long p = 1; p < parts; p++) total = total + load(sums + p * apart + n);
                return total;
            });
    }
};

// float32 matrices are read in place.
struct InPlace : Widened<float> {
    static constexpr long PART = 768;
    static long area(long sums) { return std::clamp(sums / 4, 4096L, 65536L); }
    static void multiply(const Matrix<float>& left, const Matrix<float>& right, float* sums, float* out, long out_step) {
        in_place::multiply(left.rows, left.columns, right.columns, left.data, right.data, left.step, right.step, sums,
                           up(right.columns, W));
        if (out) finish(sums, 1, 0, left.columns, right.columns, out, out_step);
    }
};

#ifdef __AVX512BF16__

// Pairs of rows lie side by side in a block, as the processor multiplies them. While one block is multiplied the next is
// fetched from memory, where it lies row by row.
constexpr long STRIP = 32;  // columns of a block that lie together
constexpr long TILE = 8;    // rows of sums in registers, each of a strip's columns
constexpr long DEPTH = 264;  // rows of a block, or less

using Pairs = Matrix<BFloat16>;
long strips(const Pairs& of) { return up(of.columns, STRIP) / STRIP; }

// The column of a strip that unpacking puts at a place.
long column_at(long place) { return place / STRIP * STRIP + (place & 12) * 2 + (place & 16) / 4 + (place & 3); }

// Ask for the lines of a matrix one after the other.
class Ahead {
  public:
    explicit Ahead(const Pairs& of) : of_(of), rows_(of.columns > 0 ? of.rows : 0) {}
    // Return whether there was one left.
    template <_mm_hint CACHE>
    bool one() {
        if (!rows_) return false;
        // The line of the last number, which may lie in that of the strip before.
        _mm_prefetch((const char*)(of_.data + std::min(column_ + STRIP, of_.columns) - 1), CACHE);
        if ((column_ += STRIP) < of_.columns) return true;
        column_ = 0, rows_--, of_.data += of_.step;
        return true;
    }

  private:
    Pairs of_;
    long rows_, column_ = 0;
};

// What is read soon, one line for each call: the next strip, then the next rows of the left factor and of a first strip.
struct Reads {
    Ahead strip, first, left;
    void one() { strip.one<_MM_HINT_T0>() || first.one<_MM_HINT_T1>() || left.one<_MM_HINT_T1>(); }
};

// Rows as pairs of numbers, a strip of columns at a time, `height` elements apart; rows beyond the last are zero.
void pack(const Pairs& from, long pairs, uint32_t* to, long height) {
    __m512i zeros = _mm512_setzero_si512();
    for (long pair = 0; pair < pairs; pair++) {
        const BFloat16* row = from.data + 2 * pair * from.step;
        for (long s = 0; s < strips(from); s++) {
            long left = from.columns - s * STRIP;
            __mmask32 some = left >= STRIP ? ~0u : (1u << left) - 1;
            __m512i a = zeros, b = zeros;
            if (2 * pair < from.rows) a = _mm512_maskz_loadu_epi16(some, row + s * STRIP);
            if (2 * pair + 1 < from.rows) b = _mm512_maskz_loadu_epi16(some, row + from.step + s * STRIP);
            uint32_t* place = to + s * height + pair * STRIP;
            _mm512_store_si512(place, _mm512_unpacklo_epi16(a, b));
            _mm512_store_si512(place + W, _mm512_unpackhi_epi16(a, b));
        }
    }
}

// Write a row of a strip of sums, rounded, where its columns belong.
void give_row(Vector a, Vector b, BFloat16* to, long columns) {
    const __m512i low = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
    const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
    give(to, _mm512_permutex2var_ps(a, low, b), std::min((long)W, columns));
    if (columns > W) give(to + W, _mm512_permutex2var_ps(a, high, b), std::min((long)W, columns - W));
}

// Where the sums of a tile go: to memory in which they wait for more, or to rows of a matrix, from a place in a block on.
struct Kept {
    float* to;
    void operator()(long m, Vector a, Vector b) const { store(to + m * STRIP, a), store(to + m * STRIP + W, b); }
};
struct Rounded {
    BFloat16* to;
    long step, place, rows, columns;
    void operator()(long m, Vector a, Vector b) const {
        long row = column_at(place + m);
        if (row < rows) give_row(a, b, to + row * step, columns);
    }
};

// Give the products of TILE columns of a strip with those of another one, added to the sums that wait where `add` says.
// What waits for the next tile and what is read soon are asked for meanwhile.
template <class Out>
void tile(long pairs, const uint32_t* left, const uint32_t* right, const float* sums, bool add, const Out& out,
          Reads& reads) {
    Vector total[TILE][2];
    for (long m = 0; m < TILE; m++)
        for (long v = 0; v < 2; v++) total[m][v] = add ? load(sums + m * STRIP + v * W) : all(0.0f);
    const float* next = sums + TILE * STRIP;
    for (long pair = 0; pair < pairs; pair += 2) {
        if (pair < 4 * TILE) _mm_prefetch((const char*)(next + pair / 2 * W), _MM_HINT_T0);
        else reads.one();
        for (long k = 0; k < 2; k++, left += STRIP, right += STRIP) {
            __m512bh first = (__m512bh)_mm512_load_si512(right), second = (__m512bh)_mm512_load_si512(right + W);
            for (long m = 0; m < TILE; m++) {
                __m512bh one = (__m512bh)_mm512_set1_epi32(left[m]);
                total[m][0] = _mm512_dpbf16_ps(total[m][0], one, first);
                total[m][1] = _mm512_dpbf16_ps(total[m][1], one, second);
            }
        }
    }
    for (long m = 0; m < TILE; m++) out(m, total[m][0], total[m][1]);
}

#if HAS_AMX
// Turn packed pairs round in place, 16 x 16 at a time: two tiles of 16 columns each for 16 pairs.
void turn(long strips, long pairs, uint32_t* strip, long height) {
    for (long s = 0; s < strips; s++, strip += height)
        for (long pair = 0; pair < pairs; pair += W) {
            Vector low[W], high[W];
            float* place = (float*)strip + pair * STRIP;
            for (long i = 0; i < W; i++) low[i] = load(place + i * STRIP), high[i] = load(place + i * STRIP + W);
            transpose(low), transpose(high);
            for (long i = 0; i < W; i++) store(place + i * W, low[i]), store(place + (W + i) * W, high[i]);
        }
}

void multiply_by_tiles(const Pairs& left, const Pairs& right, float* sums) {
    static thread_local Scratch scratch;
    amx::Use use;
    constexpr long STEP = amx::PAIRS * STRIP * 4, TILE_BYTES = STEP / 2;
    long most = std::max(128L, std::min(512L, 262144 / (left.columns + right.columns) / 32 * 32));
    long height = (most / 2 + 1) * STRIP;  // no power of two from strip to strip
    uint32_t* lefts = (uint32_t*)scratch.floats((strips(left) + strips(right)) * height);
    uint32_t* rights = lefts + strips(left) * height;
    for (long row = 0; row < left.rows; row += most) {
        long count = std::min(most, left.rows - row), pairs = up(count, 2 * amx::PAIRS) / 2;
        pack(left.part(row, count, 0, left.columns), pairs, lefts, height);
        pack(right.part(row, count, 0, right.columns), pairs, rights, height);
        turn(strips(left), pairs, lefts, height);
        for (long n = 0; n < strips(right); n++)
            for (long m = 0; m < strips(left); m++)
                amx::multiply<2, 2>(pairs / amx::PAIRS,
                                    {lefts + m * height, TILE_BYTES / amx::SIDE, STEP, TILE_BYTES},
                                    {rights + n * height, STRIP * 4, STEP, W * 4},
                                    sums + (n * strips(left) + m) * STRIP * STRIP, STRIP, row > 0);
    }
}
#endif

// Write the product to `out`, if given, else to sums: strips of right.columns, of each a row for each column of the left
// strips, in the order of unpacking. A block of the left factor's rows stays in a core's cache, of the right one's those
// of a strip in its first cache, and sums wait for the next block's.
void multiply(const Pairs& left, const Pairs& right, float* sums, BFloat16* out, long out_step) {
    static thread_local Scratch scratch;
    long depth = up(::parts(left.rows, ::parts(left.rows, DEPTH)), 4), height = (depth / 2 + 1) * STRIP;
    uint32_t* lefts = (uint32_t*)scratch.floats((strips(left) + 1) * height);
    uint32_t* rights = lefts + strips(left) * height;
    for (long row = 0; row < left.rows; row += depth) {
        long count = std::min(depth, left.rows - row), pairs = up(count, 4) / 2;  // rows beyond the last are zeros
        pack(left.part(row, count, 0, left.columns), pairs, lefts, height);
        long next = std::min(depth, left.rows - row - count);
        Ahead none({}), first(right.part(row + count, next, 0, STRIP));
        Reads reads{none, first, Ahead(left.part(row + count, next, 0, left.columns))};
        float* to = sums;
        for (long n = 0; n < right.columns; n += STRIP) {
            pack(right.part(row, count, n, STRIP), pairs, rights, height);
            reads.strip = Ahead(right.part(row, count, n + STRIP, STRIP));
            for (long m = 0; m < strips(left) * STRIP; m += TILE, to += TILE * STRIP) {
                const uint32_t* tall = lefts + m / STRIP * height + m % STRIP;
                if (column_at(m) >= left.columns) continue;
                if (!out || row + count < left.rows) tile(pairs, tall, rights, to, row > 0, Kept{to}, reads);
                else tile(pairs, tall, rights, to, row > 0,
                          Rounded{out + n, out_step, m, left.columns, right.columns - n}, reads);
            }
        }
    }
}

// Round the sum of parts, `apart` elements from each other, to a matrix of rows x columns.
void finish(const float* sums, long parts, long apart, long rows, long columns, BFloat16* out, long out_step) {
    for (long n = 0; n < columns; n += STRIP)
        for (long place = 0; place < up(rows, STRIP); place++, sums += STRIP) {
            if (column_at(place) >= rows) continue;
            Vector a = load(sums), b = load(sums + W);
            for (long p = 1; p < parts; p++) a = a + load(sums + p * apart), b = b + load(sums + p * apart + W);
            give_row(a, b, out + column_at(place) * out_step + n, columns - n);
        }
}

struct Multiplied {
    static constexpr long STRIP = ::STRIP, ROWS = 4, PART = 2048, TALLEST = 24 * STRIP;
    static bool by_tiles() {
#if HAS_AMX
        return amx::granted();
#else
        return false;
#endif
    }
    static long area(long sums) {
        if (by_tiles()) return Widened<BFloat16>::area(sums);
        long threads = omp_get_max_threads();
        return std::clamp(threads == 1 ? sums : sums / (2 * threads), 4096L, 1L << 22);
    }
    static void multiply(const Pairs& left, const Pairs& right, float* sums, BFloat16* out, long out_step) {
#if HAS_AMX
        if (by_tiles()) {
            multiply_by_tiles(left, right, sums);
            if (out) finish(sums, 1, 0, left.columns, right.columns, out, out_step);
            return;
        }
#endif
        ::multiply(left, right, sums, out, out_step);
    }
    static constexpr auto finish = ::finish;
};
#else
using Multiplied = Widened<BFloat16>;
#endif

template <class T>
using Kernel = std::conditional_t<std::is_same_v<T, float>, InPlace,
                                  std::conditional_t<std::is_same_v<T, BFloat16>, Multiplied, Widened<T>>>;

template <class T>
void long_product(const Matrix<T>& left, const Matrix<T>& right, T* out, long out_step) {
    using K = Kernel<T>;
    long parts = 1, sums_of_all = left.columns * right.columns;
    while (parts < 8 && 2 * parts * K::PART <= left.rows && parts * sums_of_all < 1 << 20) parts *= 2;
    long height = ::parts(left.columns, K::STRIP), width = ::parts(right.columns, K::STRIP);
    height = ::parts(height, ::parts(left.columns, K::TALLEST));
    long most = K::area(sums_of_all * parts);
    while (height * width * K::STRIP * K::STRIP > most && height * width > 1)
        (height > width ? height : width) = (std::max(height, width) + 1) / 2;
    height *= K::STRIP, width *= K::STRIP;
    long down = (left.columns + height - 1) / height, across = (right.columns + width - 1) / width;
    long rows = up((left.rows + parts - 1) / parts, K::ROWS), area = height * width;
    parts = (left.rows + rows - 1) / rows;
    Floats sums(parts > 1 ? down * across * parts * area : 0);
    auto block = [&](long task, auto f) {
        long m = task / across * height, n = task % across * width;
        f(m, n, std::min(height, left.columns - m), std::min(width, right.columns - n), out + m * out_step + n);
    };
    for_tasks(down * across * parts, [&](long task) {
        block(task / parts, [&](long m, long n, long tall, long wide, T* to) {
            static thread_local Scratch scratch;
            long row = task % parts * rows, count = std::min(rows, left.rows - row);
            float* own = parts > 1 ? sums + task * area : scratch.floats(area);
            K::multiply(left.part(row, count, m, tall), right.part(row, count, n, wide), own,
                        parts == 1 ? to : nullptr, out_step);
        });
    });
    if (parts == 1) return;
    for_tasks(down * across, [&](long task) {
        block(task, [&](long, long, long tall, long wide, T* to) {
            K::finish(sums + task * parts * area, parts, area, tall, wide, to, out_step);
        });
    });
}

}  // namespace

// Whether bfloat16 numbers are multiplied in pairs.
EXPORT int multiplies_bfloat16() {
#ifdef __AVX512BF16__
    return 1;
#else
    return 0;
#endif
}

// out [M, N] = left [rows, M]^T right [rows, N], all in one format; steps: elements from row to row.
EXPORT int long_product(int format, long rows, long columns, long right_columns, long step, long right_step,
                        long out_step, const void* left, const void* right, void* out) {
    return for_format(format, [&](auto number) {
        using T = decltype(number);
        long_product<T>({(const T*)left, step, rows, columns}, {(const T*)right, right_step, rows, right_columns},
                        (T*)out, out_step);
    });
}
