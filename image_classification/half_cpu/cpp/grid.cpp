// Images [N, H, W, C] read between pixels, at points (x, y) from -1 to 1, by the four pixels around each; sums are float32.
#include "interface.h"
#include "parallel.h"

namespace {

struct Sizes {
    long batch, channels, height, width, points;
};

// A point's four pixels, -1 for one that is outside, and how much of each; NaN for a point that is nowhere.
struct Point {
    long taps[4];
    float weights[4], right, down, steps[2];  // steps: of a pixel's place for one of the point's, 0 where it is clipped

    Point(const Sizes& s, bool corners, bool border, const float* point) {
        float first[2], parts[2];
        long sizes[] = {s.width, s.height};
        for (int axis = 0; axis < 2; axis++) {
            float span = corners ? sizes[axis] - 1 : sizes[axis];
            float place = (point[axis] + 1) * 0.5f * span - (corners ? 0 : 0.5f), end = sizes[axis] - 1;
            steps[axis] = 0.5f * span;
            if (border && !(place >= 0 && place <= end)) {
                steps[axis] = 0;
                if (place == place) place = place < 0 ? 0 : end;
            }
            first[axis] = std::floor(place);
            parts[axis] = place - first[axis];
        }
        right = parts[0], down = parts[1];
        for (int k = 0; k < 4; k++) {
            float x = first[0] + k % 2, y = first[1] + k / 2;
            bool inside = x >= 0 && x < s.width && y >= 0 && y < s.height;
            taps[k] = inside ? (long)y * s.width + (long)x : -1;
            weights[k] = (k % 2 ? right : 1 - right) * (k / 2 ? down : 1 - down);
        }
    }
    bool nowhere() const { return weights[0] != weights[0]; }
};

template <class T>
void sample(const Sizes& s, bool corners, bool border, const T* x, const float* grid, T* out) {
    long C = s.channels;
    for_ranges(s.batch * s.points, GRAIN / C, [&](long first, long last) {
        for (long r = first; r < last; r++) {
            Point p(s, corners, border, grid + 2 * r);
            const T* image = x + r / s.points * s.height * s.width * C;
            Vector start = all(p.nowhere() ? NAN : 0.0f);
            map(C, out + r * C, [&](long c, long count) {
                Vector total = start;
                for (int k = 0; k < 4; k++)
                    if (p.taps[k] >= 0) total = fma(all(p.weights[k]), take(image + p.taps[k] * C + c, count), total);
                return total;
            });
        }
    });
}

// The gradient of the images; sums of a block of channels wait in float32.
template <class T>
void return_to_images(const Sizes& s, bool corners, bool border, const float* grid, const T* gradient, T* out) {
    long C = s.channels, pixels = s.height * s.width, block = std::min(C, 64L), blocks = (C + block - 1) / block;
    for_tasks(s.batch * blocks, [&](long task) {
        static thread_local Scratch scratch;
        long n = task / blocks, begin = task % blocks * block, width = std::min(block, C - begin);
        float* sums = scratch.floats(pixels * width);
        memset(sums, 0, pixels * width * sizeof(float));
        for (long r = n * s.points; r < (n + 1) * s.points; r++) {
            Point p(s, corners, border, grid + 2 * r);
            walk(width, [&](long c, long count) {
                Vector g = take(gradient + r * C + begin + c, count);
                for (int k = 0; k < 4; k++) {
                    if (p.taps[k] < 0) continue;
                    float* sum = sums + p.taps[k] * width + c;
                    give(sum, fma(all(p.weights[k]), g, take(sum, count)), count);
                }
            });
        }
        for (long pixel = 0; pixel < pixels; pixel++)
            walk(width, [&](long c, long count) {
                give(out + (n * pixels + pixel) * C + begin + c, take(sums + pixel * width + c, count), count);
            });
    });
}

template <class T>
void return_to_grid(const Sizes& s, bool corners, bool border, const T* x, const float* grid, const T* gradient,
                    float* out) {
    long C = s.channels;
    for_ranges(s.batch * s.points, GRAIN / C, [&](long first, long last) {
        for (long r = first; r < last; r++) {
            Point p(s, corners, border, grid + 2 * r);
            const T* image = x + r / s.points * s.height * s.width * C;
            Vector dots[] = {all(0.0f), all(0.0f), all(0.0f), all(0.0f)};
            walk(C, [&](long c, long count) {
                Vector g = take(gradient + r * C + c, count);
                for (int k = 0; k < 4; k++)
                    if (p.taps[k] >= 0) dots[k] = fma(g, take(image + p.taps[k] * C + c, count), dots[k]);
            });
            float a = sum(dots[0]), b = sum(dots[1]), c = sum(dots[2]), d = sum(dots[3]);
            out[2 * r] = ((b - a) * (1 - p.down) + (d - c) * p.down) * p.steps[0];
            out[2 * r + 1] = ((c - a) * (1 - p.right) + (d - b) * p.right) * p.steps[1];
        }
    });
}

}  // namespace

// sizes: batch, channels, height and width of the images, points of each. `corners`: -1 and 1 are the middles of the first
// and the last pixel, not their outer edges. Beyond the images are zeros, or, with `border`, their nearest pixels.
EXPORT int grid_sample(int format, const long* sizes, int corners, int border, Source x, const float* grid,
                       Target out) {
    return for_format(format, [&](auto number) {
        sample<decltype(number)>(*(const Sizes*)sizes, corners, border, x, grid, out);
    });
}

// Either of the gradients may be null.
EXPORT int grid_sample_backward(int format, const long* sizes, int corners, int border, Source x, const float* grid,
                                Source gradient, Target images, float* points) {
    return for_format(format, [&](auto number) {
        using T = decltype(number);
        const Sizes& s = *(const Sizes*)sizes;
        if (images.data) return_to_images<T>(s, corners, border, grid, gradient, images);
        if (points) return_to_grid<T>(s, corners, border, x, grid, gradient, points);
    });
}
