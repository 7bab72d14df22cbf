// AMX in software, included first of all (tests/amx/cxx): the intrinsics that kernels call, by Intel's manual.
// What a processor refuses, and what no kernel means, ends the process with a line that says why.
#pragma once
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#define __AMX_TILE__ 1
#define __AMX_BF16__ 1

namespace tile_registers {

// As LDTILECFG reads it; OTHERS stands for what oneDNN may have left in a thread, with a single tile.
struct Shapes {
    uint8_t palette, start, reserved[14];
    uint16_t bytes[16];
    uint8_t rows[16];
};
constexpr Shapes OTHERS = {1, 0, {}, {0, 0, 0, 12}, {0, 0, 0, 5}};

struct State {
    Shapes shapes = {};
    bool written[8] = {};
    alignas(64) uint8_t row[8][16][64];
};
inline thread_local State state;
inline std::atomic<bool> granted{false};
inline std::atomic<long> configured{0};  // threads

inline void want(bool holds, const char* why) {
    if (holds) return;
    fprintf(stderr, "AMX: %s\n", why);
    abort();
}

// Linux ends a process that was not lent the tiles when it touches them.
inline long system_call(long number, long request, long feature) {
    want(number == SYS_arch_prctl && request == 0x1023 && feature == 18, "another call of the system");
    granted = true;
    return 0;
}

inline void release() {
    want(granted, "tiles that nobody asked the system for");
    if (state.shapes.palette) configured--;
    state.shapes = {};
    memset(state.written, 0, sizeof(state.written));
}
inline void load_shapes(const void* from) {
    Shapes shapes;
    memcpy(&shapes, from, sizeof(shapes));
    if (!shapes.palette) return release();
    want(shapes.palette == 1 && !shapes.start, "another palette than 1, or another first row than 0");
    for (uint8_t byte : shapes.reserved) want(!byte, "a reserved byte of the shapes");
    for (int i = 0; i < 16; i++) {
        const int most = i < 8;
        want(shapes.bytes[i] <= 64 * most && shapes.rows[i] <= 16 * most, "a tile of more than 16 x 64 bytes");
        want(!shapes.bytes[i] == !shapes.rows[i], "a tile of rows without columns");
    }
    release();
    configured++;
    state.shapes = shapes;
}
inline void store_shapes(void* to) {
    want(granted, "tiles that nobody asked the system for");
    memcpy(to, &state.shapes, sizeof(Shapes));
}

inline void want_shape(int tile) {
    want(state.shapes.palette, "a tile without a configuration in this thread");
    want(state.shapes.rows[tile], "a tile that the configuration of this thread leaves out");
}
inline void want_written(int tile) {  // it is zero otherwise, which nobody means
    want_shape(tile);
    want(state.written[tile], "a tile is read that was not written since the configuration");
}
inline void zero(int tile) {
    want_shape(tile);
    memset(state.row[tile], 0, sizeof(state.row[tile]));
    state.written[tile] = true;
}
inline void load(int tile, const void* from, long stride) {
    zero(tile);
    for (int i = 0; i < state.shapes.rows[tile]; i++)
        memcpy(state.row[tile][i], (const char*)from + i * stride, state.shapes.bytes[tile]);
}
inline void store(int tile, void* to, long stride) {
    want_written(tile);
    for (int i = 0; i < state.shapes.rows[tile]; i++)
        memcpy((char*)to + i * stride, state.row[tile][i], state.shapes.bytes[tile]);
}

// TDPBF16PS: the first numbers of all pairs are summed, from zero on, and the second ones, by fused multiply-adds; then
// both sums are added, and that to the tile.
__attribute__((noinline)) inline void add_pairs(int terms, int rows, int columns, const uint8_t (*left)[64],
                                                const uint8_t (*right)[64], uint8_t (*sums)[64]) {
    uint32_t pairs[16][16];
    memcpy(pairs, right, sizeof(pairs));
    for (int m = 0; m < rows; m++) {
        float even[16] = {}, odd[16] = {}, sum[16];
        memcpy(sum, sums[m], sizeof(sum));
        for (int k = 0; k < terms; k++) {
            uint32_t pair;
            memcpy(&pair, left[m] + 4 * k, 4);
            uint32_t first = pair << 16, second = pair & 0xFFFF0000;
            float a, b;
            memcpy(&a, &first, 4), memcpy(&b, &second, 4);
            for (int n = 0; n < 16; n++) {
                uint32_t low = pairs[k][n] << 16, high = pairs[k][n] & 0xFFFF0000;
                float x, y;
                memcpy(&x, &low, 4), memcpy(&y, &high, 4);
                even[n] = __builtin_fmaf(a, x, even[n]), odd[n] = __builtin_fmaf(b, y, odd[n]);
            }
        }
        for (int n = 0; n < 16; n++) sum[n] += even[n] + odd[n];
        memcpy(sums[m], sum, 4 * columns);
    }
}
inline void multiply(int to, int left, int right) {
    const Shapes& s = state.shapes;
    want_written(to), want_written(left), want_written(right);
    want(to != left && to != right && left != right, "a tile twice in a product");
    want(s.rows[left] == s.rows[to] && s.bytes[right] == s.bytes[to] && s.bytes[left] == 4 * s.rows[right],
         "tiles whose shapes do not fit each other");
    const unsigned before = _mm_getcsr();
    _mm_setcsr(0x9FC0);  // denormals are zeros, read and written; to nearest even; no exceptions
    add_pairs(s.rows[right], s.rows[to], s.bytes[to] / 4, state.row[left], state.row[right], state.row[to]);
    _mm_setcsr(before);
}

}  // namespace tile_registers

// For the plug-in: set what others have set, and whether this thread has it; how many threads have a configuration.
extern "C" {
#define EXPORTED __attribute__((visibility("default"), used)) inline
EXPORTED void amx_set_others() { tile_registers::load_shapes(&tile_registers::OTHERS); }
EXPORTED int amx_has_others() { return !memcmp(&tile_registers::state.shapes, &tile_registers::OTHERS, 64); }
EXPORTED long amx_configured() { return tile_registers::configured; }
}

#undef _tile_loadd
#undef _tile_stream_loadd
#undef _tile_stored
#undef _tile_zero
#undef _tile_dpbf16ps
#define _tile_loadconfig tile_registers::load_shapes
#define _tile_storeconfig tile_registers::store_shapes
#define _tile_release tile_registers::release
#define _tile_loadd tile_registers::load
#define _tile_stream_loadd tile_registers::load
#define _tile_stored tile_registers::store
#define _tile_zero tile_registers::zero
#define _tile_dpbf16ps tile_registers::multiply
#define syscall tile_registers::system_call
