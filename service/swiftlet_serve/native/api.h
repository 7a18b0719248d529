// The functions that Python calls through ctypes. The file of each instruction set includes this and becomes a library.

#pragma once

#include <algorithm>
#include <new>
#include <stdexcept>
#include <system_error>
#include <utility>

#include "call.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

enum Status : int { ok, no_memory, bad_batch, missing_parameter, wrong_sum, bad_size, failed };

// Turns what a function throws into a status: no exception may reach C.
template <class Function>
int guarded(Function&& function) {
    try {
        return function();
    } catch (const std::bad_alloc&) {
        return no_memory;
    } catch (const std::length_error&) {  // a size that no memory holds
        return no_memory;
    } catch (const std::system_error&) {  // a thread or a mutex that the system has no room for
        return no_memory;
    } catch (const std::exception&) {
        return failed;
    } catch (const WrongSum&) {
        return wrong_sum;
    } catch (const Missing&) {
        return missing_parameter;
    } catch (const Misshapen&) {
        return bad_size;
    }
}

// Whether offsets rise from 0 to `total`, by `least` to `most` per sequence.
bool offsets_valid(const std::int64_t* offsets, std::int64_t sequences, std::int64_t total, std::int64_t least, std::int64_t most) {
    if (offsets[0] != 0 || offsets[sequences] != total) return false;
    for (std::int64_t b = 0; b < sequences; b++) {
        // Each offset is checked before the subtraction, which could overflow.
        if (offsets[b + 1] < 0 || offsets[b + 1] > total) return false;
        const std::int64_t length = offsets[b + 1] - offsets[b];
        if (length < least || length > most) return false;
    }
    return true;
}

bool within(const std::int64_t* values, std::int64_t count, std::int64_t limit) {
    return std::all_of(values, values + count, [=](std::int64_t v) { return v >= 0 && v < limit; });
}

constexpr std::int64_t max_tokens = 1 << 20;

bool batch_valid(const Model& m, const Batch& batch, std::int64_t candidates) {
    if (!offsets_valid(batch.offsets, batch.sequences, batch.tokens, 1, m.program().positions)) return false;
    if (!offsets_valid(batch.focus_offsets, batch.sequences, batch.reads, 0, batch.reads)) return false;
    if ((m.program().given != 0) != (batch.given != nullptr)) return false;
    if (m.vocabulary() && !within(batch.ids, batch.tokens, m.vocabulary())) return false;
    if (m.token_types() && !within(batch.token_types, batch.tokens, m.token_types())) return false;
    for (int b = 0; b < batch.sequences; b++) {
        if (batch.attended[b] < 1 || batch.attended[b] > batch.length(b)) return false;
        const std::int64_t first = batch.focus_offsets[b], last = batch.focus_offsets[b + 1];
        if (!within(batch.focus + first, last - first, batch.offsets[b + 1] - batch.offsets[b])) return false;
    }
    const std::int64_t most = std::max<std::int64_t>(m.outputs(), batch.reads);
    if (!offsets_valid(batch.candidate_offsets, batch.sequences, candidates, 0, most)) return false;
    for (int b = 0; b < batch.sequences; b++) {
        const std::int64_t count = batch.candidate_offsets[b + 1] - batch.candidate_offsets[b];
        const std::int64_t reads = batch.focus_offsets[b + 1] - batch.focus_offsets[b];
        if (batch.top_k[b] ? count > m.outputs() : count && count != reads) return false;
    }
    if (!within(batch.adapters, batch.sequences, m.adapters())) return false;
    return within(batch.candidates, candidates, m.outputs()) && within(batch.top_k, batch.sequences, max_tokens);
}

}  // namespace

// The version of these functions and of programs. Python refuses a library of another version.
EXPORT int swiftlet_interface() { return 12; }

EXPORT const char* swiftlet_kernel() { return Isa::name; }

// Whether the CPU has the instruction set.
EXPORT int swiftlet_supported() { return Isa::supported(); }

// Whether the operating system lets this process use its registers. Asks for the permission.
EXPORT int swiftlet_permitted() { return Isa::permitted(); }

// Tests tiles for some rounds. Returns the number of wrong results. Several threads may call it at the same time.
EXPORT int swiftlet_test_tiles(int rounds) {
    if constexpr (Isa::tiles) return test_tiles(rounds);
    return 0;
}

// The wrong sums that this process found. After the first one it uses no tiles.
EXPORT std::int64_t swiftlet_wrong_sums() { return wrong_sums; }

// The most inputs that a product may have.
EXPORT int swiftlet_max_inputs() { return max_inputs; }

// The cores that all calls of this process may use together. With more than one, idle cores help with calls.
EXPORT void swiftlet_set_cores(int cores) { Helpers::instance().set_cores(cores); }

// Tells the physical cores (nodes,) of each NUMA node, and the node (cpus,) of each CPU, -1 for others. Cores help with calls of
// their node only. To be called before cores are shared; later calls have no effect.
EXPORT void swiftlet_set_nodes(int nodes, const std::int32_t* cores, int cpus, const std::int32_t* node_of_cpu) {
    Helpers::instance().set_nodes(nodes, cores, cpus, node_of_cpu);
}

// Creates a model from the numbers of its program, which `program.h` describes. Its matrices are int8 (0) or bf16 (1).
// Its parameters take `bytes`: memory of this process if `file` is -1, or a file that is to be filled or is packed already. With 0
// bytes, `swiftlet_model_bytes` tells how many the added parameters would take. Only a model to be filled reads them.
EXPORT int swiftlet_create(int precision, const std::int32_t* program, std::int64_t size, std::int64_t bytes, int file, int packed, Model** model) {
    return guarded([&] {
        *model = bytes ? new Model(precision, program, size, static_cast<std::size_t>(bytes), file, packed != 0) : new Model(precision, program, size);
        return ok;
    });
}

EXPORT int swiftlet_add_product(Model* model, int n, int k, const std::int8_t* w, const float* scale, const float* bias) {
    return guarded([&] { return model->add_product(n, k, w, scale, bias), ok; });
}

// Gives a model several adapters. Those of no product add nothing.
EXPORT int swiftlet_set_adapters(Model* model, int count) {
    return guarded([&] { return model->set_adapters(count), ok; });
}

EXPORT int swiftlet_add_delta(Model* model, int adapter, int product, int rank, const std::int8_t* a, const std::int8_t* b) {
    return guarded([&] { return model->add_delta(adapter, product, rank, a, b), ok; });
}

EXPORT int swiftlet_add_vector(Model* model, std::int64_t n, const float* x) {
    return guarded([&] { return model->add_vector(n, x), ok; });
}

EXPORT int swiftlet_add_words(Model* model, int n, int k, const std::int8_t* w, const float* scale) {
    return guarded([&] { return model->add_words(n, k, w, scale), ok; });
}

EXPORT int swiftlet_share_words(Model* model, int product, int width) {
    return guarded([&] { return model->share_words(product, width), ok; });
}

EXPORT int swiftlet_finish(Model* model) {
    return guarded([&] { return model->finish(), ok; });
}

// The outputs of a finished model at each position.
EXPORT int swiftlet_outputs(const Model* model) { return model->outputs(); }

// The bytes of a model's parameters, and of this thread's workspace.
EXPORT std::int64_t swiftlet_model_bytes(const Model* model) { return static_cast<std::int64_t>(model->bytes()); }
EXPORT std::int64_t swiftlet_workspace_bytes() { return static_cast<std::int64_t>(workspace.bytes()); }

// Computes a batch and writes the outputs of the sequences one after another. `arrays` holds, one after another: offsets,
// focus_offsets and candidate_offsets (sequences + 1 each), top_k, attended and adapters (sequences each), ids and token_types (tokens each), focus
// (reads) and candidates. `given` holds the rows (tokens, width) of a program that reads such, and is null for others.
// `helped_ns` receives the time of other threads. Several threads may call it at the same time.
// Returns `wrong_sum` if tiles computed one: then the outputs come from a second computation on vectors.
EXPORT int swiftlet_run(const Model* model, std::int64_t sequences, std::int64_t tokens, std::int64_t reads,
                        std::int64_t candidates, const std::int64_t* arrays, const float* given, float* out, std::int64_t* helped_ns) {
    *helped_ns = 0;
    if (!model->ready()) return missing_parameter;
    if (sequences < 1 || sequences > tokens || tokens > max_tokens || reads < 0 || reads > max_tokens) return bad_batch;
    const auto next = [&](std::int64_t count) { return std::exchange(arrays, arrays + count); };
    Batch batch;
    batch.sequences = static_cast<int>(sequences), batch.tokens = static_cast<int>(tokens), batch.reads = static_cast<int>(reads);
    batch.offsets = next(sequences + 1), batch.focus_offsets = next(sequences + 1), batch.candidate_offsets = next(sequences + 1);
    batch.top_k = next(sequences), batch.attended = next(sequences), batch.adapters = next(sequences), batch.ids = next(tokens), batch.token_types = next(tokens);
    batch.focus = next(reads), batch.candidates = next(candidates), batch.given = given;
    if (!batch_valid(*model, batch, candidates)) return bad_batch;
    const auto run = [&] {
        Call call(*model, batch, out);
        Helpers::instance().run(call);
        *helped_ns += call.helped_ns;
    };
    return guarded([&] {
        try {
            run();
        } catch (const WrongSum&) {
            run();
            return wrong_sum;
        }
        return ok;
    });
}

EXPORT void swiftlet_destroy(Model* model) { delete model; }

// ---- for the tests

// The cores that no call uses.
EXPORT int swiftlet_idle_cores() { return Helpers::instance().idle_cores(); }

// The functions below run one kernel at a time. x is (rows, k); out is (rows, n rounded up to whole vectors).
EXPORT int swiftlet_multiply(int precision, int rows, int n, int k, const float* x, const std::int8_t* w, const float* scale,
                             const float* bias, int activation, const float* residual, const float* gain, float* out) {
    return guarded([&] {
        Region size;
        const PackedMatrix measured(static_cast<Precision>(precision), n, k, w, scale, bias, size);
        Region region(size.bytes(), -1, false);
        const PackedMatrix m(static_cast<Precision>(precision), n, k, w, scale, bias, region);
        const int stride = static_cast<const Matrix&>(m).n;
        const Epilogue epilogue{static_cast<Activation>(activation), residual, stride, gain};
        Buffer<Quantised> q;
        Buffer<float> f, s, o;
        const std::size_t count = round_up(rows, block_rows);
        const TileCall tiles;
        if (static_cast<Precision>(precision) == Precision::bf16) {
            const FloatRows to{f.reserve(count * activation_lanes(k) + lanes)};
            take_rows(x, k, rows, k, to);
            multiply<Bf16Product>(to, rows, m, out, stride, epilogue);
        } else {
            const QuantisedRows to{q.reserve(count * k), s.reserve(count), o.reserve(count)};
            quantise(x, k, rows, k, to);
            multiply<Int8Product>(to, rows, m, out, stride, epilogue);
        }
        return ok;
    });
}

// `bias` is null or (heads, 2 keys - 1 + lanes). `window` is that of a Placement. `positions` (queries,) is null if query i is at position i. Keys and values
// are packed `portion` times `packed_rows` rows at a time, or all at once if `portion` is 0.
EXPORT int swiftlet_attend(int queries, int keys, int heads, int depth, const float* q, const float* k, const float* v,
                           const float* bias, int causal, int window, const std::int64_t* positions, int portion, float* out) {
    return guarded([&] {
        Buffer<float> scratch, packed;
        const TileCall tiles;
        const int width = heads * depth, step = portion ? portion * packed_rows : keys;
        float *memory = scratch.reserve(std::max(packing_scratch(step, depth), attention_scratch(depth))), *to = packed.reserve(packed_size(keys, heads, depth));
        for (int first = 0; first < keys; first += step) {
            const std::size_t at = static_cast<std::size_t>(first) * width;
            pack({k + at, width}, {v + at, width}, first, std::min(step, keys - first), keys, heads, depth, to, memory);
        }
        const Placement placement{bias, 2 * keys - 1 + lanes, keys, causal != 0, window, positions};
        attend({q, width}, queries, to, keys, heads, 1, depth, placement, out, width, memory);
        return ok;
    });
}

EXPORT void swiftlet_top_k(float* x, int n, int k, const std::int64_t* candidates, int count, float* out) {
    top_k(x, n, k, candidates, count, out);
}

EXPORT void swiftlet_layer_norm(int n, float* x, const float* weight, const float* bias, float epsilon) {
    Floats low, high;
    layer_norm(x, n, weight, bias, epsilon, low, high);
}

namespace {

template <class A>
std::int64_t multiply_at_peak(std::int64_t rounds, const Quantised* q, const std::int8_t* w, float* out) {
    if constexpr (A::tiles) return multiply_tiles_at_peak<A>(rounds);
    Accumulators sum[Isa::tile_rows][Isa::tile_vectors];
    if constexpr (A::rows_at_once > 1) {
        typename A::template Sums<Isa::tile_rows, Isa::tile_vectors> sums;
        for (std::int64_t i = 0; i < rounds; i++) {
            asm volatile("" : : "r"(q) : "memory");
            sums.add(q, Isa::group, w);
        }
        unroll<Isa::tile_rows>([&](auto r) { unroll<Isa::tile_vectors>([&](auto c) { sum[r][c] = sums.get(r, c); }); });
    } else {
        decltype(A::load_weights(w)) weights[Isa::tile_vectors];
        unroll<Isa::tile_vectors>([&](auto c) {
            weights[c] = A::load_weights(w + Isa::group * c * lanes);
            unroll<Isa::tile_rows>([&](auto r) { sum[r][c] = A::zero_accumulators(); });
        });
        for (std::int64_t i = 0; i < rounds; i++) {
            asm volatile("" : : "r"(q) : "memory");  // q may have changed, so that the compiler keeps every round
            unroll<Isa::tile_rows>([&](auto r) {
                const auto activations = A::broadcast_group(q + r * Isa::group);
                unroll<Isa::tile_vectors>([&](auto c) { sum[r][c] = A::dot(sum[r][c], activations, weights[c]); });
            });
        }
    }
    unroll<Isa::tile_rows>([&](auto r) {
        unroll<Isa::tile_vectors>([&](auto c) { Isa::store(out + (r * Isa::tile_vectors + c) * lanes, Isa::to_floats(sum[r][c])); });
    });
    return rounds * Isa::tile_rows * tile_columns * Isa::group;
}

}  // namespace

// Multiplies as many tiles as fit the registers, again and again, without reading a matrix: the upper bound of every
// product's speed. Returns the number of multiply-adds. q holds one activation group per row of a tile, w the weights of
// one group.
EXPORT std::int64_t swiftlet_peak(std::int64_t rounds, const Quantised* q, const std::int8_t* w, float* out) {
    return multiply_at_peak<Isa>(rounds, q, w, out);
}

EXPORT int swiftlet_lanes() { return lanes; }
EXPORT int swiftlet_lowest() { return Isa::lowest; }
EXPORT int swiftlet_levels() { return Isa::levels; }
EXPORT int swiftlet_floats_per_lane() { return Isa::floats_per_lane; }
EXPORT int swiftlet_tiles() { return Isa::tiles; }
