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

// Some keys of a sequence.
struct Keys {
    int first, last;  // the last one is not included
};

// How the positions of a sequence's queries enter its attention.
struct Placement {
    const float* bias = nullptr;  // (heads, bias_stride), added to the scores; null without a bias
    int bias_stride = 0;
    int longest = 0;                          // the distance d from a query to a key has the bias longest - 1 + d
    bool causal = false;                      // whether a query attends only to keys up to its own position
    int window = -1;                          // a query attends to keys at a distance of at most window / 2; -1: to all
    const std::int64_t* positions = nullptr;  // of the queries; null if query i is at position `first` + i
    int first = 0;
    const float* own = nullptr;               // (queries, own_stride): numbers to add to each query's scores; null: none
    int own_stride = 0;

    int position(int query) const { return positions ? static_cast<int>(positions[query]) : first + query; }
    // The keys that a query attends to.
    Keys attended(int query, int keys) const {
        constexpr int anywhere = 1 << 24;  // more than any position, which may lie behind the keys
        const int at = position(query), reach = window < 0 ? anywhere : std::min(anywhere, window / 2);
        return {std::max(0, at - reach), std::min(keys, causal ? at + 1 : at + 1 + reach)};
    }
    // The keys from the first to the last one that any of `rows` queries attends to.
    Keys attended(int query, int rows, int keys) const {
        if (!causal && window < 0) return {0, keys};
        Keys most = attended(query, keys);
        for (int i = query + 1; i < query + rows; i++) {
            const Keys own = attended(i, keys);
            most = {std::min(most.first, own.first), std::max(most.last, own.last)};
        }
        return most;
    }
    // The numbers to add to the scores of a query: one for each key, and more up to a whole vector.
    const float* bias_of(int head, int query) const {
        if (own) return own + static_cast<std::size_t>(query) * own_stride;
        return bias ? bias + static_cast<std::size_t>(head) * bias_stride + longest - 1 - position(query) : nullptr;
    }
};

// The softmax of one query's scores, which come block by block.
struct Softmax {
    float largest, sum;  // the sum is of exp(x - largest)

    void start() { largest = -std::numeric_limits<float>::infinity(), sum = 0; }

    // Takes the scores x of a block: those at `own`, to which it adds the bias if there is one. Calls
    // take(i, exp(x[i] - largest)) for every vector up to `all`, with zeros for other scores. Returns the factor of what was
    // summed up before.
    template <class Take>
    ALWAYS_INLINE float add(float* x, Keys own, int all, const float* bias, Take&& take) {
        if (own.first >= own.last) {
            for (int i = 0; i < all; i += lanes) take(i, Isa::zero());
            return 1;
        }
        const int begin = own.first / lanes * lanes;
        for (int i = begin; i < own.first; i++) x[i] = -std::numeric_limits<float>::infinity();
        for (int i = own.last; i % lanes; i++) x[i] = -std::numeric_limits<float>::infinity();
        const Floats before = Isa::broadcast(largest);
        Floats high = before, total = Isa::zero();
        for (int i = begin; i < own.last; i += lanes) {
            Floats score = Isa::load(x + i);
            if (bias) Isa::store(x + i, score = Isa::add(score, Isa::load(bias + i)));
            high = Isa::max(high, score);
        }
        largest = Isa::max_lane(high);
        const Floats shift = Isa::broadcast(largest);
        for (int i = 0; i < begin; i += lanes) take(i, Isa::zero());
        for (int i = begin; i < own.last; i += lanes) {
            Floats e = Isa::keep_first(exponential(Isa::sub(Isa::load(x + i), shift)), own.last - i);
            if (i < own.first) e = Isa::sub(e, Isa::keep_first(e, own.first - i));
            total = Isa::add(total, e);
            take(i, e);
        }
        for (int i = round_up(own.last, lanes); i < all; i += lanes) take(i, Isa::zero());
        const float factor = Isa::max_lane(exponential(Isa::sub(before, shift)));
        sum = sum * factor + Isa::sum_lanes(total);
        return factor;
    }
};

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

// The layout of a sequence's packed keys and values, in floats. Each head has its transposed keys in panels (width, panel),
// which are read from beginning to end, then its values (all / floats per lane, depth).
struct Packed {
    int width, panel, all;  // `all`: the keys, rounded up
    std::size_t key, head;
    Packed(int keys, int width, int panel, int depth) : width(width), panel(panel), all(round_up(keys, packed_rows)) {
        key = static_cast<std::size_t>(width) * all;
        head = key + static_cast<std::size_t>(all) / Isa::floats_per_lane * depth;
    }
    // The place of a key at the start of a panel, and the distance of that panel's rows.
    std::size_t place(int first) const { return static_cast<std::size_t>(first) * width; }
    int stride(int first) const { return std::min(panel, all - first); }
    // Transposes rows (rows, width), which begin at `first`, into their panels.
    void transpose_into(float* to, const float* from, int from_stride, int first, int rows) const {
        for (int row = 0, count; row < rows; row += count, from += static_cast<std::size_t>(count) * from_stride) {
            const int start = (first + row) / panel * panel, skipped = first + row - start;
            count = std::min(rows - row, panel - skipped);
            transpose(from, from_stride, count, width, to + place(start) + skipped, stride(start));
        }
    }
};

inline Packed packed_on_vectors(int keys, int depth) { return {keys, packed_lanes(depth), tile_columns, depth}; }

// Packs rows of one head's keys and values. `first` is the first row's place in the sequence: a multiple of `packed_rows`,
// and so is the count of rows unless they are the sequence's last.
inline void pack_on_vectors(Rows key, Rows value, int first, int rows, int keys, int depth, float* to, float* scratch) {
    const Packed packed = packed_on_vectors(keys, depth);
    const Rows columns = pack_columns(key, rows, depth, scratch);
    packed.transpose_into(to, columns.x, columns.stride, first, rows);
    if (!value.x) return;
    pack_rows(value, rows, depth, to + packed.key + static_cast<std::size_t>(first) / Isa::floats_per_lane * depth);
}

// Keys and values that many queries read while they are in the second-level cache. Blocks begin at multiples of this in
// their sequence, so that the order of a query's sums depends on nothing else.
constexpr int key_block = 512;
// The keys that a tile of queries reads of a block begin at a multiple of this.
constexpr int key_step = std::max(tile_columns, packed_rows);
// Queries that read a block of keys one tile after another.
constexpr int query_block = 192;

// Multiplies a row by a number, and adds another row if there is one.
inline void scale_and_add(float* x, float factor, const float* other, int n) {
    const Floats scale = Isa::broadcast(factor);
    for (int i = 0; i < n; i += lanes) Isa::store(x + i, Isa::fma(Isa::load(x + i), scale, other ? Isa::load(other + i) : Isa::zero()));
}

// The attention of one head for queries of one sequence. q is scaled. A tile of queries leaves out the keys to which none
// of them attends.
template <class Products>
void attend_head(Products& products, Rows q, int queries, int keys, int head, int depth, const Placement& placement, float* out, int stride) {
    constexpr int tile = Products::rows;
    for (int start = 0, count; start < queries; start += count, q.x += static_cast<std::size_t>(count) * q.stride) {
        count = std::min(query_block, queries - start);
        products.take_queries(q, count);
        const auto to = [&](int row) { return out + static_cast<std::size_t>(start + row) * stride; };
        Softmax softmax[query_block];
        for (int r = 0; r < count; r++) softmax[r].start();
        const Keys wanted = placement.attended(start, count, keys);
        for (int first = wanted.first / key_block * key_block; first < wanted.last; first += key_block)
            for (int i = 0; i < count; i += tile) {
                const int rows = std::min(tile, count - i);
                const Keys some = placement.attended(start + i, rows, keys);
                const int begin = std::max(first, some.first / key_step * key_step), end = std::min(some.last, first + key_block);
                if (begin >= end) continue;
                products.multiply_keys(i, rows, begin, end);
                float factors[tile];
                for (int r = 0; r < rows; r++) {
                    const Keys own = placement.attended(start + i + r, keys);
                    const Keys block{std::max(own.first - begin, 0), std::min(own.last, end) - begin};
                    const float* bias = placement.bias_of(head, start + i + r);
                    factors[r] = softmax[i + r].add(products.scores(r), block, products.columns(end - begin), bias ? bias + begin : nullptr, products.weights(r));
                }
                if (begin <= some.first) {  // the tile's first block
                    products.multiply_values(rows, begin, end, to(i), stride);
                    continue;
                }
                products.multiply_values(rows, begin, end, products.sums(), depth);
                for (int r = 0; r < rows; r++) scale_and_add(to(i + r), factors[r], products.sums() + static_cast<std::size_t>(r) * depth, depth);
            }
        for (int r = 0; r < count; r++) scale_and_add(to(r), 1.0f / softmax[r].sum, nullptr, depth);
    }
}

// What the distances from queries to keys add to the scores of a layer: query . keys[r] + key . queries[r] for r = rows[d].
struct Relative {
    const int* rows = nullptr;       // of the distance d, from -(longest - 1) on; the larger d, the smaller r
    const float* keys = nullptr;     // (table, .), packed as keys are; null: none
    const float* queries = nullptr;  // (table, stride); null: none
    int table = 0, stride = 0;
};

// Writes the numbers that distances add to the scores of one head, (queries, stride): zeros beyond the keys. `products` has
// the sequence's keys, and `met` the table's.
template <class Products>
void add_distances(const Relative& relative, Products& products, Products& met, Rows q, int queries, int keys, int head, int depth, const Placement& placement, float* to, int stride) {
    constexpr int tile = Products::rows;
    int first_position = placement.position(0), last_position = first_position;
    for (int i = 1; i < queries; i++) {
        first_position = std::min(first_position, placement.position(i));
        last_position = std::max(last_position, placement.position(i));
    }
    std::fill(to, to + static_cast<std::size_t>(queries) * stride, 0.0f);
    const int* row = relative.rows;
    const int low = row[keys - 1 - first_position], high = row[-last_position], begin = low / key_step * key_step;
    for (int start = 0, count; relative.keys && start < queries; start += count) {
        count = std::min(query_block, queries - start);
        met.take_queries({q.x + static_cast<std::size_t>(start) * q.stride, q.stride}, count);
        for (int i = 0; i < count; i += tile) {
            const int rows = std::min(tile, count - i);
            met.multiply_keys(i, rows, begin, high + 1);
            for (int r = 0; r < rows; r++) {
                const int query = start + i + r;
                const float* __restrict scores = met.scores(r) - begin;
                const int* own = row - placement.position(query);
                float* __restrict out = to + static_cast<std::size_t>(query) * stride;
                for (int key = 0; key < keys; key++) out[key] = scores[own[key]];
            }
        }
    }
    int longest = keys - 1 - first_position;  // the distance whose row comes next
    for (int start = low, count; relative.queries && start <= high; start += count) {
        count = std::min(query_block, high + 1 - start);
        products.take_queries({relative.queries + static_cast<std::size_t>(start) * relative.stride + head * depth, relative.stride}, count);
        for (int i = 0; i < count; i += tile) {
            const int rows = std::min(tile, count - i);
            int shortest = longest;  // the distances from the longest to behind the shortest have these rows
            while (shortest >= -last_position && row[shortest] < start + i + rows) shortest--;
            // Only the keys at these distances from one of the queries.
            const int stop = std::min(keys, last_position + longest + 1);
            for (int first = std::max(0, first_position + shortest + 1) / key_step * key_step, end; first < stop; first = end) {
                end = std::min(stop, (first / key_block + 1) * key_block);
                products.multiply_keys(i, rows, first, end);
                for (int d = longest; d > shortest; d--) {
                    const float* scores = products.scores(row[d] - start - i) - first;
                    if (placement.positions) {
                        for (int query = 0; query < queries; query++) {
                            const int key = placement.position(query) + d;
                            if (key >= first && key < end) to[static_cast<std::size_t>(query) * stride + key] += scores[key];
                        }
                        continue;
                    }
                    // The next query has the next key.
                    const int top = std::max(0, first - d - placement.first), bottom = std::min(queries, end - d - placement.first);
                    const float* __restrict from = scores + placement.first + d;
                    float* __restrict out = to + placement.first + d;
                    for (int query = top; query < bottom; query++) out[static_cast<std::size_t>(query) * (stride + 1)] += from[query];
                }
            }
            longest = shortest;
        }
    }
}

// The products of a tile of queries with a block of keys, and of their weights with the values.
class OnVectors {
   public:
    static constexpr int rows = Isa::tile_rows;

    // `packed` has a head's keys and values. `memory` has `scratch(depth)` floats.
    OnVectors(const float* packed, int keys, int depth, float* memory) : packed_(packed), layout_(packed_on_vectors(keys, depth)), depth_(depth), scores_(memory) {}

    static std::size_t scratch(int depth) {
        return static_cast<std::size_t>(rows) * key_block + static_cast<std::size_t>(rows) * depth + static_cast<std::size_t>(query_block) * packed_lanes(depth);
    }

    void take_queries(Rows q, int count) { queries_ = pack_columns(q, count, depth_, sums() + static_cast<std::size_t>(rows) * depth_); }
    void multiply_keys(int query, int count, int begin, int end) {
        const float* x = queries_.x + static_cast<std::size_t>(query) * queries_.stride;
        for (int at = begin; at < end; at += tile_columns)
            multiply_f32(x, queries_.stride, count, packed_ + layout_.place(at), layout_.stride(at), layout_.width,
                         round_up(std::min(tile_columns, end - at), lanes), scores_ + at - begin, key_block);
    }
    float* scores(int row) { return scores_ + static_cast<std::size_t>(row) * key_block; }
    // The columns of the weights of some keys, and a function that takes a row of them, vector by vector.
    static int columns(int keys) { return round_up(keys, lanes); }
    auto weights(int row) {
        return [to = scores(row)](int column, Floats e) { Isa::store(to + column, e); };
    }
    // Memory for a tile of products.
    float* sums() { return scores_ + static_cast<std::size_t>(rows) * key_block; }
    void multiply_values(int count, int begin, int end, float* to, int stride) {
        const Rows weights = pack_columns({scores_, key_block}, count, columns(end - begin), scores_);  // packed numbers never overtake the reads
        const float* value = packed_ + layout_.key + static_cast<std::size_t>(begin) / Isa::floats_per_lane * depth_;
        const int value_rows = Isa::floats_per_lane == 1 ? end - begin : packed_lanes(end - begin);
        multiply_f32(weights.x, weights.stride, count, value, depth_, value_rows, depth_, to, stride);
    }

   private:
    const float* packed_;
    const Packed layout_;
    const int depth_;
    float* scores_;
    Rows queries_{};
};

}  // namespace
