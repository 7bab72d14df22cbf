// Numbers that are read from places which an index or a mask names, bit for bit, and sums of what comes back to them.
#include <vector>

#include "broadcast.h"

namespace {

bool within(long count, const long* index, long places) {
    bool all_within = true;
    for (long i = 0; i < count; i++) all_within &= index[i] >= 0 && index[i] < places;
    return all_within;
}

template <class T>
void add_rows(long outer, long places, long count, long inner, const long* index, const T* gradient, T* out) {
    std::vector<long> begins(places + 1), sources(count);  // the rows that each place was read for, in their order
    for (long j = 0; j < count; j++) begins[index[j] + 1]++;
    for (long k = 0; k < places; k++) begins[k + 1] += begins[k];
    std::vector<long> next(begins.begin(), begins.end() - 1);
    for (long j = 0; j < count; j++) sources[next[index[j]]++] = j;
    for_ranges(outer * places, GRAIN / inner, [&](long first, long last) {
        for (long r = first; r < last; r++) {
            long begin = begins[r % places], end = begins[r % places + 1];
            const T* block = gradient + r / places * count * inner;
            walk(inner, [&](long i, long n) {
                Vector total = begin < end ? take(block + sources[begin] * inner + i, n) : all(0.0f);
                for (long s = begin + 1; s < end; s++) total = total + take(block + sources[s] * inner + i, n);
                give(out + r * inner + i, total, n);
            });
        }
    });
}

// The sums of a block of columns wait in float32. place(o, j, i) is what the index says.
template <class T, class F>
void add_along(long outer, long places, long count, long inner, F place, const T* gradient, T* out) {
    long width = std::min(inner, 64L), blocks = (inner + width - 1) / width;
    for_ranges(outer * blocks, GRAIN / (width * (places + count)), [&](long first, long last) {
        static thread_local Scratch scratch;
        float *sums = scratch.floats((places + count + 2 * W) * width), *wide = sums + places * width + W;
        for (long task = first; task < last; task++) {
            long o = task / blocks, left = task % blocks * width, columns = std::min(width, inner - left);
            const T* from = gradient + o * count * inner + left;
            T* to = out + o * places * inner + left;
            auto rows = [&](long n, auto f) {  // all of them lie side by side where each is the whole
                if (columns == inner) walk(n * inner, [&](long i, long lanes) { f(i, i, lanes); });
                else for (long j = 0; j < n; j++) walk(columns, [&](long i, long lanes) {
                    f(j * inner + i, j * columns + i, lanes);
                });
            };
            memset(sums, 0, places * columns * sizeof(float));
            rows(count, [&](long at, long i, long lanes) { give(wide + i, take(from + at, lanes), lanes); });
            for (long j = 0; j < count; j++)
                for (long i = 0; i < columns; i++)
                    sums[place(o, j, left + i) * columns + i] += wide[j * columns + i];
            rows(places, [&](long at, long i, long lanes) { give(to + at, take(sums + i, lanes), lanes); });
        }
    });
}

}  // namespace

// out[o, j] = x[o, index[j]], rows of so many elements; 1 for an index that is no place.
EXPORT int take_rows(long bytes, long outer, long places, long count, long inner, const long* index, const char* x,
                     char* out) {
    if (!within(count, index, places)) return 1;
    bytes *= inner;
    auto copy = [&](auto size) {
        for_ranges(outer * count, 32768 / size(), [&](long first, long last) {
            for (long r = first; r < last; r++)
                memcpy(out + r * size(), x + (r / count * places + index[r % count]) * size(), size());
        });
    };
    if (bytes == 2) copy([] { return 2L; });
    else if (bytes == 4) copy([] { return 4L; });
    else copy([&] { return bytes; });
    return 0;
}

// The index is asked again: somebody may have written it since.
// out[o, k] = the sum of gradient[o, j] over all j with index[j] = k, rows of elements.
EXPORT int add_rows(int format, long outer, long places, long count, long inner, const long* index,
                    Source gradient, Target out) {
    if (!within(count, index, places)) return 1;
    return for_format(format, [&](auto number) {
        using T = decltype(number);
        auto place = [index](long, long j, long) { return index[j]; };
        if (inner < W) add_along<T>(outer, places, count, inner, place, gradient, out);
        else add_rows<T>(outer, places, count, inner, index, gradient, out);
    });
}

// out[o, j, i] = x[o, index[o, j, i], i]; 1 for an index that is no place.
EXPORT int take_along(long bytes, long outer, long places, long count, long inner, const long* index, const void* x,
                      void* out) {
    if (!within(outer * count * inner, index, places)) return 1;
    return for_width(bytes, [&](auto unit) {
        using U = decltype(unit);
        for_ranges(outer * count, GRAIN / inner, [&](long first, long last) {
            for (long r = first; r < last; r++) {
                const U* block = (const U*)x + r / count * places * inner;
                for (long i = 0; i < inner; i++) ((U*)out)[r * inner + i] = block[index[r * inner + i] * inner + i];
            }
        });
    });
}

// out[o, k, i] = the sum of gradient[o, j, i] over all j with index[o, j, i] = k.
EXPORT int add_along(int format, long outer, long places, long count, long inner, const long* index,
                     Source gradient, Target out) {
    if (!within(outer * count * inner, index, places)) return 1;
    return for_format(format, [&](auto number) {
        auto place = [=](long o, long j, long i) { return index[(o * count + j) * inner + i]; };
        add_along<decltype(number)>(outer, places, count, inner, place, gradient, out);
    });
}

// Where the mask is not 0 `yes`, else `no`; null is zero, and a step of 0 repeats one number. sizes: four axes of the dense
// result; strides: those of the mask, the last one 1, or 0 for a row of which all is chosen alike.
EXPORT int pick(long bytes, const long* sizes, const long* strides, const uint8_t* mask, long yes_step, const void* yes,
                  long no_step, const void* no, void* out) {
    return for_width(bytes, [&](auto unit) {
        using U = decltype(unit);
        static const U zero = 0;
        const U *a = yes ? (const U*)yes : &zero, *b = no ? (const U*)no : &zero;
        long a_step = yes ? yes_step : 0, b_step = no ? no_step : 0;
        auto run = [&](const uint8_t* chosen, long at, long n) {
            const U *p = a + at * a_step, *q = b + at * b_step;
            U* to = (U*)out + at;
            auto fill = [&](auto left, auto right) {
                if (strides[3]) for (long i = 0; i < n; i++) to[i] = chosen[i] ? left(i) : right(i);
                else if (*chosen) for (long i = 0; i < n; i++) to[i] = left(i);
                else for (long i = 0; i < n; i++) to[i] = right(i);
            };
            auto one = [](const U* x) { return [y = *x](long) { return y; }; };
            auto many = [](const U* x) { return [x](long i) { return x[i]; }; };
            if (a_step && b_step) fill(many(p), many(q));
            else if (a_step) fill(many(p), one(q));
            else if (b_step) fill(one(p), many(q));
            else fill(one(p), one(q));
        };
        for_rows_of(sizes, [=](long first, long n, auto at) { run(mask + at(strides), first, n); });
    });
}
