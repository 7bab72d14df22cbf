// Convolution of images [B, H, W, C] as products with a matrix that is never written: its rows are pixels, its columns
// (tap, channel), and a block of it is gathered from the images where the product packs its operands.
//
// Filters are given as [tap][input channel][output channel] forward, [tap][output][input] for the gradient of the
// images; the gradient of the filters comes out as [output channel][tap][input channel]. Filters of a single tap, and the
// gradient of such, are [output channel][input channel] throughout, those of single channels with a few results
// [tap][output channel].
#include "activations.h"
#include "depthwise.h"
#include "interface.h"
#include "few_columns.h"

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
    using Number = T;
    static constexpr bool COLUMNS = false;
    const T* images;
    long pixel, channels;  // elements from one source pixel to the next, and those that take part
    const Grid* grid;
    long joined;  // taps that lie side by side in memory, 1 where they do not: a few channels are read as one piece

    Gathered(const T* images, long pixel, long channels, const Grid* grid)
        : images(images), pixel(pixel), channels(channels), grid(grid), joined(1) {
        if (pixel != channels || channels >= W) return;
        long taps = grid->across.size();
        while (joined < taps && grid->down[joined] == grid->down[0] && grid->across[joined] == grid->across[0] + joined)
            joined++;
        if (taps % joined) joined = 1;
    }

    // A run of columns that lies in one piece: where it goes, how long it is, and its place from the grid pixel's.
    struct Piece {
        long at, count, channel, down, across, offset;
    };

    // Return the pieces of columns [first, last).
    const std::vector<Piece>& pieces(long first, long last) const {
        static thread_local std::vector<Piece> found;
        found.clear();
        long width = joined * channels;
        for (long at = first; at < last; at += found.back().count) {
            long tap = at / width * joined, c = at % width, down = grid->down[tap], across = grid->across[tap];
            long offset = (down * grid->source_width + across) * pixel + c;
            found.push_back({at - first, std::min(width - c, last - at), c, down, across, offset});
        }
        return found;
    }

    // A grid pixel (b, i, j), from which the next one is found without a division.
    struct Place {
        const Grid* grid;
        long b, i, j;
        Place(const Grid* grid, long p)
            : grid(grid), b(p / grid->width / grid->height), i(p / grid->width % grid->height), j(p % grid->width) {}
        void next() {
            if (++j < grid->width) return;
            j = 0;
            if (++i == grid->height) i = 0, b++;
        }
    };

    void row(const Place& p, const std::vector<Piece>& pieces, float* to) const {
        long h0 = p.i * grid->step[0], w0 = p.j * grid->step[1];
        const T* base = images + ((p.b * grid->source_height + h0) * grid->source_width + w0) * pixel;
        for (const Piece& piece : pieces) {
            const T* from = base + piece.offset;
            float* target = to + piece.at;
            long h = h0 + piece.down, w = w0 + piece.across;
            if (h < 0 || h >= grid->source_height || w >= grid->source_width || w + joined <= 0)
                memset(target, 0, piece.count * sizeof(float));
            else if (w >= 0 && w + joined <= grid->source_width)
                walk(piece.count, [&](long k, long lanes) { give(target + k, take(from + k, lanes), lanes); });
            else
                for (long k = 0; k < piece.count; k++) {
                    long column = w + (piece.channel + k) / channels;
                    target[k] = column >= 0 && column < grid->source_width ? value(from + k) : 0.0f;
                }
        }
    }

    // As the left operand: rows are pixels.
    void pack(long m0, long rows, long k0, long kc, float* panels, long height) const {
        const std::vector<Piece>& parts = pieces(k0, k0 + kc);
        Place place(grid, m0);
        for (long m = 0; m < rows; m++, place.next()) row(place, parts, panels + m * KS);
        for (long m = rows; m % height; m++) memset(panels + m * KS, 0, kc * sizeof(float));
    }
};

// The same matrix as the right operand of the filters' gradient: rows are pixels, which are summed.
template <class T>
struct GatheredRight {
    Gathered<T> matrix;

    void pack(long n0, long columns, long k0, long kc, float* panels, long distance) const {
        // Pixel by pixel, as they lie in memory.
        alignas(64) float row[GROUP * NR] = {};
        const auto& parts = matrix.pieces(n0, n0 + columns);
        typename Gathered<T>::Place place(matrix.grid, k0);
        for (long k = 0; k < kc; k++, place.next()) {
            matrix.row(place, parts, row);
            for (long n = 0; n < columns; n += W)
                store(panels + n / NR * distance + k * NR + n % NR, load(row + n));
        }
    }
};

template <class T>
struct Pixels {
    T* data;
    long pixel;
    const Grid* grid;
    long image_height, image_width, step[2], first[2];  // where grid pixel (i, j) is written
    long channel = 0;                                   // that `data` begins with
    Ending<T> ending = {};

    bool rounds_only() const { return !ending.factor; }
    long row_step() const { return pixel; }
    T* row(long m) const {
        if (step[0] == 1 && step[1] == 1) return data + m * pixel;  // every pixel, in turn
        long j = m % grid->width, i = m / grid->width % grid->height, b = m / grid->width / grid->height;
        return data + ((b * image_height + i * step[0] + first[0]) * image_width + j * step[1] + first[1]) * pixel;
    }
    void write(T* place, long, long n, long count, float* sums) const {
        walk(count, [&](long k, long lanes) {
            T* to = place + n + k;
            give(to, ending(load(sums + k), channel + n + k, to - data + channel, lanes), lanes);
        });
    }
};

// A convolution of single taps on every pixel from K channels to N, a product of pixels with the filters, where these are
// few. False where it is none.
template <class T>
bool pointwise(const Numbers& s, long K, long N, const T* x, const T* filters, long row, long column, T* y,
               const Ending<T>& ending) {
    bool every = s.height == s.out_height && s.width == s.out_width && s.before[0] == 0 && s.before[1] == 0;
    every = every && s.stride[0] == 1 && s.stride[1] == 1;  // with strides the last ones are padding
    if (s.taps[0] * s.taps[1] * s.groups != 1 || !every || !has_few_columns<T>(N, K)) return false;
    auto left = [&](long) { return LeftMatrix<T, false>{x, K, 1}; };
    auto right = [&](long) { return RightMatrix<T>{filters, row, column}; };
    auto finish = [&](long) { return Pixels<T>{y, N, nullptr, 0, 0, {1, 1}, {0, 0}, 0, ending}; };
    few_columns(1, s.batch * s.height * s.width, N, K, left, right, finish);
    return true;
}

template <class T>
void convolve(const Numbers& s, const T* x, const T* filters, T* y, const Ending<T>& ending) {
    if (pointwise(s, s.in_channels, s.out_channels, x, filters, 1, s.in_channels, y, ending)) return;
    Grid grid{s.out_height, s.out_width, s.height, s.width, {s.stride[0], s.stride[1]}, {}, {}};
    for (long h = 0; h < s.taps[0]; h++)
        for (long w = 0; w < s.taps[1]; w++) {
            grid.down.push_back(h * s.dilation[0] - s.before[0]);
            grid.across.push_back(w * s.dilation[1] - s.before[1]);
        }
    long C = s.in_channels, O = s.out_channels, taps = grid.down.size();
    // A single tap takes the filters as they are, [output channel][input channel].
    long row = taps > 1 ? O : 1, column = taps > 1 ? 1 : C;
    auto left = [&](long group) { return Gathered<T>(x + group * C, s.groups * C, C, &grid); };
    auto right = [&](long group) { return RightMatrix<T>{filters + group * taps * C * O, row, column}; };
    auto finish = [&](long group) {
        return Pixels<T>{y + group * O, s.groups * O, &grid, s.out_height, s.out_width, {1, 1}, {0, 0},
                         group * O, ending};
    };
    products(s.groups, s.batch * s.out_height * s.out_width, O, taps * C, left, right, finish);
}

template <class T>
void convolve_back(const Numbers& s, const T* gradient, const T* filters, T* out) {
    if (pointwise(s, s.out_channels, s.in_channels, gradient, filters, s.in_channels, 1, out, {})) return;
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
            auto left = [&](long group) { return Gathered<T>(gradient + group * O, s.groups * O, O, &grid); };
            auto right = [&](long group) { return RightMatrix<T>{right_filters + group * taps * O * C, C, 1}; };
            auto finish = [&](long group) {
                return Pixels<T>{out + group * C, s.groups * C, &grid, s.height, s.width,
                                 {s.stride[0], s.stride[1]}, {a, b}};
            };
            products(s.groups, s.batch * grid.height * grid.width, C, taps * O, left, right, finish);
        }
}

template <class T>
struct FilterRows {
    T* data;
    long columns;
    T* row(long m) const { return data + m * columns; }
    void write(T* place, long, long n, long count, float* sums) const {
        walk(count, [&](long k, long lanes) { give(place + n + k, load(sums + k), lanes); });
    }
};

template <class T>
void filters_gradient(const Numbers& s, const T* x, const T* gradient, T* out) {
    Grid grid{s.out_height, s.out_width, s.height, s.width, {s.stride[0], s.stride[1]}, {}, {}};
    for (long h = 0; h < s.taps[0]; h++)
        for (long w = 0; w < s.taps[1]; w++) {
            grid.down.push_back(h * s.dilation[0] - s.before[0]);
            grid.across.push_back(w * s.dilation[1] - s.before[1]);
        }
    long C = s.in_channels, O = s.out_channels, columns = grid.down.size() * C;
    auto left = [&](long group) { return LeftMatrix<T, true>{gradient + group * O, 1, s.groups * O}; };
    auto right = [&](long group) { return GatheredRight<T>{{x + group * C, s.groups * C, C, &grid}}; };
    auto finish = [&](long group) { return FilterRows<T>{out + group * O * columns, columns}; };
    products(s.groups, O, columns, s.batch * s.out_height * s.out_width, left, right, finish);
}

}  // namespace

// numbers: the fields of Numbers in their order. pass: 0 forward (images, filters, result), 1 gradient of the images
// (gradient, filters, result), 2 gradient of the filters (images, gradient, result). Forward with an activation's name:
// activation(factor * convolution + addend + residual); the residual may be null.
EXPORT int convolution(int format, int pass, const long* numbers, const char* activation, const void* first,
                       const void* second, void* out, const float* factor, const float* addend, const void* residual) {
    Numbers s;
    memcpy(&s, numbers, sizeof(s));
    bool single = s.in_channels == 1 && s.out_channels <= FEW_RESULTS;
    return for_format(format, [&](auto number) {
        using T = decltype(number);
        const T *a = (const T*)first, *b = (const T*)second;
        Ending<T> ending{factor, addend, (const T*)residual};
        auto fuse = [&](auto f) { ending.activation = [](Vector v) { return decltype(f){}.forward(v); }; };
        if (activation && for_fused<T>(activation, fuse)) return 1;
        if (pass == 0) (single ? depthwise<T> : convolve<T>)(s, a, b, (T*)out, ending);
        else if (pass == 1) (single ? depthwise_back<T> : convolve_back<T>)(s, a, b, (T*)out);
        else (single ? depthwise_filters<T> : filters_gradient<T>)(s, a, b, (T*)out);
        return 0;
    });
}
