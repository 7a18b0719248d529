// Attention on tiles: the products of queries with keys, and of weights with values, of bf16 numbers.

#pragma once

#include "attention.h"
#include "tiles.h"

namespace {

constexpr int tile_pairs = 32;  // bf16 numbers of a tile's row

// Half the depth of a head, in whole tiles.
inline int tile_width(int depth) { return round_up(depth, tile_pairs) / 2; }

// The layout of the scratch memory of `attend_on_tiles`, in floats.
struct TileScratch {
    std::size_t scores, weights, sums, size;
    TileScratch(int sequence, int depth) {
        const std::size_t keys = round_up(sequence, tile_pairs);
        scores = static_cast<std::size_t>(lanes) * tile_width(depth);  // the packed queries come first
        weights = scores + lanes * keys;
        sums = weights + lanes * keys / 2;
        size = sums + 4 * lanes * lanes;
    }
};

// Rounds rows of `depth` numbers to bf16, two numbers in a lane, followed by zeros up to `pairs` lanes.
template <class A>
void pack_numbers(const float* from, int from_stride, int rows, int depth, float* to, int pairs) {
    for (int row = 0; row < rows; row++, from += from_stride, to += pairs)
        for (int i = 0; i < pairs; i += lanes) {
            const int first = 2 * i, second = first + lanes;
            Isa::store(to + i, A::pair_neighbours(Isa::load(from + first), second < depth ? Isa::load(from + second) : Isa::zero()));
        }
}

// Adds the bias to n scores and replaces them by bf16 weights exp(x - max x), followed by zeros up to `keys`. Returns
// 1 / their sum.
template <class A>
float softmax_pairs(float* x, int n, int keys, const float* bias, float* weights) {
    const Floats shift = find_largest(x, n, keys, bias);
    Floats sum = Isa::zero();
    for (int i = 0; i < keys; i += 2 * lanes) {
        const Floats first = Isa::keep_first(exponential(Isa::sub(Isa::load(x + i), shift)), n - i);
        const Floats second = Isa::keep_first(exponential(Isa::sub(Isa::load(x + i + lanes), shift)), n - i - lanes);
        sum = Isa::add(Isa::add(sum, first), second);
        Isa::store(weights + i / 2, A::pair_neighbours(first, second));
    }
    return 1.0f / Isa::sum_lanes(sum);
}

// Two tiles of scores: 16 queries times 32 keys. Neighbouring calls use other tiles, so that none waits for a store.
template <class A, int t>
ALWAYS_INLINE void multiply_queries(const float* query, int pairs, const float* keys, int all, float* scores) {
    A::template tile_zero<t>();
    A::template tile_zero<t + 1>();
    for (int p = 0; p < pairs; p += lanes, query += lanes, keys += static_cast<std::size_t>(lanes) * all) {
        A::template tile_load<4>(query, pairs * 4);
        A::template tile_load<6>(keys, all * 4);
        A::template tile_dot_bf16<t, 4, 6>();
        A::template tile_load<7>(keys + lanes, all * 4);
        A::template tile_dot_bf16<t + 1, 4, 7>();
    }
    A::template tile_store<t>(scores, all * 4);
    A::template tile_store<t + 1>(scores + lanes, all * 4);
}

// Up to four tiles: the weights of 16 queries times `keys` values. A product need not wait for the one before.
template <class A, int tiles>
ALWAYS_INLINE void multiply_weights(const float* weights, int all, int keys, const float* value, int depth, float* sums) {
    unroll<tiles>([&](auto t) { A::template tile_zero<t>(); });
    for (int p = 0; p < keys / 2; p += lanes, value += static_cast<std::size_t>(lanes) * depth) {
        A::template tile_load<4>(weights + p, all * 2);
        unroll<tiles>([&](auto t) {
            A::template tile_load<6 + t % 2>(value + t * lanes, depth * 4);
            A::template tile_dot_bf16<t, 4, 6 + t % 2>();
        });
    }
    unroll<tiles>([&](auto t) { A::template tile_store<t>(sums + t * lanes, tiles * lanes * 4); });
}

// Packs rows of one head's keys and values, as `pack_on_vectors`. `scratch` has (rows, tile_width(depth)).
template <class A>
void pack_on_tiles(Rows key, Rows value, int first, int rows, int keys, int depth, float* to, float* scratch) {
    const int pairs = tile_width(depth);
    const Packed packed(keys, pairs, depth);
    pack_numbers<A>(key.x, key.stride, rows, depth, scratch, pairs);
    transpose(scratch, pairs, rows, pairs, to + first, packed.all);
    to += packed.key + static_cast<std::size_t>(first) / 2 * depth;
    const auto load = [&](int r, int d) {
        return r < rows ? Isa::load(value.x + static_cast<std::size_t>(r) * value.stride + d) : Isa::zero();
    };
    for (int row = 0; row < round_up(rows, tile_pairs); row += 2, to += depth)
        for (int d = 0; d < depth; d += lanes) Isa::store(to + d, A::pair(load(row, d), load(row + 1, d)));
}

// The attention of one head for queries of one sequence, as `attend_on_vectors`. `memory` has the size of a TileScratch.
template <class A>
void attend_on_tiles(Rows q, int queries, const float* packed, int keys, int head, int depth, const Placement& placement,
                     float* out, int stride, float* memory) {
    const TileScratch scratch(keys, depth);
    const int pairs = tile_width(depth);
    const Packed layout(keys, pairs, depth);
    const int all = layout.all;
    const float* value = packed + layout.key;
    float *query = memory, *scores = memory + scratch.scores, *weights = memory + scratch.weights, *sums = memory + scratch.sums;
    for (int i = 0; i < queries; i += lanes) {
        const int rows = queries - i < lanes ? queries - i : lanes;
        pack_numbers<A>(q.x + static_cast<std::size_t>(i) * q.stride, q.stride, rows, depth, query, pairs);
        const int columns = round_up(placement.attended(i, rows, keys), tile_pairs);
        for (int column = 0; column < columns; column += 2 * tile_pairs) {
            multiply_queries<A, 0>(query, pairs, packed + column, all, scores + column);
            if (column + tile_pairs < columns)
                multiply_queries<A, 2>(query, pairs, packed + column + tile_pairs, all, scores + column + tile_pairs);
        }
        float inverse[lanes];
        for (int r = 0; r < rows; r++)
            inverse[r] = softmax_pairs<A>(scores + static_cast<std::size_t>(r) * all, placement.attended(i + r, keys), columns,
                                          placement.bias_of(head, i + r), weights + static_cast<std::size_t>(r) * all / 2);
        for (int d = 0; d < depth; d += 4 * lanes)
            with_constant<4>((depth - d) / lanes, [&](auto tiles) {
                multiply_weights<A, tiles>(weights, all, columns, value + d, depth, sums);
                for (int r = 0; r < rows; r++)
                    unroll<tiles>([&](auto t) {
                        const Floats sum = Isa::load(sums + (r * tiles + t) * lanes);
                        Isa::store(out + static_cast<std::size_t>(i + r) * stride + d + t * lanes, Isa::mul(sum, Isa::broadcast(inverse[r])));
                    });
            });
    }
}

// ---- on tiles or on vectors

inline int packed_width(int depth) { return on_tiles ? tile_width(depth) : packed_lanes(depth); }

// The floats of scratch memory that attention and packing need.
inline std::size_t attention_scratch(int keys, int depth) {
    const std::size_t packing = static_cast<std::size_t>(round_up(keys, packed_rows)) * packed_width(depth);
    return std::max(packing, on_tiles ? TileScratch(keys, depth).size : AttentionScratch(keys, depth).size);
}

// The floats of a sequence's packed keys and values, of all heads.
inline std::size_t packed_size(int keys, int heads, int depth) { return heads * Packed(keys, packed_width(depth), depth).head; }

// Packs rows of keys and values, (rows, .). Heads of `depth` are side by side.
template <class A = Isa>
void pack(Rows key, Rows value, int first, int rows, int keys, int heads, int depth, float* to, float* scratch) {
    const std::size_t size = packed_size(keys, 1, depth);
    for (int head = 0; head < heads; head++, key.x += depth, value.x += depth, to += size) {
        if constexpr (A::tiles)
            if (on_tiles) {
                pack_on_tiles<A>(key, value, first, rows, keys, depth, to, scratch);
                continue;
            }
        pack_on_vectors(key, value, first, rows, keys, depth, to, scratch);
    }
}

// The attention of queries of one sequence. q (queries, .) is scaled, and `packed` has the sequence's keys and values. Heads
// of `depth` are side by side.
template <class A = Isa>
void attend(Rows q, int queries, const float* packed, int keys, int heads, int depth, const Placement& placement, float* out, int stride, float* memory) {
    const std::size_t size = packed_size(keys, 1, depth);
    for (int head = 0; head < heads; head++, q.x += depth, packed += size, out += depth) {
        if constexpr (A::tiles)
            if (on_tiles) {
                attend_on_tiles<A>(q, queries, packed, keys, head, depth, placement, out, stride, memory);
                continue;
            }
        attend_on_vectors(q, queries, packed, keys, head, depth, placement, out, stride, memory);
    }
}

}  // namespace
