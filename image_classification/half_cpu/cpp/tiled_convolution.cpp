// Convolutions of bfloat16 images [B, H, W, C] by AMX, and what follows them.
#include "interface.h"
#include "bands.h"

#if HAS_AMX
namespace {

// The pixels that results read where they move by strides, [B * H' * W', C].
const BFloat16* read_pixels(const Numbers& s, const BFloat16* x) {
    static thread_local Scratch scratch;
    long C = s.in_channels;
    BFloat16* read = (BFloat16*)scratch.floats(parts(s.batch * s.out_height * s.out_width * C, 2));
    for_tasks(s.batch * s.out_height, [&](long row) {
        long b = row / s.out_height, i = row % s.out_height;
        const BFloat16* from = x + (b * s.height + i * s.stride[0]) * s.width * C;
        BFloat16* to = read + row * s.out_width * C;
        for (long j = 0; j < s.out_width; j++) memcpy(to + j * C, from + j * s.stride[1] * C, C * sizeof(BFloat16));
    });
    return read;
}

}  // namespace
#endif

// Filters [taps, inputs, outputs] in the order of the next function, whose numbers these are.
EXPORT int tiled_filters(const long* numbers, const void* filters, void* out) {
#if HAS_AMX
    Numbers s;
    memcpy(&s, numbers, sizeof(s));
    long terms = Band(s).terms, row = s.taps[1] * s.in_channels, outputs = s.out_channels;
    for_tasks(s.taps[0], [&](long y) {
        BFloat16* to = (BFloat16*)out + y * (terms / s.taps[0]) * tiles::PANEL;
        tiles::Factor rows{(const BFloat16*)filters + y * row * outputs, 1, outputs};
        tiles::pack<true>(rows, outputs, row, to, outputs / tiles::PANEL, terms * tiles::PANEL);
    });
    return 0;
#else
    return 1;
#endif
}

// numbers: as in convolution.cpp, without groups. activation(factor * convolution + addend + residual). Factors and addends may
// be null; the residual may be null, or the result itself.
EXPORT int tiled_convolution(const long* numbers, const char* activation, const void* images, const void* filters, void* out,
                             const float* factor, const float* addend, const void* residual) {
#if HAS_AMX
    Numbers s;
    memcpy(&s, numbers, sizeof(s));
    if (!amx::granted()) return 1;
    const BFloat16 *x = (const BFloat16*)images, *packed = (const BFloat16*)filters;
    return for_fused<BFloat16>(activation, [&](auto f) {
        Normalised<decltype(f)> finish{(BFloat16*)out, s.out_channels, {factor, addend, (const BFloat16*)residual}};
        if (s.taps[0] * s.taps[1] > 1) return convolve(s, x, packed, finish);
        if (s.stride[0] != 1 || s.stride[1] != 1) x = read_pixels(s, x);
        long pixels = s.batch * s.out_height * s.out_width;
        tiles::product(pixels, s.out_channels, s.in_channels, {x, s.in_channels, 1}, {}, finish, packed);
    });
#else
    return 1;
#endif
}
