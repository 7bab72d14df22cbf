// Convolutions of bfloat16 images [B, H, W, C] by AMX, with windows of several pixels. Bands of rows are copied to a core's
// second cache, so that each tap of a panel of results reads pixels side by side: a product whose left factor lies in
// another place for each tap. A row of results is followed by as many as windows reach beyond it, which nobody wants.
#pragma once
#include <vector>

#include "activations.h"
#include "depthwise.h"
#include "tiles.h"

#if HAS_AMX
namespace {

constexpr long ONE_BAND = 1 << 18;  // numbers that a band is copied to
constexpr long WHOLE = 1 << 19;     // numbers of filters that the cache keeps beside it
constexpr long SHARE = 1 << 17;     // numbers of filters at a time where these are more
constexpr long BANDS = 3 << 18;     // numbers of the bands that wait for the next share
constexpr long COPIED = 4;          // as much as numbers of filters that are read take those of a band, which are copied

// Half of 32 numbers: one permutation where the general way takes two steps.
static inline Vector widened(__m512i numbers, int from) {
    const __m512i lanes = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    const __m512i upper = _mm512_slli_epi32(_mm512_add_epi32(lanes, _mm512_set1_epi32(from)), 16);
    return (Vector)_mm512_maskz_permutexvar_epi16(0xAAAAAAAA, upper, numbers);
}

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
    struct Panel {
        Vector factor[2], addend[2];
        BFloat16* out;
        const BFloat16* residual;

        __attribute__((always_inline)) void write(BFloat16* place, long, long n, long, float* sums) const {
            Vector low = fma(load(sums), factor[0], addend[0]), high = fma(load(sums + W), factor[1], addend[1]);
            if (residual) {
                __m512i more = _mm512_loadu_si512(residual + (place - out) + n);
                low = low + widened(more, 0), high = high + widened(more, W);
            }
            // Results below the smallest normal number are 0, as sums are.
            low = Activation{}.forward(low), high = Activation{}.forward(high);
            _mm512_storeu_si512(place + n, (__m512i)_mm512_cvtne2ps_pbh(high, low));
        }
    };
    Normalised from(long m) const {
        return {out + m * pixel, pixel, {ending.factor, ending.addend, ending.residual ? ending.residual + m * pixel : nullptr}};
    }
    Panel panel(long n) const {
        const float *factor = ending.factor + n, *addend = ending.addend + n;
        if (!ending.factor) return {{all(1.0f), all(1.0f)}, {all(0.0f), all(0.0f)}, out, ending.residual};
        return {{load(factor), load(factor + W)}, {load(addend), load(addend + W)}, out, ending.residual};
    }
};

// The same where the rows of a product are pixels of a band, or nothing.
template <class Activation>
struct Windowed {
    Normalised<Activation> each;
    const int* pixels;

    bool rounds_only() const { return false; }
    long row_step() const { return 0; }
    BFloat16* row(long) const { return each.out; }
    struct Panel {
        typename Normalised<Activation>::Panel each;
        long pixel;
        const int* pixels;

        __attribute__((always_inline)) void write(BFloat16*, long m, long n, long columns, float* sums) const {
            if (pixels[m] >= 0) each.write(each.out + pixels[m] * pixel, m, n, columns, sums);
        }
    };
    Panel panel(long n) const { return {each.panel(n), each.pixel, pixels}; }
};

// How what a band of results reads is copied: for each phase of the strides [rows, columns, channels], with zeros around.
struct Band {
    const Numbers& s;
    bool folds;                                     // the columns of a window are channels, too
    long step, terms;                               // numbers of a pixel, and of a window
    long reach[2], phases[2], beyond[2];            // how far a window reaches, in pixels and in those of a phase
    long rows, columns;                             // of results; with those that nobody wants

    explicit Band(const Numbers& s) : s(s), folds(s.in_channels % tiles::STEP), step(folds ? tiles::STEP : s.in_channels) {
        for (int axis = 0; axis < 2; axis++) {
            reach[axis] = folds && axis ? 0 : (s.taps[axis] - 1) * s.dilation[axis];
            phases[axis] = std::min(reach[axis] + 1, s.stride[axis]), beyond[axis] = reach[axis] / s.stride[axis];
        }
        columns = s.out_width + beyond[1];
        terms = s.taps[0] * (folds ? 1 : s.taps[1]) * step;
        // As many rows as the cache keeps, as few as all threads want, and no panel of few.
        long each = phases[0] * phases[1] * columns * step, wanted = parts(s.batch * s.out_height, omp_get_max_threads());
        rows = std::clamp(ONE_BAND / each - beyond[0], 1L, s.out_height);
        rows = std::min(rows, std::max(wanted, parts(2 * tiles::PANEL, columns)));
        rows = parts(s.out_height, parts(s.out_height, rows));
    }
    long phase_pixels() const { return (rows + beyond[0]) * columns; }
    // With what panels read behind the last phase: it has no results.
    long numbers() const { return (phases[0] * phases[1] * phase_pixels() + 2 * tiles::PANEL + beyond[1]) * step; }

    // Where the steps of a product begin, from the first pixel of a window on.
    std::vector<long> places() const {
        std::vector<long> found;
        for (long y = 0; y <= reach[0]; y += s.dilation[0])
            for (long x = 0; x <= reach[1]; x += s.dilation[1]) {
                long phase = y % s.stride[0] * phases[1] + x % s.stride[1];
                long pixel = phase * phase_pixels() + y / s.stride[0] * columns + x / s.stride[1];
                for (long c = 0; c < step; c += tiles::STEP) found.push_back(pixel * step + c);
            }
        return found;
    }
    // The pixel of each result, or -1.
    std::vector<int> pixels() const {
        std::vector<int> found(rows * columns, -1);
        for (long i = 0; i < rows; i++)
            for (long j = 0; j < s.out_width; j++) found[i * columns + j] = i * s.out_width + j;
        return found;
    }

    // Copy what the results from row `first` on read, in the order in which it lies in memory.
    void copy(const BFloat16* image, long first, BFloat16* to) const {
        for (long r = 0; r < rows + beyond[0]; r++)
            for (long y = 0; y < phases[0]; y++) {
                long h = (first + r) * s.stride[0] + y - s.before[0];
                const BFloat16* row = h >= 0 && h < s.height ? image + h * s.width * s.in_channels : nullptr;
                BFloat16* out = to + (y * phases[1] * phase_pixels() + r * columns) * step;
                if (folds) fold(row, out);
                else copy_row(row, out);
            }
    }

  private:
    // A row of pixels, each to its phase; zeros where there is no row.
    void copy_row(const BFloat16* row, BFloat16* to) const {
        long stride = s.stride[1], before = s.before[1], phase = phase_pixels() * step, size = step * sizeof(BFloat16);
        for (long x = 0; x < phases[1]; x++) {  // what lies beside the image
            long begin = row ? std::clamp(parts(before - x, stride), 0L, columns) : columns;
            long end = row ? std::clamp(parts(s.width + before - x, stride), begin, columns) : columns;
            memset(to + x * phase, 0, begin * size);
            memset(to + x * phase + end * step, 0, (columns - end) * size);
        }
        long first = row ? std::max(0L, -before) : 0, last = row ? std::min(s.width, columns * stride - before) : 0;
        if (stride == 1 && first < last) memcpy(to + (first + before) * step, row + first * step, (last - first) * size);
        for (long w = first; w < last && stride > 1; w++) {
            if ((w + before) % stride >= phases[1]) continue;
            BFloat16* pixel = to + (w + before) % stride * phase + (w + before) / stride * step;
            for (long c = 0; c < step; c += tiles::STEP) _mm512_store_si512(pixel + c, _mm512_loadu_si512(row + w * step + c));
        }
    }
    // All that a row of a window reads as one pixel.
    void fold(const BFloat16* row, BFloat16* to) const {
        if (!row) return (void)memset(to, 0, columns * step * sizeof(BFloat16));
        // Own names: what is stored might be these members.
        const long C = s.in_channels, width = s.taps[1] * C, line = s.width * C, stride = s.stride[1] * C, count = columns;
        long from = -s.before[1] * C;
        for (long j = 0; j < count; j++, from += stride, to += tiles::STEP) {
            uint32_t mask = (uint32_t)((1ul << width) - 1);
            if (from < 0 || from + width > line) {  // beside the image
                long begin = std::clamp(-from, 0L, width), end = std::clamp(line - from, begin, width);
                mask = (uint32_t)((1ul << end) - (1ul << begin));
            }
            _mm512_store_si512(to, _mm512_maskz_loadu_epi16(mask, row + from));
        }
    }
};

// Rows of a panel, which lie in another place at each step.
struct Window {
    const BFloat16* data;
    long row;
    const long* places;

    const BFloat16* at(long step) const { return data + places[step]; }
};

template <class Activation>
void convolve(const Numbers& s, const BFloat16* images, const BFloat16* filters, const Normalised<Activation>& all) {
    Band band(s);
    const std::vector<long> places = band.places();
    const std::vector<int> pixels = band.pixels();
    long size = band.numbers(), steps = places.size(), whole = band.terms * tiles::PANEL, at_a_time = parts(tiles::PANEL, steps);
    // Filters that the cache does not keep are divided, and as many bands as it keeps wait for the next share.
    long panels = s.out_channels / tiles::PANEL, threads = omp_get_max_threads();
    bool divides = panels * whole > WHOLE;
    long share = divides ? std::max(1L, SHARE / whole) : panels, across = parts(panels, share);
    long down = parts(s.out_height, band.rows), count = s.batch * down, copies = divides ? std::max(1L, BANDS / size) : 1;
    long chunk = parts(count, threads == 1 ? 1 : divides ? 3 * threads : 8 * threads), split = 1;
    if (divides) {
        // Threads divide the bands and read all filters, or the filters and copy all bands: what takes less of memory.
        chunk = std::min(chunk, copies);
        long most = std::min(count, copies), columns = std::min(across, threads);
        long by_bands = parts(parts(count, chunk), threads) * (panels * whole + COPIED * chunk * size);
        long by_filters = parts(count, most) * panels * whole / columns + COPIED * count * size;
        if (by_filters < by_bands) chunk = most, split = columns;
    }
    long chunks = parts(count, chunk);
    for_tasks(chunks * split, [&](long task) {
        static thread_local Scratch copied, scratch;
        BFloat16* buffer = (BFloat16*)copied.floats(parts(copies * size, 2));
        float* sums = scratch.floats(2 * tiles::AREA);
        amx::Use use;
        long first = task / split * chunk, last = std::min(first + chunk, count);
        for (long a = task % split; a < across; a += split) {
            // The next share is asked for meanwhile.
            long more = std::clamp(panels - (a + split) * share, 0L, share);
            tiles::Ahead next(filters + (a + split) * share * whole, whole, more, whole);
            long each = next.each((last - first) * parts(band.rows * band.columns, tiles::PANEL) * share * steps);
            for (long i = first; i < last; i++) {
                long b = i / down, row = i % down * band.rows, rows = std::min(band.rows, s.out_height - row);
                BFloat16* data = buffer + (i - first) % copies * size;
                if (a == task % split) band.copy(images + b * s.height * s.width * s.in_channels, row, data);
                Windowed<Activation> finish{all.from((b * s.out_height + row) * s.out_width), pixels.data()};
                long M = rows * band.columns - band.beyond[1], until = std::min(panels, (a + 1) * share);
                tiles::Written<Windowed<Activation>> written{finish, M, s.out_channels};
                for (long p = 0, block = 0; p < parts(M, tiles::PANEL); p++) {
                    Window left{data + p * tiles::PANEL * band.step, band.step, places.data()};
                    for (long q = a * share; q < until; q++, block ^= 1) {
                        float* own = sums + block * tiles::AREA;
                        tiles::multiply(steps, left, filters + q * whole, own, false, [&](long) {
                            written.rows(at_a_time);
                            next.ask(each);
                        });
                        written.begin({p, q, own});
                    }
                }
                written.end();
            }
        }
    });
}

}  // namespace
#endif
