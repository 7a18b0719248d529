// Attention on tiles: the products of queries with keys, and of weights with values, of bf16 numbers.

#pragma once

#include "attention.h"
#include "tiles.h"

namespace {

constexpr int tile_pairs = 32;  // bf16 numbers of a tile's row

// Half the depth of a head, in whole tiles.
inline int tile_width(int depth) { return round_up(depth, tile_pairs) / 2; }

// Rounds rows of `depth` numbers to bf16, two numbers in a lane, followed by zeros up to `pairs` lanes.
template <class A>
void pack_numbers(const float* from, int from_stride, int rows, int depth, float* to, int pairs) {
    for (int row = 0; row < rows; row++, from += from_stride, to += pairs)
        for (int i = 0; i < pairs; i += lanes) {
            const int first = 2 * i, second = first + lanes;
            Isa::store(to + i, A::pair_neighbours(Isa::load(from + first), second < depth ? Isa::load(from + second) : Isa::zero()));
        }
}

// Two tiles of scores: 16 queries times 32 keys. Neighbouring calls use other tiles, so that none waits for a store.
template <class A, int t>
ALWAYS_INLINE void multiply_queries(const float* query, int pairs, const float* keys, float* scores) {
    A::template tile_zero<t>();
    A::template tile_zero<t + 1>();
    for (int p = 0; p < pairs; p += lanes, query += lanes, keys += static_cast<std::size_t>(lanes) * tile_pairs) {
        A::template tile_load<4>(query, pairs * 4);
        A::template tile_load<6>(keys, tile_pairs * 4);
        A::template tile_dot_bf16<t, 4, 6>();
        A::template tile_load<7>(keys + lanes, tile_pairs * 4);
        A::template tile_dot_bf16<t + 1, 4, 7>();
    }
    A::template tile_store<t>(scores, key_block * 4);
    A::template tile_store<t + 1>(scores + lanes, key_block * 4);
}

// Up to four tiles: the weights of 16 queries times `keys` values. A product need not wait for the one before.
template <class A, int tiles>
ALWAYS_INLINE void multiply_weights(const float* weights, int keys, const float* value, int depth, float* sums, int stride) {
    unroll<tiles>([&](auto t) { A::template tile_zero<t>(); });
    for (int p = 0; p < keys / 2; p += lanes, value += static_cast<std::size_t>(lanes) * depth) {
        A::template tile_load<4>(weights + p, key_block * 2);
        unroll<tiles>([&](auto t) {
            A::template tile_load<6 + t % 2>(value + t * lanes, depth * 4);
            A::template tile_dot_bf16<t, 4, 6 + t % 2>();
        });
    }
    unroll<tiles>([&](auto t) { A::template tile_store<t>(sums + t * lanes, stride * 4); });
}

inline Packed packed_on_tiles(int keys, int depth) { return {keys, tile_width(depth), tile_pairs, depth}; }

// Packs rows of one head's keys and values, as `pack_on_vectors`. `scratch` has (rows, tile_width(depth)).
template <class A>
void pack_on_tiles(Rows key, Rows value, int first, int rows, int keys, int depth, float* to, float* scratch) {
    const Packed packed = packed_on_tiles(keys, depth);
    pack_numbers<A>(key.x, key.stride, rows, depth, scratch, packed.width);
    packed.transpose_into(to, scratch, packed.width, first, rows);
    if (!value.x) return;
    to += packed.key + static_cast<std::size_t>(first) / 2 * depth;
    const auto load = [&](int r, int d) {
        return r < rows ? Isa::load(value.x + static_cast<std::size_t>(r) * value.stride + d) : Isa::zero();
    };
    for (int row = 0; row < round_up(rows, tile_pairs); row += 2, to += depth)
        for (int d = 0; d < depth; d += lanes) Isa::store(to + d, A::pair(load(row, d), load(row + 1, d)));
}

// As `OnVectors`.
template <class A>
class OnTiles {
   public:
    static constexpr int rows = lanes;

    OnTiles(const float* packed, int keys, int depth, float* memory)
        : packed_(packed), layout_(packed_on_tiles(keys, depth)), depth_(depth), scores_(memory), weights_(scores_ + rows * key_block),
          sums_(weights_ + rows * key_block / 2), queries_(sums_ + static_cast<std::size_t>(rows) * depth) {}

    static std::size_t scratch(int depth) {
        return rows * key_block + rows * key_block / 2 + static_cast<std::size_t>(rows) * depth + static_cast<std::size_t>(query_block) * tile_width(depth);
    }

    void take_queries(Rows q, int count) { pack_numbers<A>(q.x, q.stride, count, depth_, queries_, layout_.width); }
    void multiply_keys(int query, int, int begin, int end) {
        const int pairs = layout_.width;
        const float* x = queries_ + static_cast<std::size_t>(query) * pairs;
        for (int at = begin; at < end; at += 2 * tile_pairs) {
            multiply_queries<A, 0>(x, pairs, packed_ + layout_.place(at), scores_ + at - begin);
            if (at + tile_pairs < end) multiply_queries<A, 2>(x, pairs, packed_ + layout_.place(at + tile_pairs), scores_ + at + tile_pairs - begin);
        }
    }
    float* scores(int row) { return scores_ + static_cast<std::size_t>(row) * key_block; }
    static int columns(int keys) { return round_up(keys, tile_pairs); }
    auto weights(int row) {
        return [to = weights_ + static_cast<std::size_t>(row) * key_block / 2, first = Isa::zero()](int column, Floats e) mutable {
            if (column / lanes % 2)
                Isa::store(to + (column - lanes) / 2, A::pair_neighbours(first, e));
            else
                first = e;
        };
    }
    float* sums() { return sums_; }
    void multiply_values(int count, int begin, int end, float* to, int stride) {
        float* out = count == rows ? to : sums_;  // a tile is stored whole
        const int out_stride = count == rows ? stride : depth_;
        const float* value = packed_ + layout_.key + static_cast<std::size_t>(begin) / 2 * depth_;
        for (int d = 0; d < depth_; d += 4 * lanes)
            with_constant<4>((depth_ - d) / lanes, [&](auto tiles) {
                multiply_weights<A, tiles>(weights_, columns(end - begin), value + d, depth_, out + d, out_stride);
            });
        for (int r = 0; r < count && out != to; r++) std::copy(out + static_cast<std::size_t>(r) * depth_, out + static_cast<std::size_t>(r + 1) * depth_, to + static_cast<std::size_t>(r) * stride);
    }

   private:
    const float* packed_;
    const Packed layout_;
    const int depth_;
    float *scores_, *weights_, *sums_, *queries_;
};

// ---- on tiles or on vectors

inline Packed packed_layout(int keys, int depth) { return on_tiles ? packed_on_tiles(keys, depth) : packed_on_vectors(keys, depth); }

// The floats of a sequence's packed keys and values, of all heads.
inline std::size_t packed_size(int keys, int heads, int depth) { return heads * packed_layout(keys, depth).head; }

// The floats of scratch memory that packing some rows needs, and attention.
inline std::size_t packing_scratch(int rows, int depth) { return static_cast<std::size_t>(round_up(rows, packed_rows)) * packed_layout(0, depth).width; }
template <class A = Isa>
std::size_t attention_scratch(int depth) {
    if constexpr (A::tiles)
        if (on_tiles) return OnTiles<A>::scratch(depth);
    return OnVectors::scratch(depth);
}

inline int distances_stride(int keys) { return round_up(keys, lanes); }
// The same with numbers that distances add.
inline std::size_t relative_scratch(int depth, int queries, int keys) {
    return 2 * attention_scratch(depth) + static_cast<std::size_t>(queries) * distances_stride(keys);
}

// Packs rows of keys and values, (rows, .), or of keys alone. Heads of `depth` are side by side.
template <class A = Isa>
void pack(Rows key, Rows value, int first, int rows, int keys, int heads, int depth, float* to, float* scratch) {
    const std::size_t size = packed_size(keys, 1, depth);
    for (int head = 0; head < heads; head++, key.x += depth, value.x += value.x ? depth : 0, to += size) {
        if constexpr (A::tiles)
            if (on_tiles) {
                pack_on_tiles<A>(key, value, first, rows, keys, depth, to, scratch);
                continue;
            }
        pack_on_vectors(key, value, first, rows, keys, depth, to, scratch);
    }
}

// The attention of queries of one sequence. q (queries, .) is scaled, and `packed` has the sequence's keys and values. Heads
// of `depth` are side by side. Each head of keys serves `served` of them. With `relative`, the memory is that of `relative_scratch`.
template <class A = Isa>
void attend(Rows q, int queries, const float* packed, int keys, int heads, int served, int depth, Placement placement, float* out, int stride, float* memory, const Relative* relative = nullptr) {
    const std::size_t size = packed_size(keys, 1, depth), table_size = relative ? packed_size(relative->table, 1, depth) : 0;
    const std::size_t scratch = attention_scratch(depth);
    for (int head = 0; head < heads; head++, q.x += depth, packed += head % served ? 0 : size, out += depth) {
        const auto run = [&](auto products, auto met) {
            if (relative) {
                placement.own = memory + 2 * scratch, placement.own_stride = distances_stride(keys);
                add_distances(*relative, products, met, q, queries, keys, head, depth, placement, memory + 2 * scratch, placement.own_stride);
            }
            attend_head(products, q, queries, keys, head, depth, placement, out, stride);
        };
        const float* table = relative && relative->keys ? relative->keys + head * table_size : nullptr;
        const int rows = relative ? relative->table : 0;
        if constexpr (A::tiles)
            if (on_tiles) {
                run(OnTiles<A>(packed, keys, depth, memory), OnTiles<A>(table, rows, depth, memory + scratch));
                continue;
            }
        run(OnVectors(packed, keys, depth, memory), OnVectors(table, rows, depth, memory + scratch));
    }
}

}  // namespace
