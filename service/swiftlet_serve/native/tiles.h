// Matrix products on tiles: 16 rows of 64 bytes. In int8, sums are exact, and the epilogue does the same operations in the
// same order as product.h, so results equal those of AVX-512 to the bit. In bf16, tiles add in another order.

#pragma once

#include <sched.h>

#include <atomic>
#include <cstring>

#include "bf16_product.h"

namespace {

constexpr int tile_side = 16;              // rows of a tile, and outputs of a tile
constexpr int tile_bytes = 64;             // of a tile's row: inputs that a product of two tiles multiplies
constexpr int block_columns = 4 * lanes;   // outputs that an epilogue finishes at a time

// Virtual machines exist that lose the tiles of a thread which they interrupt. Therefore some sums are computed again on
// vectors. After a wrong sum the process uses no tiles any more.
static std::atomic<bool> tiles_trusted{true};
static std::atomic<std::int64_t> wrong_sums{0};
static thread_local bool on_tiles = false;  // whether the current call uses tiles
constexpr int checked_products = 16;        // one product in so many is checked, in one row

// Thrown when a sum is wrong.
struct WrongSum {};

inline void distrust_tiles() {
    tiles_trusted = false;
    wrong_sums++;
}

// While it lives, this thread may use tiles. All threads of a call use them, or none does.
struct TileCall {
    explicit TileCall(bool uses_tiles = Isa::tiles && tiles_trusted) { on_tiles = uses_tiles; }
    ~TileCall() { on_tiles = false; }
    Isa::InUse in_use;
};

// Fetches the weights of the next panel into the second-level cache while a panel is multiplied, in even portions.
struct NextPanel {
    const std::int8_t *next, *end;

    ALWAYS_INLINE void fetch(int lines) {
        for (int i = 0; i < lines && next < end; i++, next += 64) __builtin_prefetch(next, 0, 2);
    }
};

// R times C tiles of sums (at most 2 times 2): rows of x times columns of w, both with `bytes` bytes of inputs.
template <int R, int C, class P, class A>
ALWAYS_INLINE void multiply_tiles(const void* x, int bytes, const std::int8_t* w, typename P::Sum* sums, NextPanel& ahead, int lines) {
    const char* left = static_cast<const char*>(x);
    const std::int8_t* w1 = w + static_cast<std::size_t>(bytes) * tile_side;
    A::template tile_zero<0>();
    if constexpr (C > 1) A::template tile_zero<1>();
    if constexpr (R > 1) A::template tile_zero<2>();
    if constexpr (R > 1 && C > 1) A::template tile_zero<3>();
    for (int i = 0; i < bytes; i += tile_bytes) {
        A::template tile_stream<6>(w + i * tile_side, tile_bytes);
        if constexpr (C > 1) A::template tile_stream<7>(w1 + i * tile_side, tile_bytes);
        A::template tile_load<4>(left + i, bytes);
        ahead.fetch(lines);
        P::template tile_dot<0, 4, 6>();
        if constexpr (C > 1) P::template tile_dot<1, 4, 7>();
        if constexpr (R > 1) {
            A::template tile_load<5>(left + static_cast<std::size_t>(tile_side) * bytes + i, bytes);
            P::template tile_dot<2, 5, 6>();
            if constexpr (C > 1) P::template tile_dot<3, 5, 7>();
        }
    }
    constexpr int stride = block_columns * 4;
    A::template tile_store<0>(sums, stride);
    if constexpr (C > 1) A::template tile_store<1>(sums + tile_side, stride);
    if constexpr (R > 1) A::template tile_store<2>(sums + tile_side * block_columns, stride);
    if constexpr (R > 1 && C > 1) A::template tile_store<3>(sums + tile_side * block_columns + tile_side, stride);
}

// Rows of C vectors of sums become rows of out, from `column` on. After ReLU no number is below 0.
template <int C, bool relu, bool residual, class P>
void finish_rows(const typename P::Sum* sums, int rows, NextPanel& ahead, int lines, const typename P::Rows& x, const Matrix& m,
                 int column, float* out, int stride, const Epilogue& epilogue) {
    typename P::Columns columns[C];
    Floats gain[C];
    unroll<C>([&](auto c) {
        const int n = column + c * lanes;
        columns[c] = P::columns(m, n);
        gain[c] = residual && epilogue.gain ? Isa::load(epilogue.gain + n) : Isa::broadcast(1.0f);
    });
    const bool activated = epilogue.activation > Activation::relu, ranged = epilogue.ranges && !activated;
    for (int r = 0; r < rows; r++) {
        const typename P::Row row = P::row(x, r);
        const float* from = residual ? epilogue.residual + static_cast<std::size_t>(r) * epilogue.residual_stride + column : nullptr;
        float* to = out + static_cast<std::size_t>(r) * stride + column;
        ahead.fetch(lines);
        Floats v[C];
        unroll<C>([&](auto c) {
            v[c] = P::finish(P::load_sums(sums + r * block_columns + c * lanes), columns[c], row);
            if constexpr (residual) v[c] = Isa::fma(Isa::load(from + c * lanes), gain[c], v[c]);
            if constexpr (relu) v[c] = Isa::max(Isa::zero(), v[c]);  // of NaN, the second is returned
            Isa::store(to + c * lanes, v[c]);
        });
        if (ranged) {
            const Ranges range = epilogue.ranges->from(r);
            Floats high = column ? Isa::load(range.high) : Isa::zero();
            unroll<C>([&](auto c) { high = Isa::max(high, v[c]); });
            Isa::store(range.high, high);
            Floats low = relu || !column ? Isa::zero() : Isa::load(range.low);
            if constexpr (!relu) unroll<C>([&](auto c) { low = Isa::min(low, v[c]); });
            Isa::store(range.low, low);
        }
    }
    if (activated)
        for (int r = 0; r < rows; r++) {
            float* to = out + static_cast<std::size_t>(r) * stride + column;
            activate(epilogue.activation, to, C * lanes);
            if (epilogue.ranges) widen<C>(*epilogue.ranges, r, column, to);
        }
}

// Multiplies rows of x with m, into out (rows, stride). A row of m is a multiple of `tile_bytes`, and x has memory for a
// multiple of two tiles' rows. Throws WrongSum.
template <class P, class A>
void multiply_on_tiles(const typename P::Rows& x, int rows, const Matrix& m, float* out, int stride, const Epilogue& epilogue) {
    alignas(64) static thread_local typename P::Sum sums[2 * tile_side * block_columns];
    static thread_local unsigned products = 0;
    const bool checked = ++products % checked_products == 0;
    const int bytes = m.row_bytes();
    for (int column = 0; column < m.n; column += block_columns) {
        const int width = m.n - column < block_columns ? m.n - column : block_columns;
        const std::int8_t* panel = m.w + static_cast<std::size_t>(column) * bytes;
        NextPanel ahead{panel + width * bytes, panel + 2 * width * bytes};
        const int blocks = (rows + 2 * tile_side - 1) / (2 * tile_side);
        // Few rows wait for memory all the time, and the CPU's own prefetching serves them better.
        const int lines = rows > tile_side ? width * bytes / (64 * blocks) : 0;
        const int steps = bytes / tile_bytes * ((width + 2 * tile_side - 1) / (2 * tile_side));
        for (int row = 0; row < rows; row += 2 * tile_side) {
            const std::size_t first = row;
            const typename P::Rows part = x.from(first, m.k);
            Ranges ranges;
            const Epilogue own = epilogue.from(first, ranges);
            const int live = rows - row < 2 * tile_side ? rows - row : 2 * tile_side;
            const int per_step = (lines / 2 + steps - 1) / steps, per_row = (lines / 2 + live - 1) / live;
            for (int c = 0; c < width; c += 2 * tile_side) {
                const std::int8_t* w = m.w + static_cast<std::size_t>(column + c) * bytes;
                with_constant<2>(live > tile_side ? 2 : 1, [&](auto r) {
                    with_constant<2>(width - c > tile_side ? 2 : 1, [&](auto n) {
                        multiply_tiles<r, n, P, A>(part.bytes(), bytes, w, sums + c, ahead, per_step);
                    });
                });
            }
            if (checked && !column && !row) {
                const int r = products / checked_products % live;
                if (!P::sums_right(part, r, m.k, m.w, sums + r * block_columns)) {
                    distrust_tiles();
                    throw WrongSum();
                }
            }
            with_constant<4>(width / lanes, [&](auto c) {
                float* to = out + first * stride;
                const bool relu = own.activation == Activation::relu;
                if (own.residual && relu)
                    finish_rows<c, true, true, P>(sums, live, ahead, per_row, part, m, column, to, stride, own);
                else if (own.residual)
                    finish_rows<c, false, true, P>(sums, live, ahead, per_row, part, m, column, to, stride, own);
                else if (relu)
                    finish_rows<c, true, false, P>(sums, live, ahead, per_row, part, m, column, to, stride, own);
                else
                    finish_rows<c, false, false, P>(sums, live, ahead, per_row, part, m, column, to, stride, own);
            });
        }
    }
}

// Multiplies tiles of zeros, without loads and stores. Returns the number of multiply-adds.
template <class A>
std::int64_t multiply_tiles_at_peak(std::int64_t rounds) {
    const typename A::InUse in_use;
    for (std::int64_t i = 0; i < rounds; i++) {
        A::template tile_dot<0, 4, 6>();
        A::template tile_dot<1, 4, 7>();
        A::template tile_dot<2, 5, 6>();
        A::template tile_dot<3, 5, 7>();
    }
    return rounds * 4 * tile_side * tile_side * tile_bytes;
}

// Multiplies the same tiles `rounds` times, and lets other threads run while tiles hold sums. Returns the number of wrong
// results.
template <class A = Isa>
int test_tiles(int rounds) {
    constexpr int k = 512;
    alignas(64) static thread_local Quantised q[tile_side * k];
    alignas(64) static thread_local std::int8_t w[tile_side * k];
    alignas(64) std::int32_t sums[tile_side * tile_side], expected[tile_side * tile_side] = {};
    for (int i = 0; i < tile_side * k; i++) q[i] = static_cast<Quantised>(i * 37 % 251), w[i] = static_cast<std::int8_t>(i * 91 % 253 - 126);
    for (int m = 0; m < tile_side; m++)
        for (int n = 0; n < tile_side; n++)
            for (int i = 0; i < k; i++) expected[m * tile_side + n] += q[m * k + i] * w[(i / 4 * tile_side + n) * 4 + i % 4];
    const typename A::InUse in_use;
    int wrong = 0;
    for (int round = 0; round < rounds; round++) {
        A::template tile_zero<0>();
        for (int i = 0; i < k; i += tile_bytes) {
            A::template tile_load<4>(q + i, k);
            A::template tile_load<6>(w + i * tile_side, tile_bytes);
            if (i == k / 2) sched_yield();
            A::template tile_dot<0, 4, 6>();
        }
        A::template tile_store<0>(sums, tile_side * 4);
        wrong += std::memcmp(sums, expected, sizeof sums) != 0;
    }
    if (wrong) distrust_tiles();
    return wrong;
}

}  // namespace
