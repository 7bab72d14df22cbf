// Products of bfloat16 matrices by AMX, where the processor has it and the system lends it: each instruction adds the
// products of 16 rows of 32 numbers with 32 rows of 16 to float32 sums, 16 x 16 of them. Products are exact; numbers
// and sums below the smallest normal float32 count as 0.
#pragma once
#include "vector.h"

#if defined(__AMX_BF16__) && defined(__AMX_TILE__)
#include <sys/syscall.h>
#include <unistd.h>
#define HAS_AMX 1

namespace amx {

constexpr long SIDE = 16;   // rows and columns of a tile of sums
constexpr long PAIRS = 16;  // pairs of numbers that one instruction sums the products of

// Whether this process may use tiles: Linux wants to be asked, once, and answers alike ever after.
static inline bool granted() {
    constexpr long REQUEST = 0x1023, TILE_DATA = 18;  // ARCH_REQ_XCOMP_PERM, of asm/prctl.h
    static const bool answer = syscall(SYS_arch_prctl, REQUEST, TILE_DATA) == 0;
    return answer;
}

struct alignas(64) Shape {
    uint8_t palette = 0, start = 0, reserved[14] = {};
    uint16_t bytes[16] = {};  // of a row of each tile
    uint8_t rows[16] = {};
};

// Tiles of full size in this thread for as long as this lives; then they have the shapes again that somebody else,
// such as oneDNN, gave them.
class Use {
  public:
    Use() {
        _tile_storeconfig(&before_);
        settle(before_);
        Shape full;
        full.palette = 1;
        for (int i = 0; i < 8; i++) full.bytes[i] = 64, full.rows[i] = 16;
        settle(full);
        _tile_loadconfig(&full);
    }
    Use(const Use&) = delete;
    ~Use() {
        if (before_.palette) _tile_loadconfig(&before_);
        else _tile_release();
    }

  private:
    // The compiler believes that the instructions know the first eight bytes of a shape only.
    static void settle(Shape& shape) { asm volatile("" : : "r"(&shape) : "memory"); }
    Shape before_;
};

// A factor. Left: rows of a tile are rows of the matrix, a pair of numbers after the other. Right: rows of a tile are
// pairs of rows of the matrix, side by side in each column.
struct Factor {
    const void* data;
    long row;   // bytes from one row of a tile to the next
    long step;  // to the tile that is multiplied next
    long next;  // to the tile of the next 16 rows or columns
};

// R x C tiles of sums, in tiles 0 to 3, up to two each way: what lies there, or zeros; one more product of tiles 4 and 5
// with 6 and 7; and the way back.
template <int R, int C>
static inline void begin(const float* sums, long width, bool add) {
    static_assert(R <= 2 && C <= 2, "eight tiles hold no more");
    asm volatile("" ::: "memory");  // the compiler does not know what the instructions read and write
    if (add) {
        const long line = width * sizeof(float);
        _tile_loadd(0, sums, line);
        if (C > 1) _tile_loadd(1, sums + SIDE, line);
        if (R > 1) _tile_loadd(2, sums + SIDE * width, line);
        if (R > 1 && C > 1) _tile_loadd(3, sums + SIDE * width + SIDE, line);
    } else {
        _tile_zero(0);
        if (C > 1) _tile_zero(1);
        if (R > 1) _tile_zero(2);
        if (R > 1 && C > 1) _tile_zero(3);
    }
}
template <int R, int C>
static inline void add_products() {
    _tile_dpbf16ps(0, 4, 6);
    if (C > 1) _tile_dpbf16ps(1, 4, 7);
    if (R > 1) _tile_dpbf16ps(2, 5, 6);
    if (R > 1 && C > 1) _tile_dpbf16ps(3, 5, 7);
}
template <int R, int C>
static inline void end(float* sums, long width) {
    const long line = width * sizeof(float);
    _tile_stored(0, sums, line);
    if (C > 1) _tile_stored(1, sums + SIDE, line);
    if (R > 1) _tile_stored(2, sums + SIDE * width, line);
    if (R > 1 && C > 1) _tile_stored(3, sums + SIDE * width + SIDE, line);
    asm volatile("" ::: "memory");
}

// Sums of `steps` tiles each; they are added to what lies there, or replace it.
template <int R, int C>
static inline void multiply(long steps, const Factor& a, const Factor& b, float* sums, long width, bool add) {
    begin<R, C>(sums, width, add);
    const char *left = (const char*)a.data, *right = (const char*)b.data;
    for (long step = 0; step < steps; step++, left += a.step, right += b.step) {
        _tile_loadd(6, right, b.row);
        _tile_loadd(4, left, a.row);
        if (C > 1) _tile_loadd(7, right + b.next, b.row);
        if (R > 1) _tile_loadd(5, left + a.next, a.row);
        add_products<R, C>();
    }
    end<R, C>(sums, width);
}

// The same of one or two tiles each way.
static inline void multiply(long rows, long columns, long steps, const Factor& a, const Factor& b, float* sums,
                            long width, bool add) {
    if (rows > 1 && columns > 1) multiply<2, 2>(steps, a, b, sums, width, add);
    else if (rows > 1) multiply<2, 1>(steps, a, b, sums, width, add);
    else if (columns > 1) multiply<1, 2>(steps, a, b, sums, width, add);
    else multiply<1, 1>(steps, a, b, sums, width, add);
}

}  // namespace amx
#else
#define HAS_AMX 0
#endif
