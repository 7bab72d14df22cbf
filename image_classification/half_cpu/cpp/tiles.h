// Products of bfloat16 matrices by AMX, of factors that are packed to tiles first. A core's second cache keeps columns of
// the right factor while the left one passes; the first one keeps sums and a part of a panel of the left one, and numbers
// of the right one pass it by. So rows of the result are written as they lie in memory.
#pragma once
#include "amx.h"
#include "gemm.h"

#if HAS_AMX
namespace tiles {

constexpr long PANEL = 2 * amx::SIDE;    // rows of a left factor, or columns of a right one, that lie together
constexpr long STEP = 2 * amx::PAIRS;    // terms of a tile
constexpr long AREA = PANEL * PANEL;     // sums of two panels
constexpr long DEPTH = 4096, PART = 1024;  // terms that are summed before sums wait in memory, and of how many then
constexpr long LINES = 128;              // bytes of memory that are fetched together: lines in pairs
constexpr long FEW_TERMS = 1024;         // rows of more keep the processor long enough to fetch what lies side by side
constexpr long STEPS = 20;               // of a panel of the left factor in the first cache
constexpr long TOGETHER = 4;             // panels of the right factor that are multiplied with these
constexpr long RIGHT_NUMBERS = 1 << 19;  // of a right factor in the second cache
constexpr long SPAN = 64;                // panels of the left factor that the next cache keeps

// Rows of a left factor or columns of a right one are lines, whose terms are multiplied; one of the strides is 1.
struct Factor {
    const BFloat16* data;
    long line, term;

    Factor from(long lines, long terms) const { return {data + lines * line + terms * term, line, term}; }
};

// Numbers of a packed panel: for each step two tiles. A tile of a left factor has a line in each row, one of a right
// factor a line in each column, and pairs of terms in rows.
static inline long panel_numbers(long terms) { return parts(terms, STEP) * STEP * PANEL; }

static inline Vector some(const BFloat16* from, long count) {
    if (count >= STEP) return (Vector)_mm512_loadu_si512(from);
    return (Vector)_mm512_maskz_loadu_epi16(count > 0 ? (1u << count) - 1 : 0, from);
}

// The lanes of two rows of terms as pairs.
static inline Vector pairs(Vector first, Vector second, long from) {
    return (Vector)_mm512_permutex2var_epi16((__m512i)first, Lanes<BFloat16>::mixed(from), (__m512i)second);
}

// Pack a step of a panel; lines and terms beyond the last are zeros.
template <bool RIGHT>
static inline void pack_step(const Factor& f, long lines, long terms, BFloat16* to) {
    Vector tile[PANEL];
    if (f.term == 1) {
        for (long i = 0; i < PANEL; i++) tile[i] = i < lines ? some(f.data + i * f.line, terms) : all(0.0f);
    } else {
        const BFloat16* from = f.data;
        for (long p = 0; p < amx::PAIRS; p++, from += 2 * f.term) {
            Vector first = some(from, 2 * p < terms ? lines : 0), second = some(from + f.term, 2 * p + 1 < terms ? lines : 0);
            tile[p] = pairs(first, second, 0);
            tile[p + amx::SIDE] = pairs(first, second, W);
        }
    }
    if ((f.term == 1) == RIGHT) transpose(tile), transpose(tile + amx::SIDE);
    for (long i = 0; i < PANEL; i++) store((float*)(to + i * STEP), tile[i]);
}

// Pack panels, `distance` numbers apart, in the order in which numbers lie in memory.
template <bool RIGHT>
static void pack(const Factor& f, long lines, long terms, BFloat16* to, long panels, long distance) {
    long steps = parts(terms, STEP);
    auto step = [&](long q, long s) {
        pack_step<RIGHT>(f.from(q * PANEL, s * STEP), lines - q * PANEL, terms - s * STEP, to + q * distance + s * STEP * PANEL);
    };
    if (f.term == 1)
        for (long q = 0; q < panels; q++)
            for (long s = 0; s < steps; s++) step(q, s);
    else
        for (long s = 0; s < steps; s++)
            for (long q = 0; q < panels; q++) step(q, s);
}

// The same of a whole factor, by all threads.
template <bool RIGHT>
static void pack_all(const Factor& f, long lines, long terms, BFloat16* to) {
    bool along = f.term == 1;
    long some = along ? PANEL : 8 * STEP, count = along ? lines : terms, size = panel_numbers(terms);
    for_tasks(parts(count, some), [&](long task) {
        long first = task * some, last = std::min(count, first + some);
        if (along) pack<RIGHT>(f.from(first, 0), last - first, terms, to + first / PANEL * size, 1, size);
        else pack<RIGHT>(f.from(0, first), lines, last - first, to + first * PANEL, parts(lines, PANEL), size);
    });
}

// Where a panel of a left factor lies: packed, or as rows of the matrix.
struct Left {
    const BFloat16* data;
    long row, step;  // numbers from one row to the next, and from the tiles of one step to those of the next

    const BFloat16* at(long number) const { return data + number * step; }
};

// Add the products of some steps of two panels to sums, or write them; between(step) is what the processor does meanwhile.
template <class Rows, class Between>
static inline void multiply(long steps, const Rows& left, const BFloat16* right, float* sums, bool add, Between between) {
    constexpr long TILE = amx::SIDE * STEP;
    const long bytes = left.row * sizeof(BFloat16);
    amx::begin<2, 2>(sums, PANEL, add);
    for (long step = 0; step < steps; step++, right += 2 * TILE) {
        const BFloat16 *upper = left.at(step), *lower = upper + amx::SIDE * left.row;
        _tile_stream_loadd(6, right, 64);
        _tile_loadd(4, upper, bytes);
        _tile_stream_loadd(7, right + TILE, 64);
        _tile_loadd(5, lower, bytes);
        amx::add_products<2, 2>();
        between(step);
    }
    amx::end<2, 2>(sums, PANEL);
}

// Memory that is asked for in its own order, row by row: the processor then fetches on by itself, and more at a time than
// a core can wait for.
struct Ahead {
    const char *at, *end;  // what is asked for next, and where its row ends
    long row, gap, left;   // bytes from one row to the next, and from the end of one; how often it has to be asked

    template <class T>
    Ahead(const T* data, long row, long rows, long numbers) : at((const char*)data), row(row * sizeof(T)) {
        long lines = parts(numbers * sizeof(T), LINES);
        end = at + lines * LINES, gap = this->row - lines * LINES, left = std::max(0L, rows) * lines;
    }
    long each(long steps) const { return parts(left, steps); }
    __attribute__((always_inline)) void ask(long count) {
        count = std::min(count, left), left -= count;
        for (; count > 0; count--) {
            __builtin_prefetch(at, 0, 2);
            at += LINES;
            if (at == end) at += gap, end += row;
        }
    }
};

// Blocks of sums whose results are written, a row at a time, while others are multiplied: not the last one, whose sums a
// core still stores. Of many terms, where they go is asked for while the block itself is multiplied.
template <class Finish>
struct Written {
    const Finish& finish;
    long M, N;
    struct Block {
        long p = 0, q = 0;
        float* sums = nullptr;
    } waits = {};
    long m = 0, last = 0, n = 0, columns = 0;
    float* sums = nullptr;
    decltype(finish.row(0)) place = nullptr;

    void ask(long p, long q, long i) const {
        if (p * PANEL + i < M) __builtin_prefetch(finish.row(p * PANEL + i) + q * PANEL, 1);
    }
    void begin(Block next) {
        rows(PANEL);
        if (waits.sums) {
            m = waits.p * PANEL, last = std::min(m + PANEL, M), n = waits.q * PANEL, columns = std::min(PANEL, N - n);
            sums = waits.sums, place = finish.row(m);
        }
        waits = next;
    }
    __attribute__((always_inline)) void rows(long count) {
        const auto& panel = finish.panel(n);
        long row = m, end = m + std::min(count, last - m), step = finish.row_step();  // own names: stores reach members
        auto to = place;
        float* from = sums;
        for (; row < end; row++, from += PANEL, to += step)
            if (columns == PANEL && finish.rounds_only()) store(to + n, load(from), load(from + W));
            else panel.write(to, row, n, columns, from);
        m = row, sums = from, place = to;
    }
    void end() { begin({}), rows(PANEL); }
};

// Out[m, n] = sum over k of A[m, k] B[k, n]; results are written as in gemm.h. The order of sums depends on K alone, or if
// that is large on M, N and K. `ready`: the right factor, by pack_all.
template <class Finish>
static void product(long M, long N, long K, const Factor& a, const Factor& b, const Finish& finish,
                    const BFloat16* ready = nullptr) {
    bool waits = K > DEPTH, lies = a.term == 1 && K % STEP == 0;
    long tall = parts(M, PANEL), panels = parts(N, PANEL), whole = panel_numbers(K), depth = waits ? PART : whole / PANEL;
    long share = std::clamp(RIGHT_NUMBERS / (depth * PANEL), 1L, panels), across = parts(panels, share);
    share = parts(panels, across);
    // Few sums of many terms are parts of sums first.
    long pieces = waits && tall * panels < 256 ? std::min(8L, parts(K, DEPTH)) : 1;
    long piece = parts(parts(K, pieces), depth) * depth, blocks = tall * panels;
    pieces = parts(K, piece);
    long threads = omp_get_max_threads(), spans = parts(tall, SPAN), chunk = std::min(SPAN, tall);
    if (threads > 1) chunk = std::min(chunk, std::max(4L, parts(tall * across * pieces, 3 * threads)));
    long down = parts(std::min(SPAN, tall), chunk);
    long packed_from = lies ? M / PANEL : 0;
    // A right factor is packed where it is needed, unless several threads need the same.
    static thread_local Scratch right_scratch, left_scratch, sums_scratch;
    bool packs = down > 1 && !ready;
    BFloat16* shared = packs ? (BFloat16*)right_scratch.floats(panels * whole / 2) : nullptr;
    BFloat16* packed = (BFloat16*)left_scratch.floats((tall - packed_from) * whole / 2);
    float* waiting = sums_scratch.floats(pieces > 1 ? pieces * blocks * AREA : 0);
    if (packs) pack_all<true>(b, N, K, shared);
    const BFloat16* right = packs ? shared : ready;
    pack_all<false>(a.from(packed_from * PANEL, 0), M - packed_from * PANEL, K, packed);
    auto left = [&](long p, long k) {
        if (p < packed_from) return Left{a.from(p * PANEL, k).data, a.line, STEP};
        return Left{packed + (p - packed_from) * whole + k * PANEL, STEP, 2 * amx::SIDE * STEP};
    };

    for_tasks(pieces * spans * across * down, [&](long task) {
        long q0 = task / down % across * share, q1 = std::min(panels, q0 + share), span = task / down / across % spans * SPAN;
        long p0 = span + task % down * chunk, p1 = std::min({p0 + chunk, span + SPAN, tall});
        long k0 = task / down / across / spans * piece, k1 = std::min(K, k0 + piece);
        if (p0 >= p1) return;  // the last span is shorter
        static thread_local Scratch scratch;
        amx::Use use;
        long kept = waits && pieces == 1 ? (p1 - p0) * (q1 - q0) * AREA : (TOGETHER + 1) * AREA;
        float *own = scratch.floats(kept + (right ? 0 : share * depth * PANEL / 2)), *wait = waiting + k0 / piece * blocks * AREA;
        BFloat16* block = (BFloat16*)(own + kept);
        Written<Finish> written{finish, M, N};
        for (long k = k0; k < k1; k += depth) {
            long terms = std::min(depth, K - k), steps = parts(terms, STEP), part = parts(steps, parts(steps, STEPS));
            if (!right) pack<true>(b.from(q0 * PANEL, k), N - q0 * PANEL, terms, block, q1 - q0, panel_numbers(terms));
            auto at = [&](long q, long step) {
                const BFloat16* panel = right ? right + q * whole + k * PANEL : block + (q - q0) * panel_numbers(terms);
                return panel + step * STEP * PANEL;
            };
            long together = parts(q1 - q0, parts(q1 - q0, TOGETHER));
            bool ends = pieces == 1 && k + terms == k1;
            long turn = 0;  // blocks before: the one that waits keeps its sums
            for (long p = p0; p < p1; p++) {
                // Of few terms: what the next panel reads, adds to its sums, and where its results go.
                long rows = p + 1 < p1 && K <= FEW_TERMS ? std::min(PANEL, M - (p + 1) * PANEL) : 0, all = (q1 - q0) * steps;
                long ending = ends ? rows : 0, m = (p + 1) * PANEL, n = q0 * PANEL, width = std::min(N, q1 * PANEL) - n;
                Left next = left(p + 1, k);
                bool is_packed = next.row == STEP;
                Ahead reads(next.data, next.row, is_packed ? rows > 0 : rows, is_packed ? panel_numbers(terms) : terms);
                const auto* more = finish.added(m);
                Ahead adds(more ? more + n : more, finish.row_step(), more ? ending : 0, width);
                Ahead writes(finish.row(m) + n, finish.row_step(), ending, width);
                long read = reads.each(all), added = adds.each(all), wrote = writes.each(all);
                for (long first = q0; first < q1; turn += std::min(together, q1 - first), first += together)
                    for (long s = 0; s < steps; s += part)
                        for (long q = first; q < std::min(q1, first + together); q++) {
                            float* sums = pieces > 1 ? wait + (p * panels + q) * AREA
                                          : waits    ? own + ((p - p0) * (q1 - q0) + q - q0) * AREA
                                                     : own + (turn + q - first) % (together + 1) * AREA;
                            long count = std::min(part, steps - s), at_a_time = parts(PANEL, count);
                            bool last = ends && s + part >= steps;
                            multiply(count, left(p, k + s * STEP), at(q, s), sums, s || k > k0, [&](long step) {
                                written.rows(at_a_time);
                                if (last && K > FEW_TERMS)
                                    for (long i = 0; i < at_a_time; i++) written.ask(p, q, step * at_a_time + i);
                                reads.ask(read);
                                adds.ask(added);
                                writes.ask(wrote);
                            });
                            if (last) written.begin({p, q, sums});
                        }
            }
        }
        written.end();
    });
    if (pieces == 1) return;
    for_tasks(tall, [&](long p) {
        Written<Finish> written{finish, M, N};
        for (long q = 0; q < panels; q++) {
            float* sums = waiting + (p * panels + q) * AREA;
            for (long i = 0; i < AREA; i += W) {
                Vector total = load(sums + i);
                for (long other = 1; other < pieces; other++) total = total + load(sums + other * blocks * AREA + i);
                store(sums + i, total);
            }
            written.begin({p, q, sums});
            written.end();
        }
    });
}

}  // namespace tiles
#endif
