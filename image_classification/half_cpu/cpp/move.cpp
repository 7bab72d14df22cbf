// Copies of 16-bit elements from one memory order to another.
#include <utility>
#include <vector>

#include "interface.h"
#include "parallel.h"

namespace {

struct Axis {
    long size, from, to;  // strides in elements
};

// Make the axis along which one side goes on densely part of a list of places on the other side, and return whether
// there was one.
bool take_axis(std::vector<Axis>& axes, std::vector<long>& places, long Axis::*dense, long Axis::*other) {
    auto next = std::find_if(axes.begin(), axes.end(), [&](const Axis& a) { return a.*dense == (long)places.size(); });
    if (next == axes.end()) return false;
    std::vector<long> longer;
    for (long i = 0; i < next->size; i++)
        for (long place : places) longer.push_back(place + i * (*next).*other);
    places.swap(longer);
    axes.erase(next);
    return true;
}

// rows x columns of a transposition: the elements of a column lie side by side in the source, those of a row in the
// target, where row r begins at to[r]; column c begins at at[c].
void transpose_strip(const uint16_t* from, uint16_t* target, const long* to, const long* at, long rows, long columns) {
    for (long c = 0; c < columns; c += W) {
        long many = std::min(columns - c, (long)W);
        for (long r = 0; r < rows; r += W) {
            long count = std::min(rows - r, (long)W);
            Vector block[W];
            if (many == W && count == W) {
                for (long j = 0; j < W; j++) block[j] = load_bits(from + at[c + j] + r);
                transpose(block);
                for (long i = 0; i < W; i++) store_bits(target + to[r + i] + c, block[i]);
            } else if (many * count < 2 * W) {
                for (long i = 0; i < count; i++)
                    for (long j = 0; j < many; j++) target[to[r + i] + c + j] = from[at[c + j] + r + i];
            } else {
                for (long j = 0; j < W; j++) block[j] = j < many ? load_bits(from + at[c + j] + r, count) : all(0);
                transpose(block);
                for (long i = 0; i < count; i++) store_bits(target + to[r + i] + c, block[i], many);
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
    // The axes along which the source is dense are the rows of a transposition, those along which the target is dense
    // its columns, as many as make a vector.
    std::vector<long> rows{0}, at;
    for (long c = 0; c < columns.size; c++) at.push_back(c * columns.from);
    while (columns.from != 1 && take_axis(outer, rows, &Axis::from, &Axis::to)) {}
    while (columns.from != 1 && columns.to == 1 && at.size() < W && take_axis(outer, at, &Axis::to, &Axis::from)) {}
    columns.size = at.size();
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
                transpose_strip(source, target, rows.data() + first, at.data(), last - first, columns.size);
            else
                for (long r = first; r < last; r++)
                    for (long c = 0; c < columns.size; c++)
                        target[rows[r] + c * columns.to] = source[r - first + c * columns.from];
        }
    });
    return 0;
}
