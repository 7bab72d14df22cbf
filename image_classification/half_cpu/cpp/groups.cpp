// Normalisation of groups of channels, each image by itself: group and instance normalisation. Images lie as [batch,
// pixels, channels] or as planes [batch, channels, pixels]; statistics are float32 and two passes make the variance.
#include <type_traits>

#include "interface.h"
#include "parallel.h"

namespace {

struct Images {
    long batch, channels, pixels, groups;
    bool last;  // the channels lie side by side
    long per_group() const { return channels / groups; }
    long elements() const { return per_group() * pixels; }
    // Whole groups of at least this many channels are one task.
    long together() const { return last ? std::min(groups, (63 + per_group()) / per_group()) : 1; }
};

// Call f(image, first group, last group) for all groups of all images.
template <class F>
void for_groups(const Images& s, F f) {
    long some = s.together(), blocks = (s.groups + some - 1) / some;
    for_ranges(s.batch * blocks, GRAIN / std::max(1L, some * s.elements()), [&](long first, long last) {
        for (long task = first; task < last; task++) {
            long group = task % blocks * some;
            f(task / blocks, group, std::min(s.groups, group + some));
        }
    });
}

// Write f(place, count, of) of the elements of channels [first, last) of an image, in the order of memory; of()
// returns a channel's values for these elements.
template <class T, class F>
void map_elements(const Images& s, long image, long first, long last, T* to, F f) {
    if (s.last) {
        for (long p = 0; p < s.pixels; p++)
            map(last - first, to + (image * s.pixels + p) * s.channels + first, [&](long i, long count) {
                long c = first + i;
                return f((image * s.pixels + p) * s.channels + c, count, [&](const float* values) { return take(values + c, count); });
            });
        return;
    }
    for (long c = first; c < last; c++)
        map(s.pixels, to + (image * s.channels + c) * s.pixels, [&](long i, long count) {
            return f((image * s.channels + c) * s.pixels + i, count, [&](const float* values) { return all(values[c]); });
        });
}

// Write the sums of f(place, count, channel's values) over the pixels of each channel [first, last).
template <class F>
void channel_sums(const Images& s, long image, long first, long last, float* sums, F f) {
    if (s.last) {
        return for_vectors(last - first, [&](long i, long count, auto many) {
            long c = first + i;
            Vector total[decltype(many)::value];
            for (long k = 0; k < many; k++) total[k] = all(0.0f);
            for (long p = 0; p < s.pixels; p++)
                for (long k = 0; k < many; k++) {
                    auto of = [&](const float* values) { return take(values + c + k * W, count); };
                    total[k] = total[k] + f((image * s.pixels + p) * s.channels + c + k * W, count, of);
                }
            for (long k = 0; k < many; k++) give(sums + c + k * W, total[k], count);
        });
    }
    for (long c = first; c < last; c++) {
        auto of = [&](const float* values) { return all(values[c]); };
        Vector total[2] = {all(0.0f), all(0.0f)};
        walk(s.pixels, [&](long i, long count) {
            total[i / W % 2] = total[i / W % 2] + within(f((image * s.channels + c) * s.pixels + i, count, of), count);
        });
        sums[c] = sum(total[0] + total[1]);
    }
}

// Give each channel of a group the sum over the group, times a factor.
void share(const Images& s, long first, long last, float factor, float* values) {
    for (long group = first; group < last; group++) {
        float *at = values + group * s.per_group(), total = 0;
        for (long c = 0; c < s.per_group(); c++) total += at[c];
        for (long c = 0; c < s.per_group(); c++) at[c] = total * factor;
    }
}

template <class T>
void normalize(const Images& s, float epsilon, const T* x, const float* scale, const float* shift, T* y, float* means,
               float* factors) {
    for_groups(s, [&](long image, long first_group, long last_group) {
        static thread_local Scratch scratch;
        float *slope = scratch.floats(s.channels + W), *mean = means + image * s.channels;
        float* factor = factors + image * s.channels;
        long first = first_group * s.per_group(), last = last_group * s.per_group();
        channel_sums(s, image, first, last, mean, [&](long at, long count, auto) { return take(x + at, count); });
        share(s, first_group, last_group, 1.0f / s.elements(), mean);
        channel_sums(s, image, first, last, factor, [&](long at, long count, auto of) {
            Vector v = take(x + at, count) - of(mean);
            return v * v;
        });
        share(s, first_group, last_group, 1.0f / s.elements(), factor);
        for (long c = first; c < last; c++) {
            factor[c] = 1.0f / std::sqrt(factor[c] + epsilon);
            slope[c] = factor[c] * scale[c];
        }
        map_elements(s, image, first, last, y, [&](long at, long count, auto of) {
            return fma(take(x + at, count) - of(mean), of(slope), of(shift));
        });
    });
}

template <class T>
void normalize_back(const Images& s, const T* x, const float* means, const float* factors, const float* scale,
                    const T* gradient, T* out, float* scale_gradient, float* shift_gradient) {
    long C = s.channels;
    Floats sums(2 * s.batch * C);  // of each image: gradient times x - mean, gradient
    for_groups(s, [&](long image, long first_group, long last_group) {
        static thread_local Scratch scratch;
        float *slope = scratch.floats(3 * (C + W)), *addend = slope + C + W, *weight = addend + C + W;
        const float *mean = means + image * C, *factor = factors + image * C;
        float *dots = sums + 2 * image * C, *totals = dots + C;
        long first = first_group * s.per_group(), last = last_group * s.per_group();
        channel_sums(s, image, first, last, dots, [&](long at, long count, auto of) {
            return take(gradient + at, count) * (take(x + at, count) - of(mean));
        });
        channel_sums(s, image, first, last, totals, [&](long at, long count, auto) { return take(gradient + at, count); });
        for (long c = first; c < last; c++) {
            slope[c] = dots[c] * scale[c];
            addend[c] = totals[c] * scale[c];
        }
        share(s, first_group, last_group, 1.0f / s.elements(), slope);
        share(s, first_group, last_group, 1.0f / s.elements(), addend);
        for (long c = first; c < last; c++) {
            slope[c] *= factor[c] * factor[c] * factor[c];
            addend[c] *= factor[c];
            weight[c] = scale[c] * factor[c];
        }
        map_elements(s, image, first, last, out, [&](long at, long count, auto of) {
            Vector g = fma(take(gradient + at, count), of(weight), -of(addend));
            return fma(of(mean) - take(x + at, count), of(slope), g);
        });
    });
    for (long c = 0; c < C; c++) {
        float dot = 0, total = 0;
        for (long image = 0; image < s.batch; image++) {
            dot += sums[2 * image * C + c] * factors[image * C + c];
            total += sums[(2 * image + 1) * C + c];
        }
        scale_gradient[c] = dot;
        shift_gradient[c] = total;
    }
}

Images images(const long* numbers) { return {numbers[0], numbers[1], numbers[2], numbers[3], numbers[4] != 0}; }

}  // namespace

// numbers: batch, channels, pixels, groups, and whether the channels lie side by side. means, factors: [batch, channels],
// the mean and 1 / deviation of each channel's group.
EXPORT int group_norm(int format, const long* numbers, float epsilon, Source x, const float* scale, const float* shift,
                      Target y, float* means, float* factors) {
    return for_format(format, [&](auto number) {
        normalize<decltype(number)>(images(numbers), epsilon, x, scale, shift, y, means, factors);
    });
}

EXPORT int group_norm_backward(int format, const long* numbers, Source x, const float* means, const float* factors,
                               const float* scale, Source gradient, Target out, float* scale_gradient,
                               float* shift_gradient) {
    return for_format(format, [&](auto number) {
        normalize_back<decltype(number)>(images(numbers), x, means, factors, scale, gradient, out, scale_gradient,
                                         shift_gradient);
    });
}
