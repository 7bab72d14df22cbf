// Copies of 16-bit and 32-bit elements from one memory order to another, bit for bit; half ones may be widened.
#include <utility>
#include <vector>

#include "interface.h"
#include "parallel.h"

namespace {

struct Axis {
    long size, from, to;  // strides in bytes
};

// What is moved as one: an element, or two of 16 bits, somewhere in the source and side by side in the target.
struct Half {
    static constexpr long READ = 2, WRITTEN = 2;  // bytes
    Vector load(const char* p, long count) const { return take((const Bits*)p, count); }
    void store(char* p, Vector v, long count) const { give((Bits*)p, v, count); }
    void copy(const char* from, char* to) const { memcpy(to, from, 2); }
};
struct Word {
    static constexpr long READ = 4, WRITTEN = 4;
    Vector load(const char* p, long count) const { return take((const float*)p, count); }
    void store(char* p, Vector v, long count) const { give((float*)p, v, count); }
    void copy(const char* from, char* to) const { memcpy(to, from, 4); }
};
struct Pair : Word {
    static constexpr long READ = 2;
    long apart;
    explicit Pair(long apart) : apart(apart) {}
    Vector load(const char* p, long count) const {
        return paired(take((const Bits*)p, count), take((const Bits*)(p + apart), count));
    }
    void copy(const char* from, char* to) const { memcpy(to, from, 2), memcpy(to + 2, from + apart, 2); }
};
// A half number that is widened.
template <class T>
struct Wider : Word {
    static constexpr long READ = 2;
    Vector load(const char* p, long count) const { return take((const T*)p, count); }
    void copy(const char* from, char* to) const { *(float*)to = value((const T*)from); }
};
template <class Unit>
struct Zero : Unit {
    static constexpr long READ = 0;
    Vector load(const char*, long) const { return all(0.0f); }
    void copy(const char*, char* to) const { memset(to, 0, Unit::WRITTEN); }
};

// A transposition: `many` columns begin somewhere in the source, where `count` units of each lie side by side, and the
// rows somewhere in the target.
template <class Unit>
inline __attribute__((always_inline)) void square(Unit unit, const char* from, const long* columns, long many,
                                                  char* to, const long* rows, long count) {
    Vector block[W];
#pragma GCC unroll 16
    for (int j = 0; j < W; j++) block[j] = j < many ? unit.load(from + columns[j], count) : all(0.0f);
    transpose(block);
#pragma GCC unroll 16
    for (int i = 0; i < W; i++)
        if (i < count) unit.store(to + rows[i], block[i], many);
}

// Remove the axes that are dense in one order, until their units fill vectors, but for the one that is dense in the
// other order; return where each unit begins in that one.
std::vector<long> places(std::vector<Axis>& axes, long Axis::*dense, long bytes, long Axis::*other, long other_bytes) {
    std::vector<long> begins{0};
    while (begins.size() % W) {
        auto next = std::find_if(axes.begin(), axes.end(), [&](const Axis& axis) {
            return axis.*dense == (long)begins.size() * bytes && axis.*other != other_bytes;
        });
        if (next == axes.end() || (begins.size() > 1 && begins.size() * next->size > 8192)) break;
        std::vector<long> longer;
        for (long i = 0; i < next->size; i++)
            for (long begin : begins) longer.push_back(begin + i * ((*next).*other));
        begins.swap(longer);
        axes.erase(next);
    }
    return begins;
}

// Units that lie side by side in both.
template <class Unit>
void copy_run(Unit unit, long run, const char* from, char* to) {
    if (Unit::READ == Unit::WRITTEN) memcpy(to, from, run * Unit::WRITTEN);
    else walk(run, [&](long i, long n) { unit.store(to + i * Unit::WRITTEN, unit.load(from + i * Unit::READ, n), n); });
}

// Runs, or columns with all of their rows, at each step of an axis.
template <class Unit>
void copy_inner(Unit unit, Axis inner, long run, const char* from, const long* columns, long many, char* to,
                const long* rows, long count) {
    long width = std::min(many, (long)W), height = std::min(count, (long)W);
    bool far = count <= W && many <= 256 && inner.from > 256;  // what is read next, farther than the processor foresees
    for (long k = 0; k < inner.size; k++, from += inner.from, to += inner.to) {
        if (run > 1) copy_run(unit, run, from, to);
        else if (many == 1 || count == 1)
            for (long r = 0; r < count; r++)
                for (long c = 0; c < many; c++)
                    unit.copy(from + columns[c] + r * Unit::READ, to + rows[r] + c * Unit::WRITTEN);
        else
            for (long above = 0; above < count; above += 4 * W)  // no more rows than the first cache holds
                for (long left = 0; left < many; left += W)
                    for (long top = above; top < std::min(count, above + 4 * W); top += W) {
                        long c = std::min(left, many - width), r = std::min(top, count - height);  // may overlap
                        const char* source = from + r * Unit::READ;
                        const long* at = columns + c;
                        char* target = to + c * Unit::WRITTEN;
                        if (far)
                            for (long j = 0; j < width; j++) __builtin_prefetch(source + at[j] + 2 * inner.from);
                        if (width < W) square(unit, source, at, width, target, rows + r, height);
                        else if (height < W) square(unit, source, at, W, target, rows + r, height);
                        else square(unit, source, at, W, target, rows + r, W);
                    }
    }
}

// axes: those that are denser in the target first.
template <class Unit>
void copy(Unit unit, std::vector<Axis> axes, const char* from, char* to) {
    long run = 1;  // units that lie side by side in both
    if (!axes.empty() && axes[0].from == Unit::READ && axes[0].to == Unit::WRITTEN) {
        run = axes[0].size;
        axes.erase(axes.begin());
        if (axes.empty())
            return for_ranges(run, GRAIN, [&](long begin, long end) {
                copy_run(unit, end - begin, from + begin * Unit::READ, to + begin * Unit::WRITTEN);
            });
    }
    std::vector<long> columns{0}, rows{0};
    if (run == 1) {
        columns = places(axes, &Axis::to, Unit::WRITTEN, &Axis::from, Unit::READ);
        rows = places(axes, &Axis::from, Unit::READ, &Axis::to, Unit::WRITTEN);
    }
    // What is left is walked in the order of the target, but for runs, which are read one after the other.
    if (run > 1) std::sort(axes.begin(), axes.end(), [](const Axis& a, const Axis& b) { return a.from < b.from; });
    Axis inner{1, 0, 0};
    if (!axes.empty()) inner = axes[0], axes.erase(axes.begin());
    // Of the columns and the inner axis that one is walked first along which the source is denser.
    long many = columns.size(), strip = many > 1 && columns[1] < inner.from ? many : (Unit::WRITTEN == 2 ? 4 : 1) * W;
    long strips = (many + strip - 1) / strip, others = 1;
    for (const Axis& axis : axes) others *= axis.size;
    long work = run * inner.size * rows.size() * std::min(many, strip);
    for_ranges(others * strips, GRAIN / work, [&](long begin, long end) {
        for (long task = begin; task < end; task++) {
            long index = task / strips, first = task % strips * strip;
            const char* source = from;
            char* target = to + first * Unit::WRITTEN;
            for (const Axis& axis : axes) {
                source += index % axis.size * axis.from;
                target += index % axis.size * axis.to;
                index /= axis.size;
            }
            copy_inner(unit, inner, run, source, &columns[first], std::min(many - first, strip), target, rows.data(),
                       rows.size());
        }
    });
}

}  // namespace

// Each row of a whole is a row of the first part, then one of the second and so on, of so many elements: `apart` writes
// the parts, otherwise the whole is written. All parts of a row in turn, so that the whole is walked once.
EXPORT int join_rows(long rows, int parts, const long* sizes, long width, char* const* each, char* whole, int apart) {
    long step = 0;
    for (int i = 0; i < parts; i++) step += sizes[i] * width;
    for_ranges(rows, 32768 / std::max(1L, step), [&](long first, long last) {
        for (long r = first; r < last; r++) {
            char* at = whole + r * step;
            for (int i = 0; i < parts; i++) {
                long bytes = sizes[i] * width;
                char* part = each[i] + r * bytes;
                memcpy(apart ? part : at, apart ? at : part, bytes);
                at += bytes;
            }
        }
    });
    return 0;
}

// Maps [batch, height, width] of pixels of some bytes to windows [batch, rows, columns, window, window] of the maps shifted
// cyclically, up and to the left, or back.
EXPORT int windows(const long* numbers, int back, const char* from, char* to) {
    long batch = numbers[0], height = numbers[1], width = numbers[2], window = numbers[3], shift = numbers[4];
    long bytes = numbers[5], columns = width / window;
    auto copy = [&](long pixel, long in_windows, long count) {
        if (back) memcpy(to + pixel * bytes, from + in_windows * bytes, count * bytes);
        else memcpy(to + in_windows * bytes, from + pixel * bytes, count * bytes);
    };
    for_ranges(batch * height, 32768 / (width * bytes), [&](long first, long last) {
        for (long r = first; r < last; r++) {
            long b = r / height, i = r % height, row = (b * height + (i + shift) % height) * width;
            for (long c = 0; c < columns; c++) {
                long place = (((b * height + i / window * window) * columns + c * window) * window + i % window * window);
                long begin = (c * window + shift) % width, count = std::min(window, width - begin);
                copy(row + begin, place, count);
                copy(row, place + count, window - count);
            }
        }
    });
    return 0;
}

// The axes of a box that have more than one step, neighbours that lie alike in both as one, the densest in the target
// first.
static std::vector<Axis> merged_axes(int axes, const long* sizes, long read, long written) {
    const long *froms = sizes + axes, *tos = froms + axes;
    std::vector<Axis> kept, merged;
    for (int i = 0; i < axes; i++)
        if (sizes[i] > 1) kept.push_back({sizes[i], froms[i] * read, tos[i] * written});
    std::sort(kept.begin(), kept.end(), [](const Axis& a, const Axis& b) { return a.to < b.to; });
    for (const Axis& axis : kept) {
        Axis* last = merged.empty() ? nullptr : &merged.back();
        if (last && axis.from == last->size * last->from && axis.to == last->size * last->to) last->size *= axis.size;
        else merged.push_back(axis);
    }
    return merged;
}

// Boxes of elements of 2 or 4 bytes. For each: where it begins in the source and in the target, the sizes of its axes,
// their strides in the source, all 0 for a box of zeros, and in the target; counted in elements.
EXPORT int move(int bytes, int boxes, int axes, const long* numbers, const char* source, char* target) {
    for (int box = 0; box < boxes; box++, numbers += 2 + 3 * axes) {
        const char* from = source + numbers[0] * bytes;
        char* to = target + numbers[1] * bytes;
        std::vector<Axis> merged = merged_axes(axes, numbers + 2, bytes, bytes);
        long apart = merged.empty() ? 2 : merged[0].from;
        bool pairs = bytes == 2 && !merged.empty() && merged[0].size == 2 && merged[0].to == 2;
        if (pairs && apart) merged.erase(merged.begin());
        if (!apart && bytes == 4) copy(Zero<Word>(), merged, from, to);
        else if (!apart) copy(Zero<Half>(), merged, from, to);
        else if (bytes == 4 || (pairs && apart == 2)) copy(Word(), merged, from, to);
        else if (pairs) copy(Pair(apart), merged, from, to);
        else copy(Half(), merged, from, to);
    }
    return 0;
}

// The same boxes of half elements, none of zeros, widened to float32.
EXPORT int widen(int format, int boxes, int axes, const long* numbers, const char* source, char* target) {
    for (int box = 0; box < boxes; box++, numbers += 2 + 3 * axes) {
        const char* from = source + numbers[0] * 2;
        char* to = target + numbers[1] * 4;
        std::vector<Axis> merged = merged_axes(axes, numbers + 2, 2, 4);
        if (format == BFLOAT16) copy(Wider<BFloat16>(), merged, from, to);
        else if (format == FLOAT16) copy(Wider<Float16>(), merged, from, to);
        else return 1;
    }
    return 0;
}
