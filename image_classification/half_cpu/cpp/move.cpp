// Copies of 16-bit elements from one memory order to another.
#include <utility>
#include <vector>

#include "interface.h"
#include "parallel.h"

namespace {

struct Axis {
    long size, from, to;  // strides in elements
};

constexpr long BLOCK = 32;

// rows x columns: the elements of a row lie side by side in the target, those of a column in the source.
void transpose_block(const uint16_t* from, uint16_t* to, long rows, long columns, long from_step, long to_step) {
    for (long r = 0; r < rows; r += BLOCK)
        for (long c = 0; c < columns; c += BLOCK) {
            long last_r = std::min(rows, r + BLOCK), last_c = std::min(columns, c + BLOCK);
            for (long i = r; i < last_r; i++)
                for (long j = c; j < last_c; j++) to[i * to_step + j] = from[j * from_step + i];
        }
}

}  // namespace

// shape, strides of the source and strides of the target, each of `axes` numbers.
EXPORT int move(int axes, const long* numbers, const uint16_t* from, uint16_t* to) {
    std::vector<Axis> all;
    for (int i = 0; i < axes; i++)
        if (numbers[i] > 1) all.push_back({numbers[i], numbers[axes + i], numbers[2 * axes + i]});
    std::sort(all.begin(), all.end(), [](const Axis& a, const Axis& b) { return a.to > b.to; });
    std::vector<Axis> merged;
    for (const Axis& axis : all) {
        if (!merged.empty() && merged.back().from == axis.size * axis.from && merged.back().to == axis.size * axis.to)
            merged.back() = {merged.back().size * axis.size, axis.from, axis.to};
        else merged.push_back(axis);
    }
    if (merged.empty()) merged.push_back({1, 1, 1});
    Axis columns = merged.back();
    merged.pop_back();
    // The axis along which the source is dense makes the rows of a transposition.
    Axis rows{1, 0, 0};
    for (size_t i = 0; i < merged.size() && columns.from != 1; i++)
        if (merged[i].from == 1) {
            rows = merged[i];
            merged.erase(merged.begin() + i);
            break;
        }
    long outer = 1;
    for (const Axis& axis : merged) outer *= axis.size;
    long strip = std::max(BLOCK, 16384 / columns.size / BLOCK * BLOCK), strips = (rows.size + strip - 1) / strip;
    auto run = [&](long task) {
        long index = task / strips, first = task % strips * strip;
        const uint16_t* source = from + first * rows.from;
        uint16_t* target = to + first * rows.to;
        for (size_t i = merged.size(); i-- > 0; index /= merged[i].size) {
            source += index % merged[i].size * merged[i].from;
            target += index % merged[i].size * merged[i].to;
        }
        long count = std::min(strip, rows.size - first);
        if (columns.from == 1 && columns.to == 1) memcpy(target, source, columns.size * sizeof(uint16_t));
        else if (rows.size > 1 && columns.to == 1)
            transpose_block(source, target, count, columns.size, columns.from, rows.to);
        else
            for (long r = 0; r < count; r++)
                for (long c = 0; c < columns.size; c++)
                    target[r * rows.to + c * columns.to] = source[r * rows.from + c * columns.from];
    };
    long work = columns.size * std::min(strip, rows.size);
    for_ranges(outer * strips, 16384 / work, [&](long first, long last) {
        for (long task = first; task < last; task++) run(task);
    });
    return 0;
}
