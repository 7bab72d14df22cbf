// Gradients of the filters of bfloat16 convolutions [B, H, W, C] by AMX. Pixels of a batch are packed one after the other,
// with gaps of zeros between rows and between images that are as wide as windows reach beyond the edges: so each tap of a
// window is a product of the same two factors, one of them from another pixel on.
#include <climits>
#include <cmath>

#include "depthwise.h"
#include "interface.h"
#include "tiles.h"

#if HAS_AMX
namespace {

using tiles::PANEL;
using tiles::STEP;

constexpr long STEP_NUMBERS = PANEL * STEP;  // of a step of a packed panel
constexpr long BLOCK = 48;      // steps that are multiplied with what a core's second cache keeps
constexpr long SOME = 8;        // of results that are packed at a time
constexpr long TASK_SUMS = 1 << 18;
constexpr long TASKS = 8;       // of all of a batch

// Of a stride only every so many pixels are read by a tap: those of a phase.
struct Tap {
    long phase, shift;  // in pixels of the phase
};
Tap tap_of(const Numbers& s, int axis, long tap) {
    long place = tap * s.dilation[axis] - s.before[axis], stride = s.stride[axis];
    long phase = (place % stride + stride) % stride;
    return {phase, (place - phase) / stride};
}

// How far it is from one row or image to the next, in pixels or rows.
long pitch(const Numbers& s, int axis) {
    long size = axis ? s.width : s.height, results = axis ? s.out_width : s.out_height;
    long first = tap_of(s, axis, 0).shift, last = tap_of(s, axis, s.taps[axis] - 1).shift;
    return std::max(results + std::max(last, 0L), (size + s.stride[axis] - 1) / s.stride[axis] - std::min(first, 0L));
}

// Memory that is asked for while others are multiplied.
struct Ahead {
    const char *at = nullptr, *end = nullptr;
    long each = 0;  // bytes at a time

    __attribute__((always_inline)) void ask() {
        for (const char* last = std::min(at + each, end); at < last; at += 64) __builtin_prefetch(at, 0, 2);
    }
};

// The pixels of images, or those of a phase, [batch, height, width], and how far it is from one to the next.
struct Pixels {
    const BFloat16* first;
    long batch, height, width, image, row, pixel, lines, pitch;

    // List those from the k-th place on; none lies in gaps and outside the batch.
    void list(long k, long count, const BFloat16* none, const BFloat16** to) const {
        k += lines * pitch;  // from an image before the first one
        for (long b = k / (lines * pitch) - 1, y = k / pitch % lines, x = k % pitch; count > 0; x = 0) {
            bool lies = b >= 0 && b < batch && y < height;
            const BFloat16* line = first + b * image + y * row;
            for (; x < pitch && count > 0; x++, count--) *to++ = lies && x < width ? line + x * pixel : none;
            if (++y == lines) y = 0, b++;
        }
    }
    // The place in memory of the k-th one, or of the next.
    const BFloat16* near(long k) const {
        long b = k / (lines * pitch), y = k / pitch % lines, x = k % pitch;
        if (b >= batch) return first + batch * image;
        return first + b * image + (y < height ? y * row + std::min(x, width) * pixel : height * row);
    }
};

// Numbers as bfloat16 holds them.
Vector rounded(Vector v) {
    return (Vector)_mm512_slli_epi32(_mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(v)), 16);
}

template <class T>
class Gradient {
  public:
    Gradient(const Numbers& s, const BFloat16* images, const BFloat16* results, T* out)
        : s_(s), images_(images), results_(results), out_(out), lines_(pitch(s, 0)), pitch_(pitch(s, 1)),
          taps_(s.taps[0] * s.taps[1]), steps_(parts(s.batch * lines_ * pitch_, STEP)),
          strips_(parts(s.in_channels, PANEL)), panels_(parts(s.out_channels, PANEL)), strip_(panels_ * taps_ * tiles::AREA),
          none_(std::max(s.in_channels, s.out_channels), BFloat16{}) {}

    void run() const {
        // A task has as many strips of channels as a core's second cache keeps the sums of; where it has them all, there are
        // tasks for parts of the pixels.
        long group = std::clamp(TASK_SUMS / strip_, 1L, strips_), groups = parts(strips_, group);
        group = parts(strips_, groups);
        long many = groups > 1 ? 1 : std::min(TASKS, parts(steps_, BLOCK)), share = parts(parts(steps_, many), BLOCK) * BLOCK;
        many = parts(steps_, share);
        static thread_local Scratch all_results, all_sums;
        BFloat16* lefts = groups > 1 ? (BFloat16*)all_results.floats(panels_ * steps_ * STEP_NUMBERS / 2) : nullptr;
        float* sums = many > 1 ? all_sums.floats(many * strips_ * strip_) : nullptr;
        std::atomic<bool> broken{false};
        if (lefts)
            for_tasks(parts(steps_, SOME), [&](long task) {
                long first = task * SOME, last = std::min(steps_, first + SOME);
                if (!pack_results(first, last, lefts + first * STEP_NUMBERS, steps_)) broken = true;
            });
        for_tasks(groups * many, [&](long task) {
            static thread_local Scratch scratch;
            long first = task % groups * group, last = std::min(strips_, first + group), part = task / groups;
            float* own = sums ? sums + part * strips_ * strip_ : scratch.floats(group * strip_);
            multiply(first, last, part * share, std::min(steps_, (part + 1) * share), lefts, broken, own);
            if (!sums)
                for (long q = 0; q < panels_; q++) finish(first, last, q, own, 1);
        });
        if (sums) for_tasks(panels_, [&](long q) { finish(0, strips_, q, sums, many); });
    }

  private:
    Pixels results() const {
        long row = s_.out_width * s_.out_channels;
        return {results_, s_.batch, s_.out_height, s_.out_width, s_.out_height * row, row, s_.out_channels, lines_, pitch_};
    }
    Pixels images(long down, long right) const {
        long row = s_.width * s_.in_channels, tall = s_.stride[0], wide = s_.stride[1];
        const BFloat16* first = images_ + down * row + right * s_.in_channels;
        return {first, s_.batch, parts(s_.height - down, tall), parts(s_.width - right, wide), s_.height * row, tall * row,
                wide * s_.in_channels, lines_, pitch_};
    }
    // Numbers of a pixel; which of them are not finite is added to the marks.
    static Vector numbers(const BFloat16* pixel, long count, uint32_t& marks) {
        const __m512i magnitude = _mm512_set1_epi16(0x7FFF), infinity = _mm512_set1_epi16(0x7F80);
        Vector v = tiles::some(pixel, count);
        marks |= _mm512_cmpge_epu16_mask(_mm512_and_si512((__m512i)v, magnitude), infinity);
        return v;
    }

    // Pack steps of results to panels of a left factor, so many steps apart, and return whether they are finite.
    bool pack_results(long first, long last, BFloat16* to, long steps) const {
        const BFloat16* pixels[BLOCK * STEP];
        uint32_t marks = 0;
        results().list(first * STEP, (last - first) * STEP, none_.data(), pixels);
        for (long step = first; step < last; step++)
            for (long q = 0; q < panels_; q++) {
                Vector tile[PANEL];
                long channel = q * PANEL, count = s_.out_channels - channel;
                const BFloat16** from = pixels + (step - first) * STEP;
                for (long p = 0; p < amx::PAIRS; p++) {
                    Vector even = numbers(from[2 * p] + channel, count, marks);
                    Vector odd = numbers(from[2 * p + 1] + channel, count, marks);
                    tile[p] = tiles::pairs(even, odd, 0), tile[p + amx::SIDE] = tiles::pairs(even, odd, W);
                }
                transpose(tile), transpose(tile + amx::SIDE);
                float* place = (float*)(to + (q * steps + step - first) * STEP_NUMBERS);
                for (long i = 0; i < PANEL; i++) store(place + i * W, tile[i]);
            }
        return !marks;
    }
    // Pack pixels as pairs, 16 channels after the other: those that begin with the first pixel, then those that begin with the
    // second one, if taps read them.
    template <bool FIRST, bool SECOND>
    static uint32_t pack_images(const BFloat16** pixels, long channel, long count, long pairs, float* to, long height) {
        uint32_t marks = 0;
        Vector first = numbers(*pixels++ + channel, count, marks);
        for (long pair = 0; pair < pairs; pair++, to += W, pixels += 2) {
            Vector second = numbers(pixels[0] + channel, count, marks), third = numbers(pixels[1] + channel, count, marks);
            if (FIRST) store(to, tiles::pairs(first, second, 0)), store(to + height, tiles::pairs(first, second, W));
            if (SECOND) {
                store(to + 2 * height, tiles::pairs(second, third, 0));
                store(to + 3 * height, tiles::pairs(second, third, W));
            }
            first = third;
        }
        return marks;
    }

    // Write the sums of some strips of channels over some steps.
    void multiply(long first, long last, long begin, long end, const BFloat16* all, bool broken, float* sums) const {
        static thread_local Scratch packed_results, packed_images;
        amx::Use use;
        std::vector<uint32_t> marks(last - first);
        BFloat16* own = all ? nullptr : (BFloat16*)packed_results.floats(panels_ * BLOCK * STEP_NUMBERS / 2);
        for (long step = begin; step < end; step += BLOCK) {
            long steps = std::min(BLOCK, end - step), apart = all ? steps_ : steps;
            if (own && !pack_results(step, step + steps, own, steps)) broken = true;
            const BFloat16* lefts = all ? all + step * STEP_NUMBERS : own;
            long next = step + steps, times = (last - first) * panels_ * taps_ * steps;
            auto next_block = [&](const Pixels& of, long reach) -> Ahead {
                if (all || next >= end) return {};  // what several tasks read, each a part of it, lies in a cache
                auto place = [&](long step) { return (const char*)of.near(std::max(0L, step * STEP + reach)); };
                const char *from = place(next), *to = place(std::min(next + BLOCK, end));
                return {from, to, (to - from) / 64 / times * 64 + 64};
            };
            Ahead ahead[] = {next_block(results(), 0), next_block(images(0, 0), reach_of(0, 0).last)};
            for (long down = 0; down < s_.stride[0]; down++)
                for (long right = 0; right < s_.stride[1]; right++) {
                    Reach reach = reach_of(down, right);
                    if (reach.first > reach.last) continue;  // no tap reads this phase
                    long pairs = (steps * STEP + reach.last - reach.first) / 2 + 1, height = (pairs | 1) * W;
                    std::vector<const BFloat16*> pixels(2 * pairs + 1);
                    images(down, right).list(step * STEP + reach.first, 2 * pairs + 1, none_.data(), pixels.data());
                    float* packed = packed_images.floats(4 * height);
                    for (long strip = first; strip < last; strip++) {
                        long channel = strip * PANEL, count = s_.in_channels - channel;
                        auto pack = reach.even && reach.odd ? pack_images<true, true>
                                    : reach.even            ? pack_images<true, false>
                                                            : pack_images<false, true>;
                        marks[strip - first] |= pack(pixels.data(), channel, count, pairs, packed, height);
                        multiply_panels(down, right, steps, reach.first, {lefts, apart}, packed, height,
                                        sums + (strip - first) * strip_, step > begin, ahead);
                    }
                }
        }
        if (broken) std::fill(marks.begin(), marks.end(), ~0u);
        for (uint32_t some : marks)
            if (some) return sum_exactly(first, marks, begin * STEP, end * STEP, sums);
    }
    struct Lefts {
        const BFloat16* data;
        long steps;  // from one panel to the next
    };
    void multiply_panels(long down, long right, long steps, long reach, Lefts lefts, const float* packed, long height,
                         float* sums, bool add, Ahead* ahead) const {
        long part = parts(steps, parts(steps, tiles::STEPS));
        for (long q = 0; q < panels_; q++)
            for (long i = 0; i < s_.taps[0]; i++)
                for (long s = 0; s < steps; s += part)
                    for_taps_of_row(down, right, i, [&](long tap, long far) {
                        long from = far - reach + s * STEP;
                        const float* pairs = packed + from % 2 * 2 * height + from / 2 * W;
                        const BFloat16* left = lefts.data + (q * lefts.steps + s) * STEP_NUMBERS;
                        float* own = sums + (q * taps_ + tap) * tiles::AREA;
                        amx::begin<2, 2>(own, PANEL, add || s);
                        for (long step = std::min(part, steps - s); step > 0; step--, left += STEP_NUMBERS, pairs += W * W) {
                            _tile_stream_loadd(6, pairs, 64);  // the first cache keeps the left panel
                            _tile_loadd(4, left, 64);
                            _tile_stream_loadd(7, pairs + height, 64);
                            _tile_loadd(5, left + STEP_NUMBERS / 2, 64);
                            amx::add_products<2, 2>();
                            ahead[0].ask(), ahead[1].ask();
                        }
                        amx::end<2, 2>(own, PANEL);
                    });
    }
    // How far from a result the first and the last pixel of a phase is that a tap reads, and whether taps read some an even
    // number of pixels behind the first one, and some an odd one.
    struct Reach {
        long first = LONG_MAX, last = LONG_MIN;
        bool even = false, odd = false;
    };
    Reach reach_of(long down, long right) const {
        Reach reach;
        for_taps(down, right, [&](long, long far) {
            reach.first = std::min(reach.first, far), reach.last = std::max(reach.last, far);
        });
        for_taps(down, right, [&](long, long far) { ((far - reach.first) % 2 ? reach.odd : reach.even) = true; });
        return reach;
    }
    // f(tap, how far from a result the pixel is that it reads) for the taps of a phase.
    template <class F>
    void for_taps(long down, long right, F f) const {
        for (long i = 0; i < s_.taps[0]; i++) for_taps_of_row(down, right, i, f);
    }
    template <class F>
    void for_taps_of_row(long down, long right, long i, F f) const {
        Tap y = tap_of(s_, 0, i);
        if (y.phase != down) return;
        for (long j = 0; j < s_.taps[1]; j++) {
            Tap x = tap_of(s_, 1, j);
            if (x.phase == right) f(i * s_.taps[1] + j, y.shift * pitch_ + x.shift);
        }
    }
    bool are_nan(const BFloat16* result) const {
        long o = 0;
        while (o < s_.out_channels && std::isnan(value(result + o))) o++;
        return o == s_.out_channels;
    }
    // The sums of the channels of some strips that are marked, as factors are not finite: gaps have no part in them.
    void sum_exactly(long strip, const std::vector<uint32_t>& marks, long first, long last, float* sums) const {
        std::vector<float> row(panels_ * PANEL);
        std::vector<const BFloat16*> result(last - first), image(last - first);
        results().list(first, last - first, none_.data(), result.data());
        for (long tap = 0; tap < taps_; tap++) {
            Tap y = tap_of(s_, 0, tap / s_.taps[1]), x = tap_of(s_, 1, tap % s_.taps[1]);
            images(y.phase, x.phase).list(first + y.shift * pitch_ + x.shift, last - first, none_.data(), image.data());
            auto read = [&](long k) { return result[k] != none_.data() && image[k] != none_.data(); };
            bool nan = false;  // all gradients of a result, and so the sums of the tap: as in a training that diverged
            for (long k = 0; k < last - first && !nan; k++) nan = read(k) && are_nan(result[k]);
            for (long c = 0; c < std::min((long)marks.size() * PANEL, s_.in_channels - strip * PANEL); c++) {
                if (!(marks[c / PANEL] >> c % PANEL & 1)) continue;
                std::fill(row.begin(), row.end(), nan ? NAN : 0.0f);
                for (long k = 0; k < last - first && !nan; k++) {
                    if (!read(k)) continue;
                    float pixel = value(image[k] + strip * PANEL + c);
                    if (std::isnan(pixel)) {  // and so is the sum
                        std::fill(row.begin(), row.end(), pixel);
                        break;
                    }
                    walk(s_.out_channels, [&](long o, long count) {
                        give(&row[o], fma(take(result[k] + o, count), all(pixel), take(&row[o], count)), count);
                    });
                }
                float* own = sums + c / PANEL * strip_ + c % PANEL;
                for (long o = 0; o < panels_ * PANEL; o++)
                    own[(o / PANEL * taps_ + tap) * tiles::AREA + o % PANEL * PANEL] = row[o];
            }
        }
    }
    // Write the filters of a panel of outputs and some strips of channels: sums of parts, a whole batch's sums apart.
    void finish(long first, long last, long q, const float* sums, long many) const {
        for (long o = q * PANEL; o < std::min(s_.out_channels, (q + 1) * PANEL); o++)
            for (long c = first * PANEL; c < std::min(s_.in_channels, last * PANEL); c += W) {
                const float* strip = sums + (c / PANEL - first) * strip_ + q * taps_ * tiles::AREA;
                const float* from = strip + o % PANEL * PANEL + c % PANEL;
                long count = std::min(s_.in_channels - c, (long)W);
                for (long tap = 0; tap < taps_; tap += W) {
                    long some = std::min(taps_ - tap, (long)W);
                    Vector block[W];
                    for (long t = 0; t < W; t++) {
                        block[t] = all(0.0f);
                        for (long part = 0; t < some && part < many; part++)
                            block[t] = block[t] + load(from + part * strips_ * strip_ + (tap + t) * tiles::AREA);
                        block[t] = rounded(block[t]);
                    }
                    transpose(block);
                    for (long i = 0; i < count; i++) give(out_ + (o * s_.in_channels + c + i) * taps_ + tap, block[i], some);
                }
            }
    }

    Numbers s_;
    const BFloat16 *images_, *results_;
    T* out_;  // [O, C, kh, kw]
    // Rows and pixels from an image or row to the next, and all of them; numbers of 32 channels and 32 outputs; a strip's sums.
    long lines_, pitch_, taps_, steps_, strips_, panels_, strip_;
    std::vector<BFloat16> none_;  // a pixel of zeros
};

}  // namespace
#endif

// Filters [O, C, kh, kw], rounded to bfloat16, in this or a wider format, from images [B, H, W, C] and the gradient of results
// [B, H', W', O]; numbers: as in convolution.cpp, without groups.
EXPORT int window_gradient(int format, const long* numbers, const void* images, void* filters, const void* results) {
#if HAS_AMX
    Numbers s;
    memcpy(&s, numbers, sizeof(s));
    if (!amx::granted()) return 1;
    return for_format(format, [&](auto number) {
        using T = decltype(number);
        Gradient<T>(s, (const BFloat16*)images, (const BFloat16*)results, (T*)filters).run();
    });
#else
    return 1;
#endif
}
