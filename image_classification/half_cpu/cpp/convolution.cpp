// Convolution of images [B, H, W, C] as products with a matrix that is never written: its rows are pixels, its columns
// (tap, channel), and a block of it is gathered from the images where the product packs its operands.
//
// Filters are given as [tap][input channel][output channel] forward, [tap][output][input] for the gradient of the
// images; the gradient of the filters comes out as [output channel][tap][input channel].
#include "gemm.h"
#include "interface.h"

#include <vector>

namespace {

// The pixels of a grid [batch, height, width], and for each the source pixels that the taps reach.
struct Grid {
    long height, width;                  // of the grid
    long source_height, source_width;
    long step[2];                        // source pixels from one grid pixel to the next
    std::vector<long> down, across;      // of each tap, relative to the grid pixel's place
};

template <class T>
struct Gathered {
    static constexpr bool COLUMNS = false;
    const T* images;
    long pixel, channels;  // elements from one source pixel to the next, and those that take part
    const Grid* grid;

    // Call f(offset in columns, tap, first channel, count) for the pieces of columns [first, last).
    template <class F>
    void pieces(long first, long last, F f) const {
        for (long at = first; at < last;) {
            long tap = at / channels, c = at % channels, count = std::min(channels - c, last - at);
            f(at - first, tap, c, count);
            at += count;
        }
    }

    // Return where the channels of a tap of grid pixel (b, i, j) begin, or null in the padding.
    const T* source(long b, long i, long j, long tap) const {
        long h = i * grid->step[0] + grid->down[tap], w = j * grid->step[1] + grid->across[tap];
        if ((unsigned long)h >= (unsigned long)grid->source_height) return nullptr;
        if ((unsigned long)w >= (unsigned long)grid->source_width) return nullptr;
        return images + ((b * grid->source_height + h) * grid->source_width + w) * pixel;
    }

    static void copy(const T* from, long count, float* to) {
        if (!from) memset(to, 0, count * sizeof(float));
        else walk(count, [&](long i, long lanes) { give(to + i, take(from + i, lanes), lanes); });
    }

    // As the left operand: rows are pixels.
    void pack(long m0, long rows, long k0, long kc, float* panels) const {
        for (long m = 0; m < (rows + MR - 1) / MR * MR; m++) {
            float* to = panels + m * KS;
            if (m >= rows) {
                memset(to, 0, kc * sizeof(float));
                continue;
            }
            long p = m0 + m, j = p % grid->width, i = p / grid->width % grid->height, b = p / grid->width / grid->height;
            pieces(k0, k0 + kc, [&](long at, long tap, long c, long count) {
                const T* from = source(b, i, j, tap);
                copy(from ? from + c : from, count, to + at);
            });
        }
    }
};

// The same matrix as the right operand of the filters' gradient: rows are pixels, which are summed.
template <class T>
struct GatheredRight {
    Gathered<T> matrix;

    void pack(long n0, long columns, long k0, long kc, float* panels) const {
        const Grid& grid = *matrix.grid;
        for (long n = 0; n < columns; n += NR) {
            float* to = panels + n * KC;
            long width = std::min(columns - n, (long)NR), p = k0;
            long j = p % grid.width, i = p / grid.width % grid.height, b = p / grid.width / grid.height;
            for (long k = 0; k < kc; k++) {
                if (width < NR) memset(to + k * NR, 0, NR * sizeof(float));
                matrix.pieces(n0 + n, n0 + n + width, [&](long at, long tap, long c, long count) {
                    const T* from = matrix.source(b, i, j, tap);
                    Gathered<T>::copy(from ? from + c : from, count, to + k * NR + at);
                });
                if (++j == grid.width) {
                    j = 0;
                    if (++i == grid.height) i = 0, b++;
                }
            }
        }
    }
};

struct Numbers {
    long batch, groups, in_channels, out_channels;  // of a group
    long height, width, out_height, out_width, taps[2], stride[2], dilation[2], before[2];
};

template <class T>
struct Pixels {
    T* data;
    long pixel;
    const Grid* grid;
    long image_height, image_width, step[2], first[2];  // where grid pixel (i, j) is written

    void operator()(long m, long n, long count, float* sums) const {
        long j = m % grid->width, i = m / grid->width % grid->height, b = m / grid->width / grid->height;
        T* to = data + ((b * image_height + i * step[0] + first[0]) * image_width + j * step[1] + first[1]) * pixel + n;
        walk(count, [&](long k, long lanes) { give(to + k, load(sums + k), lanes); });
    }
};

template <class T>
void convolve(const Numbers& s, const T* x, const T* filters, T* y) {
    Grid grid{s.out_height, s.out_width, s.height, s.width, {s.stride[0], s.stride[1]}, {}, {}};
    for (long h = 0; h < s.taps[0]; h++)
        for (long w = 0; w < s.taps[1]; w++) {
            grid.down.push_back(h * s.dilation[0] - s.before[0]);
            grid.across.push_back(w * s.dilation[1] - s.before[1]);
        }
    long C = s.in_channels, O = s.out_channels, taps = grid.down.size();
    products(s.groups, s.batch * s.out_height * s.out_width, O, taps * C, [&](long group, auto compute) {
        Gathered<T> left{x + group * C, s.groups * C, C, &grid};
        RightMatrix<T> right{filters + group * taps * C * O, O, 1};
        Pixels<T> out{y + group * O, s.groups * O, &grid, s.out_height, s.out_width, {1, 1}, {0, 0}};
        compute(left, right, out);
    });
}

template <class T>
void convolve_back(const Numbers& s, const T* gradient, const T* filters, T* out) {
    long C = s.in_channels, O = s.out_channels;
    // The pixels of one phase of the stride are reached by the same taps.
    for (long a = 0; a < std::min(s.stride[0], s.height); a++)
        for (long b = 0; b < std::min(s.stride[1], s.width); b++) {
            Grid grid{(s.height - a + s.stride[0] - 1) / s.stride[0], (s.width - b + s.stride[1] - 1) / s.stride[1],
                      s.out_height, s.out_width, {1, 1}, {}, {}};
            std::vector<long> chosen;
            for (long h = 0; h < s.taps[0]; h++)
                for (long w = 0; w < s.taps[1]; w++) {
                    long down = a + s.before[0] - h * s.dilation[0], across = b + s.before[1] - w * s.dilation[1];
                    if (down % s.stride[0] || across % s.stride[1]) continue;
                    grid.down.push_back(down / s.stride[0]);
                    grid.across.push_back(across / s.stride[1]);
                    chosen.push_back(h * s.taps[1] + w);
                }
            long taps = chosen.size(), every = s.taps[0] * s.taps[1];
            // The filters of the taps of this phase, one after the other.
            std::vector<uint8_t> kept(s.groups * taps * O * C * sizeof(T));
            T* some = (T*)kept.data();
            for (long group = 0; group < s.groups && taps < every; group++)
                for (long t = 0; t < taps; t++)
                    memcpy(some + (group * taps + t) * O * C, filters + (group * every + chosen[t]) * O * C,
                           O * C * sizeof(T));
            const T* right_filters = taps < every ? some : filters;
            if (!taps) chosen.clear();
            products(s.groups, s.batch * grid.height * grid.width, C, taps * O, [&](long group, auto compute) {
                Gathered<T> left{gradient + group * O, s.groups * O, O, &grid};
                RightMatrix<T> right{right_filters + group * taps * O * C, C, 1};
                Pixels<T> pixels{out + group * C, s.groups * C, &grid, s.height, s.width,
                                 {s.stride[0], s.stride[1]}, {a, b}};
                compute(left, right, pixels);
            });
        }
}

template <class T>
void filters_gradient(const Numbers& s, const T* x, const T* gradient, T* out) {
    Grid grid{s.out_height, s.out_width, s.height, s.width, {s.stride[0], s.stride[1]}, {}, {}};
    for (long h = 0; h < s.taps[0]; h++)
        for (long w = 0; w < s.taps[1]; w++) {
            grid.down.push_back(h * s.dilation[0] - s.before[0]);
            grid.across.push_back(w * s.dilation[1] - s.before[1]);
        }
    long C = s.in_channels, O = s.out_channels, columns = grid.down.size() * C;
    products(s.groups, O, columns, s.batch * s.out_height * s.out_width, [&](long group, auto compute) {
        LeftMatrix<T, true> left{gradient + group * O, 1, s.groups * O};
        GatheredRight<T> right{{x + group * C, s.groups * C, C, &grid}};
        T* to = out + group * O * columns;
        compute(left, right, [&](long m, long n, long count, float* sums) {
            walk(count, [&](long k, long lanes) { give(to + m * columns + n + k, load(sums + k), lanes); });
        });
    });
}

// One filter for each channel: filters are [tap][channel].
template <class T>
void depthwise(const Numbers& s, const T* x, const T* filters, T* y) {
    long C = s.groups;
    for_ranges(s.batch * s.out_height * s.out_width, 4096 / C, [&](long first, long last) {
        for (long p = first; p < last; p++) {
            long j = p % s.out_width, i = p / s.out_width % s.out_height, b = p / s.out_width / s.out_height;
            long top = i * s.stride[0] - s.before[0], left = j * s.stride[1] - s.before[1];
            walk(C, [&](long c, long count) {
                Vector total = all(0.0f);
                for (long h = 0; h < s.taps[0]; h++)
                    for (long w = 0; w < s.taps[1]; w++) {
                        long row = top + h * s.dilation[0], column = left + w * s.dilation[1];
                        if (row < 0 || row >= s.height || column < 0 || column >= s.width) continue;
                        Vector v = take(x + ((b * s.height + row) * s.width + column) * C + c, count);
                        total = fma(v, take(filters + (h * s.taps[1] + w) * C + c, count), total);
                    }
                give(y + p * C + c, total, count);
            });
        }
    });
}

template <class T>
void depthwise_back(const Numbers& s, const T* gradient, const T* filters, T* out) {
    long C = s.groups;
    for_ranges(s.batch * s.height * s.width, 4096 / C, [&](long first, long last) {
        for (long p = first; p < last; p++) {
            long w0 = p % s.width + s.before[1], h0 = p / s.width % s.height + s.before[0], b = p / s.width / s.height;
            walk(C, [&](long c, long count) {
                Vector total = all(0.0f);
                for (long h = 0; h < s.taps[0]; h++)
                    for (long w = 0; w < s.taps[1]; w++) {
                        long row = h0 - h * s.dilation[0], column = w0 - w * s.dilation[1];
                        if (row < 0 || column < 0 || row % s.stride[0] || column % s.stride[1]) continue;
                        row /= s.stride[0], column /= s.stride[1];
                        if (row >= s.out_height || column >= s.out_width) continue;
                        Vector v = take(gradient + ((b * s.out_height + row) * s.out_width + column) * C + c, count);
                        total = fma(v, take(filters + (h * s.taps[1] + w) * C + c, count), total);
                    }
                give(out + p * C + c, total, count);
            });
        }
    });
}

template <class T>
void depthwise_filters(const Numbers& s, const T* x, const T* gradient, T* out) {
    long C = s.groups, taps = s.taps[0] * s.taps[1], rows = s.batch * s.out_height;
    long part = std::max(1L, (rows + 31) / 32), parts = (rows + part - 1) / part;  // the same for any number of threads
    float* partial = (float*)calloc(parts * taps * C, sizeof(float));
    for_tasks(parts, [&](long task) {
        float* sums = partial + task * taps * C;
        for (long r = task * part; r < std::min(rows, (task + 1) * part); r++) {
            long b = r / s.out_height, i = r % s.out_height, top = i * s.stride[0] - s.before[0];
            for (long h = 0; h < s.taps[0]; h++) {
                long row = top + h * s.dilation[0];
                if (row < 0 || row >= s.height) continue;
                for (long w = 0; w < s.taps[1]; w++)
                    walk(C, [&](long c, long count) {
                        float* at = sums + (h * s.taps[1] + w) * C + c;
                        Vector total = take(at, count);
                        for (long j = 0; j < s.out_width; j++) {
                            long column = j * s.stride[1] - s.before[1] + w * s.dilation[1];
                            if (column < 0 || column >= s.width) continue;
                            Vector v = take(x + ((b * s.height + row) * s.width + column) * C + c, count);
                            total = fma(v, take(gradient + (r * s.out_width + j) * C + c, count), total);
                        }
                        give(at, total, count);
                    });
            }
        }
    });
    walk(taps * C, [&](long i, long count) {
        Vector total = take(partial + i, count);
        for (long p = 1; p < parts; p++) total = total + take(partial + p * taps * C + i, count);
        give(out + i, total, count);
    });
    free(partial);
}

}  // namespace

// numbers: the fields of Numbers in their order. pass: 0 forward (images, filters, result), 1 gradient of the images
// (gradient, filters, result), 2 gradient of the filters (images, gradient, result).
EXPORT int convolution(int format, int pass, const long* numbers, const void* first, const void* second, void* out) {
    Numbers s;
    memcpy(&s, numbers, sizeof(s));
    bool single = s.in_channels == 1 && s.out_channels == 1;
    return for_format(format, [&](auto number) {
        using T = decltype(number);
        const T *a = (const T*)first, *b = (const T*)second;
        if (pass == 0) (single ? depthwise<T> : convolve<T>)(s, a, b, (T*)out);
        else if (pass == 1) (single ? depthwise_back<T> : convolve_back<T>)(s, a, b, (T*)out);
        else (single ? depthwise_filters<T> : filters_gradient<T>)(s, a, b, (T*)out);
    });
}
