// Copies of 16-bit elements from one memory order to another.
#include <utility>
#include <vector>

#include "interface.h"
#include "parallel.h"

namespace {

struct Axis {
    long size, from, to;  // strides in elements
};

// rows x columns of a transposition: the elements of a column lie side by side in the source, those of a row in the
// target, where row r begins at to[r].
void transpose_strip(const uint16_t* from, uint16_t* target, const long* to, long rows, long columns, long step) {
    for (long c = 0; c < columns; c += W) {
        long many = std::min(columns - c, (long)W);
        for (long r = 0; r < rows; r += W) {
            long count = std::min(rows - r, (long)W);
            if (many == W && count == W) {
                Vector block[W];
                for (long j = 0; j < W; j++) block[j] = load_bits(from + (c + j) * step + r);
                transpose(block);
                for (long i = 0; i < W; i++) store_bits(target + to[r + i] + c, block[i]);
            } else {
                for (long i = 0; i < count; i++)
                    for (long j = 0; j < many; j++) target[to[r + i] + c + j] = from[(c + j) * step + r + i];
            }
        }
    }
}

}  // namespace

// Rows of bytes, with the distances between them.
EXPORT int copy_rows(long rows, long bytes, long from_step, long to_step, const char* from, char* to) {
    for_ranges(rows, 32768 / std::max(1L, bytes), [&](long first, long last) {
        for (long r = first; r < last; r++) memcpy(to + r * to_step, from + r * from_step, bytes);
    });
    return 0;
}

// shape, strides of the source and strides of the target, each of `axes` numbers; both are dense in some order.
EXPORT int move(int axes, const long* numbers, const uint16_t* from, uint16_t* to) {
    std::vector<Axis> kept;
    for (int i = 0; i < axes; i++)
        if (numbers[i] > 1) kept.push_back({numbers[i], numbers[axes + i], numbers[2 * axes + i]});
    std::sort(kept.begin(), kept.end(), [](const Axis& a, const Axis& b) { return a.to > b.to; });
    std::vector<Axis> outer;  // in the target's order
    for (const Axis& axis : kept) {
        if (!outer.empty() && outer.back().from == axis.size * axis.from && outer.back().to == axis.size * axis.to)
            outer.back() = {outer.back().size * axis.size, axis.from, axis.to};
        else outer.push_back(axis);
    }
    if (outer.empty()) outer.push_back({1, 1, 1});
    Axis columns = outer.back();
    outer.pop_back();
    // The axes along which the source is dense are the rows of a transposition.
    std::vector<long> rows{0};
    while (columns.from != 1) {
        auto next = std::find_if(outer.begin(), outer.end(), [&](const Axis& a) { return a.from == (long)rows.size(); });
        if (next == outer.end()) break;
        std::vector<long> longer;
        for (long i = 0; i < next->size; i++)
            for (long begin : rows) longer.push_back(begin + i * next->to);
        rows.swap(longer);
        outer.erase(next);
    }
    long count = rows.size(), others = 1;
    for (const Axis& axis : outer) others *= axis.size;
    long strip = std::max((long)W, 16384 / columns.size / W * W), strips = (count + strip - 1) / strip;
    long work = columns.size * std::min(strip, count);
    for_ranges(others * strips, 16384 / work, [&](long begin, long end) {
        for (long task = begin; task < end; task++) {
            long index = task / strips, first = task % strips * strip, last = std::min(count, first + strip);
            const uint16_t* source = from + first;
            uint16_t* target = to;
            for (size_t i = outer.size(); i-- > 0; index /= outer[i].size) {
                source += index % outer[i].size * outer[i].from;
                target += index % outer[i].size * outer[i].to;
            }
            if (columns.from == 1 && columns.to == 1) memcpy(target, source, columns.size * sizeof(uint16_t));
            else if (columns.to == 1)
                transpose_strip(source, target, rows.data() + first, last - first, columns.size, columns.from);
            else
                for (long r = first; r < last; r++)
                    for (long c = 0; c < columns.size; c++)
                        target[rows[r] + c * columns.to] = source[r - first + c * columns.from];
        }
    });
    return 0;
}
