// A network: its program and the parameters of its steps. `call.h` runs it.
//
// A batch is ragged: the T tokens of all sequences end to end, without padding. In int8, weights have one scale per output, and
// activations are quantised with one scale per token in front of each product. In bf16, `bf16_product.h` says what is rounded.
// Residuals, softmax and norms are fp32.

#pragma once

#include <array>
#include <vector>

#include "attention_tiles.h"
#include "memory.h"
#include "program.h"

namespace {

// Thrown when a parameter is missing.
struct Missing {};

struct Batch {
    const std::int64_t *ids, *token_types, *offsets, *focus, *focus_offsets;
    // For `top_k`. If a sequence's top_k is 0, its candidates are one output for each position in focus, whose
    // log-probabilities it asks for. Without candidates, it asks for all outputs.
    const std::int64_t *top_k, *candidates, *candidate_offsets;
    const float* given = nullptr;  // (tokens, width): the rows of a program that reads such
    const std::int64_t* attended;  // (sequences,): the tokens of a sequence that its tokens attend to, from the first one on
    const std::int64_t* adapters;  // (sequences,): the adapter of each sequence
    int sequences, tokens, reads;

    int length(int b) const { return static_cast<int>(offsets[b + 1] - offsets[b]); }
    int keys(int b) const { return static_cast<int>(attended[b]); }
};

// What an adapter adds to a product: b a x. Both are bf16.
struct Delta {
    PackedMatrix a, b;  // (rank, k) and (n, rank)
};

class Model {
   public:
    // `region` holds as much as the parameters take. Throws Misshapen, as the functions below do, and std::bad_alloc.
    template <class... Of>
    Model(int precision, const std::int32_t* numbers, std::int64_t size, Of... region)
        : region_(region...), precision_(static_cast<Precision>(precision)), program_(numbers, size) {
        require(precision == static_cast<int>(Precision::int8) || precision == static_cast<int>(Precision::bf16));
    }

    // Parameters have numbers: the products, and the vectors, each in the order of their addition. w is (n, k) in the precision
    // of the model. In bf16, there is no scale. If the region is not filled, only sizes count.
    void add_product(int n, int k, const std::int8_t* w, const float* scale, const float* bias) {
        require(n >= 1 && n <= max_size && k >= 1 && k % multiple == 0);
        if (precision_ == Precision::bf16) {
            require(k <= max_inputs_bf16);
        } else {
            require(k <= max_inputs);
            // A weight of -128 could make a sum overflow.
            require(!region_.fills() || !std::memchr(w, -128 & 255, static_cast<std::size_t>(n) * k));
        }
        products_.emplace_back(precision_, n, k, w, scale, bias, region_);
    }
    // A model has one adapter that adds nothing, or `count` adapters, whose products are added next.
    void set_adapters(int count) {
        require(count >= 1 && count <= max_adapters && deltas_.empty());
        deltas_of_.assign(count, {});
    }
    // a is (rank, k) and b (n, rank), both in bf16. Throws Missing if there is no such product.
    void add_delta(int adapter, int product, int rank, const std::int8_t* a, const std::int8_t* b) {
        require(adapter >= 0 && adapter < adapters() && rank >= 1 && rank <= max_inputs_bf16 && rank % multiple == 0);
        if (product < 0 || product >= static_cast<int>(products_.size())) throw Missing();
        const PackedMatrix& to = products_[product];
        const int k = this->product(product).k;
        require(k <= max_inputs_bf16);
        std::vector<int>& own = deltas_of_[adapter];
        own.resize(products_.size(), none);
        require(own[product] == none);
        own[product] = static_cast<int>(deltas_.size());
        PackedMatrix first(Precision::bf16, rank, k, a, nullptr, nullptr, region_);
        deltas_.push_back({first, PackedMatrix(Precision::bf16, to.rows(), rank, b, nullptr, nullptr, region_)});
    }
    void add_vector(std::size_t n, const float* x) {
        require(n >= 1 && n <= max_numbers);
        vectors_.push_back({region_.take(n, x), n});
    }
    void add_words(int n, int k, const std::int8_t* w, const float* scale) {
        require(n >= 1 && n <= max_size && k >= 1 && k <= max_size);
        vocabulary_ = n, word_width_ = k, shared_words_ = none;
        words_ = region_.take(static_cast<std::size_t>(n) * k * bytes_of(precision_), w);
        if (precision_ == Precision::int8) word_scale_ = region_.take(n, scale);
    }
    // Takes the words from a product whose matrix begins with their columns.
    void share_words(int product, int width) {
        require(product >= 0 && product < static_cast<int>(products_.size()));
        require(width >= 1 && width <= this->product(product).k);
        shared_words_ = product, vocabulary_ = products_[product].rows(), word_width_ = width;
    }

    // Checks all parameters. Throws Missing and Misshapen.
    void finish() {
        padded_.resize(vectors_.size()), tables_.resize(vectors_.size());
        for (const Step& s : program_.steps) check_parameters(s);
        ready_ = true;
    }

    bool ready() const { return ready_; }
    Precision precision() const { return precision_; }
    const Program& program() const { return program_; }
    int outputs() const { return program_.outputs(); }
    int vocabulary() const { return vocabulary_; }
    int token_types() const { return token_types_; }

    std::size_t bytes() const {
        std::size_t total = region_.bytes();
        for (const auto& v : padded_) total += v.bytes();
        for (const auto& pair : tables_) total += pair[0].bytes() + pair[1].bytes();
        return total;
    }

    const Matrix& product(int number) const { return products_[number]; }
    int adapters() const { return static_cast<int>(deltas_of_.size()); }
    bool has_deltas() const { return !deltas_.empty(); }
    // What an adapter adds to a product; null if it adds nothing.
    const Delta* delta(std::int64_t adapter, int product) const {
        const std::vector<int>& own = deltas_of_[adapter];
        return product >= static_cast<int>(own.size()) || own[product] == none ? nullptr : &deltas_[own[product]];
    }
    const float* vector(int number) const { return vectors_[number].data; }
    const float* position_bias(int number) const { return number == none ? nullptr : padded_[number].get(); }
    // What distances add to the scores of a step of attention that has `relative_rows`. `on_tiles` is that of the thread.
    Relative relative(const Step& s) const {
        const int width = program_.width(s.out), any = s.relative_keys != none ? s.relative_keys : s.relative_queries;
        Relative found{rows_.get() + program_.positions - 1, nullptr, nullptr, static_cast<int>(vectors_[any].size / width), width};
        if (s.relative_keys != none) found.keys = tables_[s.relative_keys][on_tiles].get();
        if (s.relative_queries != none) found.queries = vector(s.relative_queries);
        return found;
    }
    int bias_stride() const { return round_up(2 * program_.positions - 1, lanes) + lanes; }

    // Writes a word's embedding, or zeros if the id is -1.
    void look_up(std::int64_t id, float* to) const {
        if (id < 0) {
            std::fill(to, to + word_width_, 0.0f);
        } else if (shared_words_ != none) {
            products_[shared_words_].look_up(static_cast<int>(id), word_width_, to);
        } else {
            const std::int8_t* w = words_ + id * word_width_ * bytes_of(precision_);
            read_weights(precision_, w, word_width_, precision_ == Precision::int8 ? word_scale_[id] : 1, to);
        }
    }

   private:
    void check_parameters(const Step& s) {
        const auto is = [&](int number, std::size_t size) {
            if (number >= static_cast<int>(vectors_.size())) throw Missing();
            require(vectors_[number].size == size);
        };
        const int width = program_.width(s.out);
        switch (s.kind) {
            case Kind::look_up:
                if (s.index == Index::given) break;
                if (!s.in_vector) {
                    if (!vocabulary_) throw Missing();
                    require(s.width == word_width_ && s.index <= Index::previous_word);
                    break;
                }
                require(s.index >= Index::position);
                if (s.parameter >= static_cast<int>(vectors_.size())) throw Missing();
                check_table(s.index, vectors_[s.parameter].size, s.width);
                break;
            case Kind::multiply:
                if (s.exact) {
                    is(s.parameter, static_cast<std::size_t>(width) * program_.width(s.x.value)), is(s.bias, width);
                    break;
                }
                if (s.parameter >= static_cast<int>(products_.size())) throw Missing();
                require(products_[s.parameter].is(width, program_.width(s.x.value)));
                if (s.gain != none) is(s.gain, width);
                for (int adapter = 0; adapter < adapters(); adapter++) require(s.gain == none || !delta(adapter, s.parameter));
                break;
            case Kind::norm:
                is(s.parameter, width);
                if (s.bias != none) is(s.bias, width);
                break;
            case Kind::norm_heads: is(s.parameter, s.width / s.heads); break;
            case Kind::attend:
                if (s.bias != none) pad_position_bias(s);
                if (s.relative_rows != none) take_distances(s, is);
                break;
            case Kind::rotate:
                if (s.parameter >= static_cast<int>(vectors_.size())) throw Missing();
                check_table(Index::position, vectors_[s.parameter].size, s.width / s.heads);
                break;
            case Kind::gate:
            case Kind::read: break;
        }
    }
    void check_table(Index index, std::size_t size, int width) {
        require(size % width == 0);
        const std::size_t rows = size / width;
        if (index == Index::position)
            require(rows >= static_cast<std::size_t>(program_.positions));
        else
            token_types_ = static_cast<int>(std::min<std::size_t>(token_types_ ? token_types_ : max_size, rows));
    }

    // Copies a position bias (heads, 2 P - 1), so that whole vectors can be read from every place of a row.
    void pad_position_bias(const Step& s) {
        if (s.bias >= static_cast<int>(vectors_.size())) throw Missing();
        const int width = 2 * program_.positions - 1;
        require(vectors_[s.bias].size == static_cast<std::size_t>(s.heads) * width);
        if (padded_[s.bias].get()) return;
        const std::size_t size = static_cast<std::size_t>(s.heads) * bias_stride();
        float* to = padded_[s.bias].reserve(size);
        std::fill(to, to + size, 0.0f);
        for (int head = 0; head < s.heads; head++) {
            const float* from = vector(s.bias) + static_cast<std::size_t>(head) * width;
            std::copy(from, from + width, to + static_cast<std::size_t>(head) * bias_stride());
        }
    }

    // Checks the table of distances and the row of each distance. Packs the table's keys for vectors, and for tiles where the
    // kernel has them: a process that finds a wrong sum goes on without tiles.
    template <class Is>
    void take_distances(const Step& s, Is&& is) {
        const int width = program_.width(s.out), depth = width / s.heads, count = 2 * program_.positions - 1;
        is(s.relative_rows, count);
        const int any = s.relative_keys != none ? s.relative_keys : s.relative_queries;
        if (any >= static_cast<int>(vectors_.size())) throw Missing();
        require(vectors_[any].size % width == 0 && vectors_[any].size / width <= key_block);
        const int table = static_cast<int>(vectors_[any].size / width);
        if (s.relative_queries != none) is(s.relative_queries, static_cast<std::size_t>(table) * width);
        const float* rows = vector(s.relative_rows);
        require(rows_of_ == none || rows_of_ == s.relative_rows);
        int* to = rows_.reserve(count);
        for (int i = 0; i < count; i++) {
            require(rows[i] >= 0 && rows[i] < static_cast<float>(table));
            to[i] = static_cast<int>(rows[i]);
            require(!i || to[i] <= to[i - 1]);
        }
        rows_of_ = s.relative_rows;
        if (s.relative_keys == none) return;
        for (const bool tiles : {false, true}) {
            if (tiles && !Isa::tiles) continue;
            const TileCall call(tiles);
            Buffer<float> scratch;
            float* packed = tables_[s.relative_keys][tiles].reserve(packed_size(table, s.heads, depth));
            pack({vector(s.relative_keys), width}, {nullptr, 0}, 0, table, table, s.heads, depth, packed, scratch.reserve(packing_scratch(table, depth)));
        }
    }

    struct Vector {
        const float* data;
        std::size_t size;
    };

    Region region_;
    Precision precision_;
    Program program_;
    std::vector<PackedMatrix> products_;
    std::vector<Delta> deltas_;
    std::vector<std::vector<int>> deltas_of_{1};  // of each adapter, the delta of each product; shorter if the rest has none
    std::vector<Vector> vectors_;
    std::vector<Buffer<float>> padded_;  // the position biases
    std::vector<std::array<Buffer<float>, 2>> tables_;  // the packed keys of distances, without tiles and on tiles
    Buffer<int> rows_;      // of the keys of distances, for each distance
    int rows_of_ = none;    // the vector that they are from
    const std::int8_t* words_ = nullptr;
    const float* word_scale_ = nullptr;
    int shared_words_ = none;  // the product whose matrix holds the words
    int vocabulary_ = 0, word_width_ = 0, token_types_ = 0;
    bool ready_ = false;
};

}  // namespace
