// Attention, in fp32 or in pairs of bf16 numbers that take the place of one fp32 number.

#pragma once

#include <algorithm>

#include "vector.h"

namespace {

template <class A = Isa>
ALWAYS_INLINE Floats multiply_add(Floats a, Floats b, Floats c) {
    if constexpr (A::floats_per_lane == 2)
        return A::fma_pairs(a, b, c);
    else
        return A::fma(a, b, c);
}

// One tile: (R, k) times (k, C vectors) into out.
template <int R, int C>
__attribute__((noinline)) void multiply_tile_f32(const float* a, int a_stride, const float* b, int b_stride, int k,
                                                 float* out, int stride) {
    Floats sum[R][C];
    unroll<R>([&](auto r) { unroll<C>([&](auto c) { sum[r][c] = Isa::zero(); }); });
    for (int i = 0; i < k; i++, b += b_stride) {
        Floats right[C];
        unroll<C>([&](auto c) { right[c] = Isa::load(b + c * lanes); });
        unroll<R>([&](auto r) {
            Floats left = Isa::broadcast(a[static_cast<std::size_t>(r) * a_stride + i]);
            unroll<C>([&](auto c) { sum[r][c] = multiply_add(left, right[c], sum[r][c]); });
        });
    }
    unroll<R>([&](auto r) {
        unroll<C>([&](auto c) { Isa::store(out + static_cast<std::size_t>(r) * stride + c * lanes, sum[r][c]); });
    });
}

// (rows, k) times (k, n) into out, for at most `tile_rows` rows. n is a multiple of lanes.
inline void multiply_f32(const float* a, int a_stride, int rows, const float* b, int b_stride, int k, int n, float* out,
                         int stride) {
    with_constant<Isa::tile_rows>(rows, [&](auto r) {
        for (int column = 0; column < n; column += tile_columns)
            with_constant<Isa::tile_vectors>((n - column) / lanes, [&](auto c) {
                multiply_tile_f32<r, c>(a, a_stride, b + column, b_stride, k, out + column, stride);
            });
    });
}

// How the positions of a sequence's queries enter its attention.
struct Placement {
    const float* bias = nullptr;  // (heads, bias_stride), added to the scores; null without a bias
    int bias_stride = 0;
    int longest = 0;                          // the distance d from a query to a key has the bias longest - 1 + d
    bool causal = false;                      // whether a query attends only to keys up to its own position
    const std::int64_t* positions = nullptr;  // of the queries; null if query i is at position `first` + i
    int first = 0;

    int position(int query) const { return positions ? static_cast<int>(positions[query]) : first + query; }
    // The number of keys that a query attends to.
    int attended(int query, int keys) const { return causal ? position(query) + 1 : keys; }
    // The number of keys that any of `rows` queries attends to.
    int attended(int query, int rows, int keys) const {
        if (!causal) return keys;
        int most = 0;
        for (int i = query; i < query + rows; i++) most = std::max(most, position(i) + 1);
        return most;
    }
    // The numbers to add to the scores of a query: one for each key, and more up to a whole vector.
    const float* bias_of(int head, int query) const {
        return bias ? bias + static_cast<std::size_t>(head) * bias_stride + longest - 1 - position(query) : nullptr;
    }
};

// Adds the bias, if there is one, to n numbers. Follows them by -infinity up to `all`. Returns the largest.
inline Floats find_largest(float* x, int n, int all, const float* bias) {
    Floats high = Isa::broadcast(-std::numeric_limits<float>::infinity());
    for (int i = n; i < all; i++) x[i] = -std::numeric_limits<float>::infinity();
    if (bias)
        for (int i = 0; i < n; i += lanes) {
            const Floats biased = Isa::add(Isa::load(x + i), Isa::load(bias + i));
            Isa::store(x + i, biased);
            high = Isa::max(high, biased);
        }
    else
        for (int i = 0; i < n; i += lanes) high = Isa::max(high, Isa::load(x + i));
    return Isa::broadcast(Isa::max_lane(high));
}

// Adds the bias to n scores and replaces them by exp(x - max x), followed by zeros up to `all`. Returns 1 / their sum.
// `all` is a multiple of lanes.
inline float softmax_numerators(float* x, int n, int all, const float* bias) {
    const Floats shift = find_largest(x, n, all, bias);
    Floats sum = Isa::zero();
    for (int i = 0; i < n; i += lanes) {
        Floats e = Isa::keep_first(exponential(Isa::sub(Isa::load(x + i), shift)), n - i);
        sum = Isa::add(sum, e);
        Isa::store(x + i, e);
    }
    for (int i = round_up(n, lanes); i < all; i += lanes) Isa::store(x + i, Isa::zero());
    return 1.0f / Isa::sum_lanes(sum);
}

// Transposes (rows, columns) to (columns, rows rounded up to lanes), padded with zeros. columns is a multiple of lanes.
inline void transpose(const float* from, int from_stride, int rows, int columns, float* to, int to_stride) {
    for (int row = 0; row < rows; row += lanes)
        for (int column = 0; column < columns; column += lanes) {
            // Interleaving the first half of the vectors with the second half rotates the bits of every number's
            // position by one. After log2(lanes) rounds the lane is the row, and the vector is the column.
            Floats x[lanes], y[lanes];
            unroll<lanes>([&](auto i) {
                x[i] = row + i < rows ? Isa::load(from + static_cast<std::size_t>(row + i) * from_stride + column) : Isa::zero();
            });
            for (int left = lanes; left > 1; left /= 2) {
                unroll<lanes / 2>([&](auto i) {
                    y[2 * i] = Isa::interleave_low(x[i], x[i + lanes / 2]);
                    y[2 * i + 1] = Isa::interleave_high(x[i], x[i + lanes / 2]);
                });
                unroll<lanes>([&](auto i) { x[i] = y[i]; });
            }
            unroll<lanes>([&](auto i) { Isa::store(to + static_cast<std::size_t>(column + i) * to_stride + row, x[i]); });
        }
}

// The number of lanes that n numbers take, in whole vectors.
inline int packed_lanes(int n) { return round_up(n, Isa::floats_per_lane * lanes) / Isa::floats_per_lane; }

struct Rows {
    const float* x;
    int stride;
};

// Returns rows of n numbers as the products of attention read them: unchanged, or packed into `to` as pairs of numbers
// that are `lanes` apart.
template <class A = Isa>
Rows pack_columns(Rows from, int rows, int n, float* to) {
    if constexpr (A::floats_per_lane == 1) return from;
    else {
        const int width = packed_lanes(n);
        for (int row = 0; row < rows; row++, from.x += from.stride)
            for (int i = 0; i < n; i += 2 * lanes) {
                const Floats first = Isa::load(from.x + i), second = i + lanes < n ? Isa::load(from.x + i + lanes) : Isa::zero();
                Isa::store(to + static_cast<std::size_t>(row) * width + i / 2, A::pair(first, second));
            }
        return {to, width};
    }
}

// The same for pairs of rows.
template <class A = Isa>
void pack_rows(Rows from, int rows, int n, float* to) {
    const auto load = [&](int row, int i) {
        return row < rows ? Isa::load(from.x + static_cast<std::size_t>(row) * from.stride + i) : Isa::zero();
    };
    if constexpr (A::floats_per_lane == 1)
        for (int row = 0; row < rows; row++, to += n)
            for (int d = 0; d < n; d += lanes) Isa::store(to + d, load(row, d));
    else
        for (int row = 0; row < rows; row += 2 * lanes)
            for (int i = row; i < row + lanes; i++, to += n)
                for (int d = 0; d < n; d += lanes) Isa::store(to + d, A::pair(load(i, d), load(i + lanes, d)));
}

// Rows of keys and values that are packed together, beginning at a multiple of this in their sequence.
constexpr int packed_rows = Isa::tiles ? 32 : Isa::floats_per_lane * lanes;

// The layout of a sequence's packed keys and values, in floats. Each head has its transposed keys (width, all), then its
// values (all / floats per lane, depth).
struct Packed {
    int all;  // the keys, rounded up
    std::size_t key, head;
    Packed(int keys, int width, int depth) : all(round_up(keys, packed_rows)) {
        key = static_cast<std::size_t>(width) * all;
        head = key + static_cast<std::size_t>(all) / Isa::floats_per_lane * depth;
    }
};

// Packs rows of one head's keys and values. `first` is the first row's place in the sequence: a multiple of `packed_rows`,
// and so is the count of rows unless they are the sequence's last.
inline void pack_on_vectors(Rows key, Rows value, int first, int rows, int keys, int depth, float* to, float* scratch) {
    const int width = packed_lanes(depth);
    const Packed packed(keys, width, depth);
    const Rows columns = pack_columns(key, rows, depth, scratch);
    transpose(columns.x, columns.stride, rows, width, to + first, packed.all);
    pack_rows(value, rows, depth, to + packed.key + static_cast<std::size_t>(first) / Isa::floats_per_lane * depth);
}

// The layout of the scratch memory of `attend_on_vectors`, in floats.
struct AttentionScratch {
    std::size_t query, size;
    AttentionScratch(int keys, int depth) {
        query = static_cast<std::size_t>(Isa::tile_rows) * round_up(keys, packed_rows);  // scores come first
        size = query + static_cast<std::size_t>(Isa::tile_rows) * packed_lanes(depth);
    }
};

// The attention of one head for queries of one sequence. q is scaled. `memory` has the size of an AttentionScratch. Of
// causal attention, a block of queries skips the keys after all of them.
inline void attend_on_vectors(Rows q, int queries, const float* packed, int keys, int head, int depth, const Placement& placement,
                              float* out, int stride, float* memory) {
    const int width = packed_lanes(depth);
    const Packed layout(keys, width, depth);
    const int all = layout.all;
    float *scores = memory, *packed_query = memory + AttentionScratch(keys, depth).query;
    for (int i = 0; i < queries; i += Isa::tile_rows) {
        const int rows = queries - i < Isa::tile_rows ? queries - i : Isa::tile_rows;
        float* to = out + static_cast<std::size_t>(i) * stride;
        const Rows query = pack_columns({q.x + static_cast<std::size_t>(i) * q.stride, q.stride}, rows, depth, packed_query);
        const int attended = placement.attended(i, rows, keys), columns = round_up(attended, lanes);
        const int value_rows = Isa::floats_per_lane == 1 ? attended : packed_lanes(attended);
        multiply_f32(query.x, query.stride, rows, packed, all, width, columns, scores, all);
        float inverse[Isa::tile_rows];
        for (int r = 0; r < rows; r++)
            inverse[r] = softmax_numerators(scores + static_cast<std::size_t>(r) * all, placement.attended(i + r, keys), columns, placement.bias_of(head, i + r));
        const Rows weights = pack_columns({scores, all}, rows, columns, scores);  // packed numbers never overtake the reads
        multiply_f32(weights.x, weights.stride, rows, packed + layout.key, depth, value_rows, depth, to, stride);
        for (int r = 0; r < rows; r++)
            for (int d = 0; d < depth; d += lanes) {
                float* p = to + static_cast<std::size_t>(r) * stride + d;
                Isa::store(p, Isa::mul(Isa::load(p), Isa::broadcast(inverse[r])));
            }
    }
}

}  // namespace
