// A call: a batch on its way through a network.
//
// The rows of a segment's steps are divided into parts, and each part is a task, which one thread runs in blocks of rows that
// stay in its cache. There are two ways to divide a batch.
//
// - By spans: some whole sequences. A task runs a block of steps (a layer) for a span, so that the span's queries, keys and
//   values stay in the thread's memory.
// - By chunks: some rows of a lone sequence. A task runs the segments between two waits for a chunk. Queries, keys and values
//   are in the call's memory. Keys and values of successive layers alternate between two memories, so that a chunk can write
//   those of a layer while others still read those of the layer before.
//
// A call that would have one part, or whose rows do not fill the threads evenly, shares the columns of its products instead.
//
// Every number is computed by the same operations in the same order either way.

#pragma once

#include <limits>
#include <mutex>
#include <optional>

#include "attention_tiles.h"
#include "helpers.h"
#include "model.h"

namespace {

constexpr int span_tokens = 128;                      // the activations of a span stay in the second-level cache, beside a layer's weights
constexpr int chunk_rows = std::max(packed_rows, multiple);  // chunks are multiples of this
constexpr int largest_chunk = 64;
constexpr int most_parts = 16;                        // of a product whose columns threads share
constexpr int long_tokens = 2048;                     // of a sequence: from about here on, attention takes most of the time
constexpr int block_multiple = Isa::tiles ? 2 * tile_side : Isa::tile_rows;

// Some rows: tokens, or positions that the head reads.
struct Range {
    int first, last;
    int count() const { return last - first; }
};

static_assert(most_rows <= query_block && query_block % Isa::tile_rows == 0 && key_block % key_step == 0, "blocks are whole tiles");

class Call : public Tasks {
   public:
    Call(const Model& model, const Batch& batch, float* out)
        : model_(model), program_(model.program()), batch_(batch), out_(out), memory_(workspace), tiles_(Isa::tiles && tiles_trusted),
          is_long_(batch.sequences == 1 && batch.tokens >= long_tokens) {
        place_rows();
        divide();
        place_values();
    }

    void after_work() override { workspace.trim(); }

   protected:
    void run(int stage, int task) override;

   private:
    struct Part {
        Range tokens, reads;
    };
    struct Stage {
        int first, last;  // segments
        int parts;        // the place of its first part
    };
    class Worker;

    // Finds the sequence of every row, and where its outputs go.
    void place_rows() {
        const Batch& b = batch_;
        int* index = memory_.index.reserve(b.reads);
        int *owner = memory_.owner.reserve(b.tokens), *read_owner = memory_.read_owner.reserve(b.reads);
        int* key_start = memory_.key_start.reserve(b.sequences + 1);
        std::size_t* out_start = memory_.out_start.reserve(b.sequences);
        key_start[0] = 0;
        std::size_t written = 0;
        for (int s = 0; s < b.sequences; s++) {
            std::fill(owner + b.offsets[s], owner + b.offsets[s + 1], s);
            for (std::int64_t i = b.focus_offsets[s]; i < b.focus_offsets[s + 1]; i++) {
                index[i] = static_cast<int>(b.offsets[s] + b.focus[i]);
                read_owner[i] = s;
            }
            key_start[s + 1] = key_start[s] + round_up(b.keys(s), packed_rows);
            out_start[s] = written;
            written += static_cast<std::size_t>(b.focus_offsets[s + 1] - b.focus_offsets[s]) * row_size(s);
        }
        index_ = index, owner_ = owner, read_owner_ = read_owner, key_start_ = key_start, out_start_ = out_start;
    }

    // The numbers that a sequence asks for at each of its positions.
    std::size_t row_size(int s) const {
        const std::int64_t candidates = batch_.candidate_offsets[s + 1] - batch_.candidate_offsets[s], k = batch_.top_k[s];
        if (!k) return candidates ? 1 : model_.outputs();
        return 1 + 2 * static_cast<std::size_t>(std::min<std::int64_t>(k, candidates ? candidates : model_.outputs()));
    }

    void divide() {
        const int threads = std::max(1, Helpers::instance().idle_cores());  // this one, too
        by_chunks_ = batch_.sequences == 1 && (batch_.tokens >= 8 * largest_chunk || (threads > 1 && gains_more_by_chunks(threads)));
        by_chunks_ ? divide_into_chunks(threads) : divide_into_spans();
        shares_steps_ = parts_.size() == 1 && threads > 1;
    }

    // Whether threads gain more from chunks of a lone sequence than from columns. Chunks differ in size. If columns are shared, about
    // a sixth of the call stays on its own thread.
    bool gains_more_by_chunks(int threads) const {
        const int size = chunk_size(batch_.tokens, threads), count = (batch_.tokens + size - 1) / size;
        const float longest = static_cast<float>((count + threads - 1) / threads * size), sharing = static_cast<float>(std::min(threads, most_sharing));
        return longest < static_cast<float>(batch_.tokens) * (1 + 5 / sharing) / 6;
    }

    void divide_into_spans() {
        for (int first = 0, last; first < batch_.sequences; first = last) {
            for (last = first + 1; last < batch_.sequences && batch_.offsets[last + 1] - batch_.offsets[first] <= span_tokens;) last++;
            const auto range = [&](const std::int64_t* offsets) { return Range{static_cast<int>(offsets[first]), static_cast<int>(offsets[last])}; };
            parts_.push_back({range(batch_.offsets), range(batch_.focus_offsets)});
        }
        const std::vector<Segment>& segments = program_.segments;
        for (int first = 0, last; first < static_cast<int>(segments.size()); first = last) {
            for (last = first + 1; last < static_cast<int>(segments.size()) && !segments[last].starts_block;) last++;
            stages_.push_back({first, last, 0});
            add_stage(static_cast<int>(parts_.size()));
        }
    }

    void divide_into_chunks(int threads) {
        for (const Range& chunk : chunks(batch_.tokens, threads)) parts_.push_back({chunk, {0, 0}});
        const int first_read = static_cast<int>(parts_.size());
        for (const Range& chunk : chunks(batch_.reads, threads)) parts_.push_back({{0, 0}, chunk});
        const std::vector<Segment>& segments = program_.segments;
        for (int first = 0, last; first < static_cast<int>(segments.size()); first = last) {
            for (last = first + 1; last < static_cast<int>(segments.size()) && !segments[last].waits;) last++;
            const int begin = segments[first].reads ? first_read : 0, end = segments[first].reads ? static_cast<int>(parts_.size()) : first_read;
            stages_.push_back({first, last, begin});
            add_stage(end - begin);
        }
    }

    // Chunks of about the same size for each thread, and several of them if the sequence is long.
    int chunk_size(int rows, int threads) const {
        const int count = threads * std::max(1, rows / (threads * (is_long_ ? most_rows : largest_chunk)));
        return round_up(std::max(1, (rows + count - 1) / count), chunk_rows);
    }
    std::vector<Range> chunks(int rows, int threads) const {
        const int size = chunk_size(rows, threads);
        std::vector<Range> found;
        for (int first = 0; first < rows; first += size) found.push_back({first, std::min(rows, first + size)});
        return found;
    }

    // Places the values that later segments read in the call's memory: those of all tokens, then those that the head reads.
    void place_values() {
        std::size_t total = 0;
        const std::size_t rows = static_cast<std::size_t>(batch_.tokens) + batch_.reads;
        call_values_.assign(program_.widths.size(), nullptr);
        const auto each = [&](auto&& f) {
            for (int value = 0; value < static_cast<int>(program_.widths.size()); value++)
                if (in_call(value)) f(value);
        };
        each([&](int value) { total += rows * program_.stride(value); });
        float* next = memory_.values.reserve(total);
        each([&](int value) { call_values_[value] = next, next += rows * program_.stride(value); });
        for (const Segment& segment : program_.segments)
            if (segment.folds != none) {
                const std::size_t size = static_cast<std::size_t>(batch_.sequences) * program_.stride(segment.folds);
                maxima_ = memory_.maxima.reserve(size);
                std::fill(maxima_, maxima_ + size, -std::numeric_limits<float>::infinity());
            }
        for (const Step& s : program_.steps)
            if (s.kind == Kind::attend) key_floats_ = std::max(key_floats_, floats_per_key(s));
        if (!by_chunks_) return;
        const std::size_t size = key_start_[1] * key_floats_;
        packed_[0] = memory_.packed.reserve(2 * size), packed_[1] = packed_[0] + size;
    }
    // The packed floats of a key and a value, of all heads.
    std::size_t floats_per_key(const Step& s) const {
        const TileCall tiles(tiles_);
        return packed_size(packed_rows, s.key_heads, s.width / s.heads) / packed_rows;
    }
    // Whether a value is in the call's memory, and not in that of the thread that runs a part.
    bool in_call(int value) const {
        const Storage storage = program_.storage[value];
        return storage == Storage::call || (by_chunks_ && storage == Storage::steps);
    }

    const Model& model_;
    const Program& program_;
    const Batch& batch_;
    float* out_;
    Workspace& memory_;  // of the thread that makes the call
    const bool tiles_;
    const bool is_long_;
    bool by_chunks_ = false;
    std::vector<Part> parts_;
    std::vector<Stage> stages_;
    const int* index_ = nullptr;                      // (reads,): the token at each position that the head reads
    const int *owner_ = nullptr, *read_owner_ = nullptr;  // (tokens,) and (reads,): the sequence of each row
    const int* key_start_ = nullptr;                  // (sequences + 1,): the place of its keys among all packed keys
    const std::size_t* out_start_ = nullptr;          // (sequences,): the place of its outputs
    std::vector<float*> call_values_;
    float* maxima_ = nullptr;  // (sequences, stride): of a value whose rows are not kept
    mutable std::mutex folding_;  // of threads that compute rows of the same sequence
    std::size_t key_floats_ = 0;  // the most that a key and a value take, packed, in a layer
    float* packed_[2] = {};
};

// Runs segments for a part, on one thread.
class Call::Worker {
   public:
    Worker(const Call& call, const Part& part)
        : call_(call), model_(call.model_), program_(call.program_), batch_(call.batch_), part_(part), memory_(workspace), block_(call.is_long_ ? most_rows : block_rows) {
        std::size_t total = 0;
        const std::size_t rows = std::max(part.tokens.count(), part.reads.count());
        const auto size = [&](int value) { return (program_.is_block(value) ? block_ : rows) * program_.stride(value); };
        values_ = call.call_values_;
        const int count = static_cast<int>(values_.size());
        for (int value = 0; value < count; value++)
            if (!values_[value]) total += size(value);
        float* next = memory_.own_values.reserve(total);
        for (int value = 0; value < count; value++)
            if (!values_[value]) values_[value] = next, next += size(value);
        if (!part.tokens.count() || call.by_chunks_) return;
        first_key_ = call.key_start_[call.owner_[part.tokens.first]];
        const int keys = call.key_start_[call.owner_[part.tokens.last - 1] + 1] - first_key_;
        own_packed_ = memory_.own_packed.reserve(keys * call.key_floats_);
    }

    void run(int first, int last) {
        for (int number = first; number < last; number++) {
            const Segment& segment = program_.segments[number];
            const Range rows = segment.reads ? part_.reads : part_.tokens;
            reads_ = segment.reads, part_first_ = rows.first;
            const int blocks = (rows.count() + block_ - 1) / block_;
            const int size = blocks ? std::min(block_, round_up((rows.count() + blocks - 1) / blocks, block_multiple)) : 0;
            for (first_ = rows.first; first_ < rows.last; first_ += size) {
                count_ = std::min(size, rows.last - first_);
                for (int i = segment.first; i < segment.last; i++) run(program_.steps[i]);
                if (segment.folds != none) fold(segment.folds);
                if (number == static_cast<int>(program_.segments.size()) - 1) write_outputs();
            }
            if (segment.packs != none) pack_keys(program_.steps[segment.packs], rows);
        }
    }

   private:
    // The first row of a value's block. Rows of the call's memory for the head's positions follow those of all tokens.
    float* rows(int value) const { return rows(value, first_); }
    float* rows(int value, int row) const {
        const std::size_t stride = program_.stride(value);
        if (call_.call_values_[value]) return values_[value] + (row + (reads_ ? static_cast<std::size_t>(batch_.tokens) : 0)) * stride;
        return values_[value] + static_cast<std::size_t>(row - (program_.is_block(value) ? first_ : part_first_)) * stride;
    }

    void run(const Step& s) {
        switch (s.kind) {
            case Kind::look_up: return look_up(s);
            case Kind::multiply: return s.exact ? multiply_exactly(s) : multiply_rounded(s);
            case Kind::norm: return normalise(s);
            case Kind::attend: return attend_block(s);
            case Kind::read: return s.how == How::focus ? gather(s) : pool(s);
            case Kind::gate: return gate(s);
            case Kind::rotate: return rotate(s);
            case Kind::norm_heads: return normalise_heads(s);
        }
    }

    void look_up(const Step& s) {
        const int stride = program_.stride(s.out);
        float* to = rows(s.out) + s.x.first;
        for (int token = first_; token < first_ + count_; token++, to += stride) {
            const int sequence = call_.owner_[token];
            const std::int64_t begin = batch_.offsets[sequence], end = batch_.offsets[sequence + 1];
            if (s.index == Index::given) {
                std::copy_n(batch_.given + static_cast<std::size_t>(token) * s.width, s.width, to);
                continue;
            }
            if (!s.in_vector) {
                const std::int64_t at = s.index == Index::next_word ? token + 1 : s.index == Index::previous_word ? token - 1 : token;
                const std::int64_t id = at >= begin && at < end ? batch_.ids[at] : -1;
                if (!s.adds) {
                    model_.look_up(id, to);
                    continue;
                }
                float* word = memory_.attention.reserve(s.width);
                model_.look_up(id, word);
                add(word, s.width, to);
                continue;
            }
            const std::int64_t row = s.index == Index::position ? token - begin : batch_.token_types[token];
            const float* from = model_.vector(s.parameter) + row * s.width;
            if (s.adds)
                add(from, s.width, to);
            else
                std::copy(from, from + s.width, to);
        }
    }
    static void add(const float* from, int n, float* to) {
        for (int d = 0; d < n; d++) to[d] += from[d];
    }

    void multiply_rounded(const Step& s) {
        const int k = program_.width(s.x.value);
        const float* x = rows(s.x.value);
        const int x_stride = program_.stride(s.x.value), stride = program_.stride(s.out);
        Epilogue epilogue{s.activation};
        if (s.residual.value != none) {
            epilogue.residual = rows(s.residual.value) + s.residual.first;
            epilogue.residual_stride = program_.stride(s.residual.value);
        }
        if (s.gain != none) epilogue.gain = model_.vector(s.gain);
        if (const float* added = model_.has_deltas() ? adapt(s) : nullptr) epilogue.residual = added, epilogue.residual_stride = stride;
        if (model_.precision() == Precision::bf16) {
            const FloatRows taken = memory_.floats(k);
            if (s.quantises) take_rows(x, x_stride, count_, k, taken);
            return multiply_in_parts<Bf16Product>(taken, model_.product(s.parameter), rows(s.out), stride, epilogue);
        }
        const QuantisedRows quantised = memory_.quantised(k);
        const Ranges ranges = range_memory();
        if (s.quantises) quantise(x, x_stride, count_, k, quantised, s.knows_ranges ? &ranges : nullptr);
        if (s.ranged) epilogue.ranges = &ranges;
        multiply_in_parts<Int8Product>(quantised, model_.product(s.parameter), rows(s.out), stride, epilogue);
    }

    Ranges range_memory() { return memory_.ranges(call_.shares_steps_ ? most_parts : 1); }

    // Multiplies the block's rows. If the call shares its steps, helpers compute some of the columns.
    template <template <class> class P>
    void multiply_in_parts(const typename P<Isa>::Rows& x, const Matrix& m, float* out, int stride, const Epilogue& epilogue) {
        constexpr int unit = std::max(tile_columns, Isa::tiles ? 2 * tile_side : 0);
        const int units = (m.n + unit - 1) / unit, size = (units + most_parts - 1) / most_parts * unit, parts = (m.n + size - 1) / size;
        if (!call_.shares_steps_ || parts == 1 || !call_.step_.assisted()) return multiply<P>(x, count_, m, out, stride, epilogue);
        Ranges ranges[most_parts];
        call_.step_.share(parts, [&](int part, bool helps) {
            std::optional<TileCall> tiles;
            if (helps) tiles.emplace(call_.tiles_);
            const int first = part * size;
            const Matrix columns = m.columns(first, std::min(size, m.n - first));
            Epilogue own = epilogue;
            if (own.residual) own.residual += first;
            if (own.gain) own.gain += first;
            if (own.ranges) ranges[part] = epilogue.ranges->from(static_cast<std::size_t>(part) * count_), own.ranges = &ranges[part];
            multiply<P>(x, count_, columns, out + first, stride, own);
        });
        for (int row = 0; epilogue.ranges && row < count_; row++) {
            const Ranges all = epilogue.ranges->from(row);
            for (int part = 1; part < parts; part++) {
                const Ranges more = ranges[part].from(row);
                Isa::store(all.low, Isa::min(Isa::load(all.low), Isa::load(more.low))), Isa::store(all.high, Isa::max(Isa::load(all.high), Isa::load(more.high)));
            }
        }
    }

    // Computes what the adapters of the block's rows add to a product, plus its residual. Returns null if they add nothing. Rows
    // without an adapter get the residual, or -0, which changes no bit of a sum.
    const float* adapt(const Step& s) {
        const int* owner = (reads_ ? call_.read_owner_ : call_.owner_) + first_;
        const int k = program_.width(s.x.value), x_stride = program_.stride(s.x.value), stride = program_.stride(s.out);
        const float* residual = s.residual.value == none ? nullptr : rows(s.residual.value) + s.residual.first;
        float* added = nullptr;
        for (int row = 0, end; row < count_; row = end) {
            const std::int64_t adapter = batch_.adapters[owner[row]];
            for (end = row + 1; end < count_ && batch_.adapters[owner[end]] == adapter;) end++;
            const Delta* delta = model_.delta(adapter, s.parameter);
            if (!delta) continue;
            if (!added) {
                added = memory_.added.reserve(static_cast<std::size_t>(most_rows) * stride);
                for (int i = 0; i < count_; i++) {
                    float* to = added + static_cast<std::size_t>(i) * stride;
                    if (residual)
                        std::copy_n(residual + static_cast<std::size_t>(i) * program_.stride(s.residual.value), stride, to);
                    else
                        std::fill_n(to, stride, -0.0f);
                }
            }
            const Matrix &a = delta->a, &b = delta->b;
            float *narrow = memory_.narrow.reserve(static_cast<std::size_t>(most_rows) * a.n), *to = added + static_cast<std::size_t>(row) * stride;
            const FloatRows x = memory_.adapted(k);
            take_rows(rows(s.x.value) + static_cast<std::size_t>(row) * x_stride, x_stride, end - row, k, x);
            multiply<Bf16Product>(x, end - row, a, narrow, a.n);
            const FloatRows y = memory_.adapted(b.k);
            take_rows(narrow, a.n, end - row, b.k, y);
            multiply<Bf16Product>(y, end - row, b, to, stride, {Activation::none, to, stride});
        }
        return added;
    }

    // In fp32: the few outputs of a head.
    void multiply_exactly(const Step& s) {
        const int k = program_.width(s.x.value), n = program_.width(s.out), stride = program_.stride(s.out);
        const float *x = rows(s.x.value), *weight = model_.vector(s.parameter), *bias = model_.vector(s.bias);
        float* to = rows(s.out);
        for (int i = 0; i < count_; i++, x += program_.stride(s.x.value), to += stride) {
            for (int o = 0; o < n; o++) to[o] = dot_product(x, weight + static_cast<std::size_t>(o) * k, k) + bias[o];
            if (s.activation == Activation::none) continue;
            std::fill(to + n, to + stride, 0.0f);
            activate_row(s.activation, to, stride);
        }
    }
    // Unlike the epilogue of a product, `activate` leaves ReLU out.
    static void activate_row(Activation activation, float* x, int n) {
        for (int i = 0; activation == Activation::relu && i < n; i++) x[i] = x[i] < 0 ? 0 : x[i];
        activate(activation, x, n);
    }

    void gate(const Step& s) {
        const int width = program_.width(s.out), x_stride = program_.stride(s.x.value), stride = program_.stride(s.out);
        const Ranges ranges = range_memory();
        const float* x = rows(s.x.value);
        float* to = rows(s.out);
        for (int i = 0; i < count_; i++, x += x_stride, to += stride) {
            std::memcpy(to, x, width * sizeof(float));
            activate_row(s.activation, to, width);
            Floats low = Isa::zero(), high = Isa::zero();
            for (int d = 0; d < width; d += lanes) {
                const Floats y = Isa::mul(Isa::load(to + d), Isa::load(x + width + d));
                low = Isa::min(low, y), high = Isa::max(high, y);
                Isa::store(to + d, y);
            }
            if (s.ranged) Isa::store(ranges.from(i).low, low), Isa::store(ranges.from(i).high, high);
        }
    }

    void rotate(const Step& s) {
        const int depth = s.width / s.heads, half = depth / 2, stride = program_.stride(s.out);
        float* x = rows(s.out) + s.x.first;
        for (int row = first_; row < first_ + count_; row++, x += stride) {
            const std::int64_t position = reads_ ? batch_.focus[row] : row - batch_.offsets[call_.owner_[row]];
            const float *cos = model_.vector(s.parameter) + position * depth, *sin = cos + half;
            for (float* head = x; head < x + s.width; head += depth)
                for (int d = 0; d < half; d += lanes) {
                    const Floats a = Isa::load(head + d), b = Isa::load(head + half + d), c = Isa::load(cos + d), t = Isa::load(sin + d);
                    Isa::store(head + d, Isa::sub(Isa::mul(a, c), Isa::mul(b, t)));
                    Isa::store(head + half + d, Isa::fma(b, c, Isa::mul(a, t)));
                }
        }
    }

    void normalise(const Step& s) {
        const int width = program_.width(s.out), stride = program_.stride(s.out);
        const Ranges ranges = range_memory();
        const float *from = rows(s.x.value), *weight = model_.vector(s.parameter), *bias = s.bias == none ? nullptr : model_.vector(s.bias);
        const float* residual = s.residual.value == none ? nullptr : rows(s.residual.value) + s.residual.first;
        float* to = rows(s.out);
        float* own = memory_.attention.reserve(residual ? width : 0);
        for (int i = 0; i < count_; i++, from += stride, to += stride) {
            Floats low, high;
            float* y = residual ? own : to;
            if (from != y) std::memcpy(y, from, width * sizeof(float));
            bias ? layer_norm(y, width, weight, bias, s.epsilon, low, high) : rms_norm(y, width, weight, s.epsilon, low, high);
            if (residual) {
                low = high = Isa::zero();
                for (int d = 0; d < width; d += lanes) {
                    const Floats sum = Isa::add(Isa::load(residual + d), Isa::load(y + d));
                    low = Isa::min(low, sum), high = Isa::max(high, sum);
                    Isa::store(to + d, sum);
                }
                residual += program_.stride(s.residual.value);
            }
            if (s.ranged) Isa::store(ranges.from(i).low, low), Isa::store(ranges.from(i).high, high);
        }
    }

    void normalise_heads(const Step& s) {
        const int depth = s.width / s.heads, stride = program_.stride(s.out);
        const float* weight = model_.vector(s.parameter);
        float* x = rows(s.out) + s.x.first;
        Floats low, high;
        for (int i = 0; i < count_; i++, x += stride)
            for (float* head = x; head < x + s.width; head += depth) rms_norm(head, depth, weight, s.epsilon, low, high);
    }

    // Packs the keys and values that a segment has computed for the part.
    void pack_keys(const Step& s, const Range& range) {
        const int key_stride = program_.stride(s.key.value), value_stride = program_.stride(s.value.value), depth = s.width / s.heads;
        for (int row = range.first, end; row < range.last; row = end) {
            const int sequence = call_.owner_[row];
            end = std::min<int>(range.last, batch_.offsets[sequence + 1]);
            const int keys = batch_.keys(sequence), first = static_cast<int>(row - batch_.offsets[sequence]);
            const int count = std::min(end - row, keys - first);  // tokens beyond the keys are only queries
            if (count <= 0) continue;
            float* scratch = memory_.attention.reserve(packing_scratch(count, depth));
            pack({rows(s.key.value, row) + s.key.first, key_stride}, {rows(s.value.value, row) + s.value.first, value_stride}, first,
                 count, keys, s.key_heads, depth, packed(s, sequence), scratch);
        }
    }

    // The packed keys and values of a sequence.
    float* packed(const Step& s, int sequence) const {
        if (call_.by_chunks_) return call_.packed_[s.parity];
        return own_packed_ + (call_.key_start_[sequence] - first_key_) * call_.key_floats_;
    }

    void attend_block(const Step& s) {
        const int q_stride = program_.stride(s.x.value), stride = program_.stride(s.out), depth = s.width / s.heads;
        const int* owner = reads_ ? call_.read_owner_ : call_.owner_;
        const float* q = rows(s.x.value) + s.x.first;
        float* to = rows(s.out);
        const Relative relative = s.relative_rows != none ? model_.relative(s) : Relative{};
        for (int row = first_, end; row < first_ + count_; row = end) {
            const int sequence = owner[row], keys = batch_.keys(sequence);
            for (end = row + 1; end < first_ + count_ && owner[end] == sequence;) end++;
            Placement placement{model_.position_bias(s.bias), model_.bias_stride(), program_.positions, s.causal, s.window};
            if (reads_)
                placement.positions = batch_.focus + row;
            else
                placement.first = static_cast<int>(row - batch_.offsets[sequence]);
            const bool has_distances = s.relative_rows != none;
            float* scratch = memory_.attention.reserve(has_distances ? relative_scratch(depth, end - row, keys) : attention_scratch(depth));
            attend({q, q_stride}, end - row, packed(s, sequence), keys, s.heads, s.heads / s.key_heads, depth, placement, to, stride, scratch, has_distances ? &relative : nullptr);
            q += static_cast<std::size_t>(end - row) * q_stride, to += static_cast<std::size_t>(end - row) * stride;
        }
    }

    // The first row of a value at a token.
    const float* token(int value, std::int64_t at) const { return call_.call_values_[value] + static_cast<std::size_t>(at) * program_.stride(value); }

    void gather(const Step& s) {
        const int stride = program_.stride(s.out);
        float* to = rows(s.out);
        for (int i = first_; i < first_ + count_; i++, to += stride) std::memcpy(to, token(s.x.value, call_.index_[i]), stride * sizeof(float));
    }

    // Raises numbers to those of x, or to NaN.
    static void raise(const float* x, int width, float* to) {
        for (int d = 0; d < width; d++) to[d] = to[d] < x[d] || x[d] != x[d] ? x[d] : to[d];
    }

    // Takes the rows of a block into the maxima of their sequences. The order of the rows does not matter.
    void fold(int value) {
        const int width = program_.width(value), stride = program_.stride(value);
        const float* x = rows(value);
        const std::lock_guard<std::mutex> lock(call_.folding_);
        for (int row = first_; row < first_ + count_; row++, x += stride)
            raise(x, width, call_.maxima_ + static_cast<std::size_t>(call_.owner_[row]) * stride);
    }

    // Computes the mean or the maximum of a sequence's tokens. Tokens are added in order: a sum does not depend on other
    // sequences.
    void pool(const Step& s) {
        const int width = program_.width(s.out), stride = program_.stride(s.out);
        float* to = rows(s.out);
        for (int i = first_; i < first_ + count_; i++, to += stride) {
            const int sequence = call_.read_owner_[i];
            if (call_.maxima_) {
                std::copy_n(call_.maxima_ + static_cast<std::size_t>(sequence) * stride, width, to);
                continue;
            }
            const std::int64_t first = batch_.offsets[sequence], last = batch_.offsets[sequence + 1];
            std::copy(token(s.x.value, first), token(s.x.value, first) + width, to);
            for (std::int64_t t = first + 1; t < last; t++) {
                const float* x = token(s.x.value, t);
                if (s.how == How::mean)
                    add(x, width, to);
                else
                    raise(x, width, to);
            }
            const float scale = 1.0f / static_cast<float>(last - first);
            if (s.how == How::mean)
                for (int d = 0; d < width; d++) to[d] *= scale;
        }
    }

    // Writes the outputs of the block's positions, or the top k of them.
    void write_outputs() {
        const int outputs = model_.outputs();
        for (int i = first_; i < first_ + count_; i++) {
            float* row = outputs_of(i);
            const int s = call_.read_owner_[i];
            const std::int64_t candidate = batch_.candidate_offsets[s], count = batch_.candidate_offsets[s + 1] - candidate, at = i - batch_.focus_offsets[s];
            const int k = static_cast<int>(batch_.top_k[s]);
            float* out = call_.out_ + call_.out_start_[s] + at * call_.row_size(s);
            if (!k && count)
                *out = log_probability(row, outputs, batch_.candidates[candidate + at]);
            else if (k)
                top_k(row, outputs, k, batch_.candidates + candidate, static_cast<int>(count), out);
            else
                std::copy(row, row + outputs, out);
        }
    }

    // The outputs of a position. Those of several values are copied side by side.
    float* outputs_of(int row) {
        if (program_.results.size() == 1) return rows(program_.results[0], row);
        float *all = memory_.outputs.reserve(round_up(model_.outputs(), lanes)), *next = all;
        for (int value : program_.results) next = std::copy_n(rows(value, row), program_.width(value), next);
        return all;
    }

    const Call& call_;
    const Model& model_;
    const Program& program_;
    const Batch& batch_;
    const Part& part_;
    Workspace& memory_;  // of this thread
    const int block_;    // the most rows of a block
    std::vector<float*> values_;
    float* own_packed_ = nullptr;
    int first_key_ = 0;    // of the packed keys in `own_packed_`
    bool reads_ = false;   // whether the rows are those that the head reads
    int part_first_ = 0, first_ = 0, count_ = 0;  // the first row of the part, and the rows of the block
};

inline void Call::run(int stage, int task) {
    const TileCall tiles(tiles_);
    const Stage& s = stages_[stage];
    Worker(*this, parts_[s.parts + task]).run(s.first, s.last);
}

}  // namespace
