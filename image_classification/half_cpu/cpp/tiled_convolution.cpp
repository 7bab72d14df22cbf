// Convolution of bfloat16 images [B, H, W, C] with filters of a single tap by AMX: a product of pixels, and what follows it.
#include "activations.h"
#include "depthwise.h"
#include "interface.h"
#include "tiles.h"

#if HAS_AMX
namespace {

// activation(factor * sum + addend + residual) of each channel.
template <class Activation>
struct Normalised {
    BFloat16* out;
    long pixel;
    Ending<BFloat16> ending;

    bool rounds_only() const { return false; }
    long row_step() const { return pixel; }
    BFloat16* row(long m) const { return out + m * pixel; }
    const BFloat16* added(long m) const {  // other memory than where results go
        return ending.residual && ending.residual != out ? ending.residual + m * pixel : nullptr;
    }
    // A whole panel: there are no channels beside.
    __attribute__((always_inline)) void write(BFloat16* place, long, long n, long, float* sums) const {
        const float *factor = ending.factor + n, *addend = ending.addend + n;
        Vector low = fma(load(sums), load(factor), load(addend));
        Vector high = fma(load(sums + W), load(factor + W), load(addend + W));
        if (ending.residual) {
            const BFloat16* more = ending.residual + (place - out) + n;
            low = low + load(more), high = high + load(more + W);
        }
        store(place + n, Activation{}.forward(low), Activation{}.forward(high));
    }
};

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

// Filters [outputs, inputs], whole panels each way, in the order of the next function.
EXPORT int tiled_filters(long outputs, long inputs, const void* filters, void* out) {
#if HAS_AMX
    tiles::pack_all<true>({(const BFloat16*)filters, inputs, 1}, outputs, inputs, (BFloat16*)out);
    return 0;
#else
    return 1;
#endif
}

// numbers: as in convolution.cpp, without groups and padding. activation(factor * convolution + addend + residual); the
// residual may be null, and the result itself.
EXPORT int tiled_convolution(const long* numbers, const char* activation, const void* images, const void* filters, void* out,
                             const float* factor, const float* addend, const void* residual) {
#if HAS_AMX
    Numbers s;
    memcpy(&s, numbers, sizeof(s));
    if (!amx::granted()) return 1;
    bool moves = s.stride[0] != 1 || s.stride[1] != 1;
    const BFloat16* x = moves ? read_pixels(s, (const BFloat16*)images) : (const BFloat16*)images;
    Ending<BFloat16> ending{factor, addend, (const BFloat16*)residual};
    return for_fused(activation, [&](auto f) {
        Normalised<decltype(f)> finish{(BFloat16*)out, s.out_channels, ending};
        long pixels = s.batch * s.out_height * s.out_width;
        tiles::product(pixels, s.out_channels, s.in_channels, {x, s.in_channels, 1}, {}, finish, (const BFloat16*)filters);
    });
#else
    return 1;
#endif
}
