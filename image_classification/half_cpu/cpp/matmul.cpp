// Batches of matrix products with a scale, a bias, an addend and GELU applied before the result is rounded.
#include <type_traits>

#include "activations.h"
#include "few_columns.h"
#include "few_rows.h"
#include "interface.h"
#include "tiles.h"

namespace {

template <class T>
struct Ending {
    T* out;
    long row_stride, column_stride;
    float scale;
    const T* bias;    // [N] or null
    const T* addend;  // [M, N] or null
    long addend_stride;
    bool gelu;

    bool rounds_only() const { return scale == 1 && !bias && !addend && !gelu && column_stride == 1; }
    long row_step() const { return row_stride; }
    T* row(long m) const { return out + m * row_stride; }
    const Ending& panel(long) const { return *this; }
    const T* added(long) const { return nullptr; }  // to be asked for; large products have none
    __attribute__((always_inline)) void write(T* place, long m, long n, long count, float* sums) const {
        if (bias && count == NR && column_stride == 1 && scale == 1 && !addend && !gelu)
            return store(place + n, load(sums) + load(bias + n), load(sums + W) + load(bias + n + W));
        if (scale != 1 || bias || addend || gelu) end(m, n, count, sums);
        if (column_stride == 1 && count == NR) return store(place + n, load(sums), load(sums + W));
        if (column_stride == 1) return map(count, place + n, [=](long i, long) { return load(sums + i); });
        walk(count, [&](long i, long lanes) {
            T *to = place + (n + i) * column_stride, some[W];
            store(some, load(sums + i));
            for (long j = 0; j < lanes; j++) to[j * column_stride] = some[j];
        });
    }
    // A function of its own: GELU's code is long.
    __attribute__((noinline)) void end(long m, long n, long count, float* sums) const {
        walk(count, [&](long i, long lanes) {
            Vector x = load(sums + i) * all(scale);
            if (bias) x = x + take(bias + n + i, lanes);
            if (addend) x = x + take(addend + m * addend_stride + n + i, lanes);
            store(sums + i, gelu ? Gelu<T>{}.forward(x) : x);
        });
    }
};

struct Operand {
    long batch[2], row, column;  // strides in elements
};

template <class T, class Out>
void multiply(const long* sizes, const Operand* strides, const void* left, const void* right, void* out, float scale,
              const void* bias, const void* addend, int gelu) {
    long outer = sizes[0], inner = sizes[1], M = sizes[2], N = sizes[3], K = sizes[4];
    const Operand &a = strides[0], &b = strides[1], &c = strides[2], &d = strides[3];
    auto at = [&](const Operand& operand, long index) {
        return index / inner * operand.batch[0] + index % inner * operand.batch[1];
    };
    auto matrix = [&](long index) { return RightMatrix<T>{(const T*)right + at(b, index), b.row, b.column}; };
    auto finish = [&](long index) {
        const Out* add = addend ? (const Out*)addend + at(d, index) : nullptr;
        return Ending<Out>{(Out*)out + at(c, index), c.row, c.column, scale, (const Out*)bias, add, d.row, gelu != 0};
    };
#if HAS_AMX
    if constexpr (std::is_same_v<T, BFloat16>) {
        bool lies = (a.row == 1 || a.column == 1) && (b.row == 1 || b.column == 1) && c.column == 1;
        if (lies && outer * inner == 1 && std::min({M, N, K}) >= tiles::PANEL && amx::granted())
            return tiles::product(M, N, K, {(const T*)left, a.row, a.column}, {(const T*)right, b.column, b.row}, finish(0));
    }
#endif
    auto multiply_by = [&](auto columns) {
        auto rows = [&](long index) {
            return LeftMatrix<T, decltype(columns)::value>{(const T*)left + at(a, index), a.row, a.column};
        };
        if (has_few_rows<T>(M) && (b.column == 1 || b.row == 1) && N * K >= 1 << 14) {
            for (long index = 0; index < outer * inner; index++) few_rows(M, N, K, rows(index), matrix(index), finish(index));
        } else if (has_few_columns<T>(N, K) && (columns || a.column == 1)) {
            few_columns(outer * inner, M, N, K, rows, matrix, finish);
        } else {
            products(outer * inner, M, N, K, rows, matrix, finish);
        }
    };
    if (a.row == 1 && a.column != 1) multiply_by(std::true_type{});
    else multiply_by(std::false_type{});
}

}  // namespace

// Factors in one format; result, bias and addend in the same or in float32. The addend may be the result itself.
// sizes: batch, batch, M, N, K; strides: of left, right, out and addend, each batch, batch, row, column.
EXPORT int matmul(int format, int out_format, const long* sizes, const long* strides, const void* left,
                  const void* right, void* out, float scale, const void* bias, const void* addend, int gelu) {
    if (out_format != format && out_format != FLOAT32) return 1;
    return for_format(format, [&](auto number) {
        using T = decltype(number);
        auto run = out_format == FLOAT32 ? multiply<T, float> : multiply<T, T>;
        run(sizes, (const Operand*)strides, left, right, out, scale, bias, addend, gelu);
    });
}
