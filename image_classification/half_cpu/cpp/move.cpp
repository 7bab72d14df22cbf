// Copies of 16-bit and 32-bit elements from one memory order to another, bit for bit.
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
};
struct Word {
    static constexpr long READ = 4, WRITTEN = 4;
    Vector load(const char* p, long count) const { return take((const float*)p, count); }
    void store(char* p, Vector v, long count) const { give((float*)p, v, count); }
};
struct Pair : Word {
    static constexpr long READ = 2;
    long apart;
    explicit Pair(long apart) : apart(apart) {}
    Vector load(const char* p, long count) const {
        return paired(take((const Bits*)p, count), take((const Bits*)(p + apart), count));
    }
};
template <class Unit>
struct Zero : Unit {
    static constexpr long READ = 0;
    Vector load(const char*, long) const { return all(0.0f); }
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

// axes: those that are denser in the target first.
template <class Unit>
void copy(Unit unit, std::vector<Axis> axes, const char* from, char* to) {
    long run = 1;  // units that lie side by side in both
    if (!axes.empty() && axes[0].from == Unit::READ && axes[0].to == Unit::WRITTEN) {
        run = axes[0].size;
        axes.erase(axes.begin());
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
    constexpr long strip = Unit::WRITTEN == 2 ? 4 * W : W;
    long many = columns.size(), count = rows.size(), width = std::min(many, (long)W), height = std::min(count, (long)W);
    auto block = [&](const char* source, char* target, long c, long r) {
        c = std::min(c, many - width), r = std::min(r, count - height);  // the last ones may overlap
        source += r * Unit::READ, target += c * Unit::WRITTEN;
        if (count <= W && inner.from > 256)  // what is read next is farther away than the processor foresees
            for (long j = c; j < c + width; j++) __builtin_prefetch(source + columns[j] + 2 * inner.from);
        if (width == W && height == W) square(unit, source, &columns[c], W, target, &rows[r], W);
        else if (width == W) square(unit, source, &columns[c], W, target, &rows[r], height);
        else square(unit, source, &columns[c], width, target, &rows[r], height);
    };
    // Of the columns and the inner axis that one is walked first along which the source is denser.
    long part = many > 1 && columns[1] < inner.from ? many : strip, parts = (many + part - 1) / part, others = 1;
    for (const Axis& axis : axes) others *= axis.size;
    for_ranges(others * parts, 16384 / (run * inner.size * count * std::min(many, part)), [&](long begin, long end) {
        for (long task = begin; task < end; task++) {
            long index = task / parts, first = task % parts * part, last = std::min(many, first + part);
            const char* source = from;
            char* target = to;
            for (const Axis& axis : axes) {
                source += index % axis.size * axis.from;
                target += index % axis.size * axis.to;
                index /= axis.size;
            }
            for (long k = 0; k < inner.size; k++, source += inner.from, target += inner.to) {
                if (run > 1)
                    walk(run, [&](long i, long n) {
                        unit.store(target + i * Unit::WRITTEN, unit.load(source + i * Unit::READ, n), n);
                    });
                else
                    for (long left = first; left < last; left += strip)
                        for (long r = 0; r < count; r += W)
                            for (long c = left; c < std::min(last, left + strip); c += W) block(source, target, c, r);
            }
        }
    });
}

}  // namespace

// Rows of bytes, with the distances between them.
EXPORT int copy_rows(long rows, long bytes, long from_step, long to_step, const char* from, char* to) {
    for_ranges(rows, 32768 / std::max(1L, bytes), [&](long first, long last) {
        for (long r = first; r < last; r++) memcpy(to + r * to_step, from + r * from_step, bytes);
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

// Boxes of elements of 2 or 4 bytes. For each: where it begins in the source and in the target, the sizes of its axes,
// their strides in the source, all 0 for a box of zeros, and in the target; counted in elements.
EXPORT int move(int bytes, int boxes, int axes, const long* numbers, const char* source, char* target) {
    for (int box = 0; box < boxes; box++, numbers += 2 + 3 * axes) {
        const long *sizes = numbers + 2, *froms = sizes + axes, *tos = froms + axes;
        const char* from = source + numbers[0] * bytes;
        char* to = target + numbers[1] * bytes;
        std::vector<Axis> kept, merged;
        for (int i = 0; i < axes; i++)
            if (sizes[i] > 1) kept.push_back({sizes[i], froms[i] * bytes, tos[i] * bytes});
        std::sort(kept.begin(), kept.end(), [](const Axis& a, const Axis& b) { return a.to < b.to; });
        for (const Axis& axis : kept) {
            Axis* last = merged.empty() ? nullptr : &merged.back();
            if (last && axis.from == last->size * last->from && axis.to == last->size * last->to)
                last->size *= axis.size;
            else merged.push_back(axis);
        }
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
