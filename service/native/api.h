// What Python calls, through ctypes. One file of each instruction set includes this, and becomes a library of its own.

#pragma once

#include <algorithm>
#include <utility>

#include "model.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

enum Status : int { ok, no_memory, bad_batch, not_ready };

template <class Function>
int guarded(Function&& function) {
    try {
        return function();
    } catch (const std::bad_alloc&) {
        return no_memory;
    } catch (const Missing&) {
        return not_ready;
    }
}

// Whether offsets go up from 0 to `total`, by `least` to `most` a row.
bool ascend(const std::int64_t* offsets, std::int64_t rows, std::int64_t total, std::int64_t least, std::int64_t most) {
    if (offsets[0] != 0 || offsets[rows] != total) return false;
    for (std::int64_t b = 0; b < rows; b++) {
        // Neither end of a row is trusted before it is known to lie in the batch: their difference could overflow.
        if (offsets[b + 1] < 0 || offsets[b + 1] > total) return false;
        const std::int64_t length = offsets[b + 1] - offsets[b];
        if (length < least || length > most) return false;
    }
    return true;
}

bool within(const std::int64_t* values, std::int64_t count, std::int64_t limit) {
    return std::all_of(values, values + count, [=](std::int64_t v) { return v >= 0 && v < limit; });
}

constexpr std::int64_t most_tokens = 1 << 20;

bool valid(const Shape& s, const Batch& batch, std::int64_t choices) {
    if (!ascend(batch.offsets, batch.rows, batch.tokens, 1, s.positions)) return false;
    if (!ascend(batch.focus_offsets, batch.rows, batch.reads, 0, batch.reads)) return false;
    if (!within(batch.ids, batch.tokens, s.vocabulary) || !within(batch.types, batch.tokens, s.token_types)) return false;
    for (int b = 0; b < batch.rows; b++) {
        const std::int64_t first = batch.focus_offsets[b], last = batch.focus_offsets[b + 1];
        if (!within(batch.focus + first, last - first, batch.offsets[b + 1] - batch.offsets[b])) return false;
    }
    return ascend(batch.among_offsets, batch.rows, choices, 0, s.outputs) && within(batch.among, choices, s.outputs) &&
           within(batch.most, batch.rows, most_tokens);
}

}  // namespace

EXPORT const char* swiftlet_kernel() { return Isa::name; }

EXPORT int swiftlet_supported() { return Isa::supported(); }

EXPORT Model* swiftlet_create(const Shape* shape, const int* order) {
    try {
        return new Model(*shape, order);
    } catch (const std::bad_alloc&) {
        return nullptr;
    }
}

EXPORT int swiftlet_matrix(Model* model, const char* name, int n, int k, const std::int8_t* w, const float* scale,
                           const float* bias) {
    return guarded([&] { return model->add(name, n, k, w, scale, bias), ok; });
}

EXPORT int swiftlet_vector(Model* model, const char* name, std::int64_t n, const float* x) {
    return guarded([&] { return model->add(name, static_cast<std::size_t>(n), x), ok; });
}

EXPORT int swiftlet_words(Model* model, const std::int8_t* w, const float* scale) {
    return guarded([&] { return model->add_words(w, scale), ok; });
}

EXPORT int swiftlet_finish(Model* model) {
    return guarded([&] { return model->finish(), ok; });
}

// Bytes that the model holds, and those that calls on this thread have needed beside it.
EXPORT std::int64_t swiftlet_model_bytes(const Model* model) { return static_cast<std::int64_t>(model->bytes()); }
EXPORT std::int64_t swiftlet_workspace_bytes() { return static_cast<std::int64_t>(workspace.size()); }

// Answers a batch, of which every row has what is wanted of it in out, one after the other. What is given are, one after
// the other, the batch's offsets, focus_offsets and among_offsets (rows + 1 each), most (rows), ids and types (tokens
// each), focus (reads) and among (choices). May be called on several threads at once.
EXPORT int swiftlet_run(const Model* model, std::int64_t rows, std::int64_t tokens, std::int64_t reads,
                        std::int64_t choices, const std::int64_t* given, float* out) {
    if (!model->ready()) return not_ready;
    if (rows < 1 || rows > tokens || tokens > most_tokens || reads < 0 || reads > most_tokens) return bad_batch;
    const auto next = [&](std::int64_t count) { return std::exchange(given, given + count); };
    Batch batch;
    batch.rows = static_cast<int>(rows), batch.tokens = static_cast<int>(tokens), batch.reads = static_cast<int>(reads);
    batch.offsets = next(rows + 1), batch.focus_offsets = next(rows + 1), batch.among_offsets = next(rows + 1);
    batch.most = next(rows), batch.ids = next(tokens), batch.types = next(tokens);
    batch.focus = next(reads), batch.among = next(choices);
    if (!valid(model->shape(), batch, choices)) return bad_batch;
    return guarded([&] { return model->run(batch, out), ok; });
}

EXPORT void swiftlet_destroy(Model* model) { delete model; }

// One kernel at a time, for the tests. x is (rows, k); out is (rows, n rounded up to whole vectors).
EXPORT int swiftlet_multiply(int rows, int n, int k, const float* x, const std::int8_t* w, const float* scale,
                             const float* bias, int activation, const float* residual, const float* gain, float* out) {
    return guarded([&] {
        const Packed m(n, k, w, scale, bias);
        const int stride = static_cast<const Matrix&>(m).n;
        Buffer<Q> q;
        Buffer<float> s, o;
        const std::size_t count = rows;
        const Quantised to{q.room(count * k), s.room(count), o.room(count)};
        quantise(x, k, rows, k, to);
        multiply(to, rows, m, out, stride, {static_cast<Activation>(activation), residual, stride, gain});
        return ok;
    });
}

EXPORT int swiftlet_attend(int queries, int keys, int heads, int depth, const float* q, const float* k, const float* v,
                           float* out) {
    return guarded([&] {
        Buffer<float> scratch;
        const int width = heads * depth;
        attend(q, width, queries, k, v, width, keys, heads, depth, out, width, scratch.room(Room(keys, depth).size));
        return ok;
    });
}

EXPORT void swiftlet_rank(float* x, int n, int most, const std::int64_t* among, int count, float* out) {
    rank(x, n, most, among, count, out);
}

EXPORT void swiftlet_normalise(int n, float* x, const float* weight, const float* bias, float epsilon) {
    normalise(x, n, weight, bias, epsilon);
}

// As many tiles of products as fit the registers, again and again, without packed weights, memory or ends: no product is
// faster. Returns the multiply-adds done. q holds an activation for each row of a tile, w the weights of one group.
EXPORT std::int64_t swiftlet_peak(std::int64_t rounds, const Q* q, const std::int8_t* w, float* out) {
    I sum[Isa::tile_rows][Isa::tile_vectors];
    decltype(Isa::weights(w)) weights[Isa::tile_vectors];
    unroll<Isa::tile_vectors>([&](auto c) {
        weights[c] = Isa::weights(w + Isa::group * c * lanes);
        unroll<Isa::tile_rows>([&](auto r) { sum[r][c] = Isa::none(); });
    });
    for (std::int64_t i = 0; i < rounds; i++) {
        asm volatile("" : : "r"(q) : "memory");  // what q holds may have changed, so nothing is computed only once
        unroll<Isa::tile_rows>([&](auto r) {
            const auto same = Isa::activations(q + r * Isa::group);
            unroll<Isa::tile_vectors>([&](auto c) { sum[r][c] = Isa::dot(sum[r][c], same, weights[c]); });
        });
    }
    unroll<Isa::tile_rows>([&](auto r) {
        unroll<Isa::tile_vectors>([&](auto c) { Isa::store(out + (r * Isa::tile_vectors + c) * lanes, Isa::to_float(sum[r][c])); });
    });
    return rounds * Isa::tile_rows * panel * Isa::group;
}

EXPORT int swiftlet_lanes() { return lanes; }
EXPORT int swiftlet_lowest() { return Isa::lowest; }
EXPORT int swiftlet_levels() { return Isa::levels; }
EXPORT int swiftlet_paired() { return Isa::paired; }
