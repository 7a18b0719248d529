// The network: embeddings, layers and head, built from the sizes and traits in `Shape`.
//
// A batch is ragged: the T tokens of all sequences end to end, without padding. Only attention knows where a sequence
// begins. Weights are int8 with one scale per output. Activations are quantised with one scale per token in front of
// each product. Residuals, softmax and norms are fp32.
//
// `swiftlet_models/folding.py` makes the parameters, and documents their names and what is folded into them.

#pragma once

#ifdef __linux__
#include <sys/mman.h>
#endif

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "attention_tiles.h"
#include "memory.h"

namespace {

constexpr std::size_t huge_page = 1 << 21;

enum class Projection : int { none, words, sum };

// How a head reads the tokens: those in focus, or the mean or the maximum of all tokens of their sequence.
enum class Pooling : int { cls, mean, max };

// The sizes and traits of a network. Python fills it in (`engines/native.py`).
struct Shape {
    int layers, hidden, inner, intermediate, heads, feed_forward, activation;
    int embedding, vocabulary, positions, token_types, outputs;  // token_types: 0 if the network does not tell them apart
    int window;             // words that are looked up for a token: 1, or 3 for a trigram
    Projection projection;  // of the words, or of the sum of words, positions and token types
    int embedding_norm;     // 1 if the embeddings have a LayerNorm
    int layer_norm;         // 1 if the layers have LayerNorm, 0 if they have NoNorm, which is folded into the products
    int bottleneck;         // 1 if the layers are narrower than the hidden states
    int norm_first;         // 1 if a norm precedes each network of a layer, and one follows the last layer
    int causal;             // 1 if a token attends only to itself and the tokens before it
    int position_bias;      // 1 if the scores of attention have a bias
    float epsilon;
    int head_activation;  // of the pooler or the transform
    Pooling pooling;
    int dense;  // the activation of the head's output
};

struct Batch {
    const std::int64_t *ids, *token_types, *offsets, *focus, *focus_offsets;
    // For `top_k`. If a sequence's top_k is 0, its candidates are one output for each position in focus, whose
    // log-probabilities it asks for. Without candidates, it asks for all outputs.
    const std::int64_t *top_k, *candidates, *candidate_offsets;
    int sequences, tokens, reads;
};

// Tokens of a batch: all of them, or those that the head reads.
struct Selection {
    int count;
    const int* index;    // (count,) of T; null for all tokens
    const int* queries;  // (sequences + 1,): sequence b has queries[b] to queries[b + 1]
};

// Sequences of a batch.
struct Span {
    int first, last;  // the last one is not included
};

constexpr int span_tokens = 128;

// Thrown when a parameter is missing.
struct Missing {};

// Thrown when a size is out of range, or a parameter has another size than the network needs. Python checks all sizes
// first (`swiftlet_models/parameters.py`). No later code checks a size.
struct Misshapen {};

inline void require(bool condition) {
    if (!condition) throw Misshapen();
}

constexpr int max_size = 1 << 24;  // of a dimension: sums of a few of them fit an int
constexpr int multiple = 16;       // the widths are multiples of the widest vector, and of a group of inputs

inline void check_size(int size, int most = max_size) { require(size >= 1 && size <= most); }
inline void check_width(int width) {
    check_size(width, max_inputs);
    require(width % multiple == 0);
}
inline void check_activation(int activation) { require(activation >= 0 && activation <= static_cast<int>(Activation::tanh)); }

inline void check(const Shape& s) {
    for (int size : {s.layers, s.feed_forward, s.heads, s.vocabulary, s.positions, s.outputs}) check_size(size);
    for (int width : {s.hidden, s.inner, s.intermediate, s.embedding}) check_width(width);
    require(s.token_types >= 0 && s.token_types <= max_size && (s.window == 1 || s.window == 3));
    require(s.inner % s.heads == 0 && s.inner / s.heads % multiple == 0);
    require(s.projection == Projection::none || s.projection == Projection::words || s.projection == Projection::sum);
    require(s.pooling == Pooling::cls || s.pooling == Pooling::mean || s.pooling == Pooling::max);
    for (int activation : {s.activation, s.head_activation, s.dense}) check_activation(activation);
    if (s.projection == Projection::none) require(s.embedding == s.hidden);
    if (s.window > 1) require(s.projection == Projection::words);
    if (!s.bottleneck) require(s.inner == s.hidden);
    if (s.norm_first) require(s.layer_norm && !s.bottleneck);
    require(s.epsilon >= 0 && s.epsilon <= 1);
}

class Model {
   public:
    // Throws Misshapen, as the functions below do.
    Model(const Shape& shape, const int* order) : shape_((check(shape), shape)), order_(order, order + shape.layers) {
        for (int number : order_) require(number >= 0 && number < shape.layers);
    }

    void add_product(const std::string& name, int n, int k, const std::int8_t* w, const float* scale, const float* bias) {
        check_size(n), check_width(k);
        // A weight of -128 could make a sum overflow.
        require(!std::memchr(w, -128 & 255, static_cast<std::size_t>(n) * k));
        const auto [at, is_new] = matrices_.emplace(name, PackedMatrix(n, k, w, scale, bias));
        if (is_new) added_.push_back(&at->second);
    }
    void add_vector(const std::string& name, std::size_t n, const float* x) {
        Buffer<float> copy;
        std::memcpy(copy.reserve(n), x, n * sizeof(float));
        vectors_.emplace(name, std::move(copy));
    }
    void add_words(int n, int k, const std::int8_t* w, const float* scale) {
        require(n == shape_.vocabulary && k == shape_.embedding);
        const std::size_t size = static_cast<std::size_t>(shape_.vocabulary) * shape_.embedding;
        std::memcpy(words_.reserve(size), w, size);
        std::memcpy(word_scale_.reserve(shape_.vocabulary), scale, shape_.vocabulary * sizeof(float));
    }

    // Looks up all parameters. Throws Missing and Misshapen.
    void finish() {
        if (!words_.get()) throw Missing();
        const int h = shape_.hidden, width = shape_.projection == Projection::words ? h : shape_.embedding;
        position_ = vector("embeddings.position", shape_.positions, width);
        token_type_ = shape_.token_types ? vector("embeddings.token_type", shape_.token_types, width) : (zeros_.assign(width, 0.0f), zeros_.data());
        token_type_stride_ = shape_.token_types ? width : 0;
        if (shape_.embedding_norm) embedding_norm_ = norm("embeddings.norm", width);
        if (shape_.projection != Projection::none) projection_ = &matrix("embeddings.projection", h, shape_.window * shape_.embedding);
        if (shape_.norm_first) final_norm_ = norm("final_norm", h);
        if (shape_.position_bias) pad_position_bias();
        layers_.clear();
        for (int i = 0; i <= *std::max_element(order_.begin(), order_.end()); i++) layers_.push_back(find_layer(i));
        if (matrices_.count("head.decoder")) {
            int read = h;
            if (const auto found = matrices_.find("head.transform"); found != matrices_.end()) {
                read = static_cast<const Matrix&>(found->second).n;
                check_width(read);
                transform_ = &matrix("head.transform", read, h);
                head_norm_ = norm("head.norm", read);
            }
            decoder_ = &matrix("head.decoder", shape_.outputs, read);
        } else {
            if (matrices_.count("head.pooler")) pooler_ = &matrix("head.pooler", h, h);
            if (vectors_.count("head.output") || shape_.outputs != h) {
                output_ = vector("head.output", shape_.outputs, h);
                output_bias_ = vector("head.output_bias", shape_.outputs);
            }
        }
        join_weights();
        ready_ = true;
    }

    bool ready() const { return ready_; }
    const Shape& shape() const { return shape_; }

    std::size_t bytes() const {
        std::size_t total = words_.bytes() + word_scale_.bytes() + weights_.bytes();
        for (const auto& [_, m] : matrices_) total += m.bytes();
        for (const auto& [_, v] : vectors_) total += v.bytes();
        total += position_bias_.bytes();
        return total;
    }

    // Computes a valid batch. Writes the outputs of each sequence at each of its positions in focus, without gaps.
    void run(const Batch& batch, float* out) const {
        Workspace& space = workspace;
        const TileCall tiles;
        int* index = space.index.reserve(batch.reads);
        int* queries = space.queries.reserve(2 * (batch.sequences + 1));
        int* all_queries = queries + batch.sequences + 1;
        for (int b = 0; b <= batch.sequences; b++) {
            queries[b] = static_cast<int>(batch.focus_offsets[b]);
            all_queries[b] = static_cast<int>(batch.offsets[b]);
        }
        for (int b = 0; b < batch.sequences; b++)
            for (int i = queries[b]; i < queries[b + 1]; i++) index[i] = all_queries[b] + static_cast<int>(batch.focus[i]);
        float* hidden = space.hidden.reserve(static_cast<std::size_t>(batch.tokens) * shape_.hidden);
        embed(batch, hidden, space);
        const Selection all{batch.tokens, nullptr, all_queries}, focus{batch.reads, index, queries};
        const bool pools = shape_.pooling != Pooling::cls, fewer = batch.reads < batch.tokens && !pools;
        for (int depth = 0; depth < shape_.layers; depth++) {
            const bool last = depth == shape_.layers - 1;
            hidden = run_layer(layers_[order_[depth]], batch, hidden, fewer && last ? focus : all, space);
        }
        if (!fewer && !pools) hidden = gather(hidden, shape_.hidden, focus, space);
        if (shape_.norm_first) normalise(hidden, pools ? batch.tokens : batch.reads, shape_.hidden, final_norm_);
        if (pools) hidden = pool(hidden, batch, space);
        run_head(hidden, batch, out, space);
    }

   private:
    struct Norm {
        const float *weight, *bias;
    };
    // A product, the addition of a residual, and a norm unless the norms precede. Of NoNorm only the residual's gain is
    // not folded.
    struct ResidualProduct {
        const Matrix* product;
        const float* gain;
        Norm norm;
    };
    struct FeedForward {
        Norm norm;  // only if the norms precede
        const Matrix* inner;
        ResidualProduct outer;
    };
    struct Layer {
        Norm attention_norm;                       // only if the norms precede
        const Matrix *key_value, *query_residual;  // the residual only with a bottleneck
        ResidualProduct output, leave;
        std::vector<FeedForward> feed_forward;
    };

    const Matrix& matrix(const std::string& name, int n, int k) const {
        auto found = matrices_.find(name);
        if (found == matrices_.end()) throw Missing();
        require(found->second.is(n, k));
        return found->second;
    }
    const float* vector(const std::string& name, std::size_t rows, std::size_t columns = 1) const {
        auto found = vectors_.find(name);
        if (found == vectors_.end()) throw Missing();
        require(found->second.size() == rows * columns);
        return found->second.get();
    }
    Norm norm(const std::string& name, int width) const { return {vector(name + ".weight", width), vector(name + ".bias", width)}; }
    ResidualProduct residual_product(const std::string& name, int n, int k) const {
        ResidualProduct r{&matrix(name, n, k), nullptr, {}};
        if (!shape_.layer_norm)
            r.gain = vector(name + ".gain", n);
        else if (!shape_.norm_first)
            r.norm = norm(name + ".norm", n);
        return r;
    }
    Layer find_layer(int number) const {
        const std::string name = "layers." + std::to_string(number) + ".";
        const int h = shape_.hidden, c = shape_.inner, i = shape_.intermediate;
        Layer l{};
        if (shape_.norm_first) l.attention_norm = norm(name + "attention_norm", h);
        l.key_value = &matrix(name + "key_value", 2 * c, h);
        l.query_residual = &matrix(name + "query_residual", shape_.bottleneck ? 2 * c : c, h);
        l.output = residual_product(name + "output", c, c);
        for (int f = 0; f < shape_.feed_forward; f++) {
            const std::string network = name + "feed_forward." + std::to_string(f) + ".";
            const Norm first = shape_.norm_first ? norm(network + "norm", c) : Norm{};
            l.feed_forward.push_back({first, &matrix(network + "inner", i, c), residual_product(network + "outer", c, i)});
        }
        if (shape_.bottleneck) l.leave = residual_product(name + "leave", h, c);
        return l;
    }

    // Copies the position bias (heads, 2 P - 1), so that whole vectors can be read from every place of a row.
    void pad_position_bias() {
        const int width = 2 * shape_.positions - 1;
        const float* from = vector("position_bias", shape_.heads, width);
        bias_stride_ = round_up(width, lanes) + lanes;
        const std::size_t size = static_cast<std::size_t>(shape_.heads) * bias_stride_;
        float* to = position_bias_.reserve(size);
        std::fill(to, to + size, 0.0f);
        for (int head = 0; head < shape_.heads; head++)
            std::copy(from + static_cast<std::size_t>(head) * width, from + static_cast<std::size_t>(head + 1) * width, to + static_cast<std::size_t>(head) * bias_stride_);
    }

    // Moves all weights into one stretch of memory, in the order of their addition, on huge pages. A call of few tokens
    // reads each weight once: the address translation of five thousand small pages took a twentieth of its time.
    void join_weights() {
        if (weights_.get()) return;
        std::size_t total = 0;
        for (const PackedMatrix* m : added_) total += m->weight_bytes();
        std::int8_t* to = weights_.reserve(total);
#ifdef MADV_HUGEPAGE
        madvise(to, total, MADV_HUGEPAGE);  // if huge pages are not available, small ones remain
#endif
        for (PackedMatrix* m : added_) {
            m->move_weights(to);
            to += m->weight_bytes();
        }
    }

    // ---- embeddings

    // Computes the first hidden states (T, H).
    void embed(const Batch& batch, float* hidden, Workspace& space) const {
        const int h = shape_.hidden, e = shape_.embedding, window = shape_.window * e;
        const bool project_words = shape_.projection == Projection::words;
        const int width = project_words ? h : e;  // of positions and token types
        for (int b = 0; b < batch.sequences; b++) {
            const int begin = static_cast<int>(batch.offsets[b]), end = static_cast<int>(batch.offsets[b + 1]);
            for (int first = begin; first < end; first += block_rows) {
                const int rows = std::min(block_rows, end - first);
                float* to = hidden + static_cast<std::size_t>(first) * h;
                float* x = projection_ ? space.inner.reserve(static_cast<std::size_t>(block_rows) * window) : to;
                for (int i = 0; i < rows; i++) {
                    const int t = first + i;
                    float* row = x + static_cast<std::size_t>(i) * window;
                    const float* position = position_ + static_cast<std::size_t>(t - begin) * width;
                    const float* token_type = token_type_ + batch.token_types[t] * token_type_stride_;
                    if (shape_.window > 1) {
                        look_up(t + 1 < end ? batch.ids[t + 1] : -1, row);
                        look_up(batch.ids[t], row + e);
                        look_up(t > begin ? batch.ids[t - 1] : -1, row + 2 * e);
                    } else {
                        look_up(batch.ids[t], row);
                    }
                    if (project_words) {
                        for (int d = 0; d < h; d++) to[static_cast<std::size_t>(i) * h + d] = position[d] + token_type[d];
                    } else {
                        for (int d = 0; d < e; d++) row[d] += token_type[d] + position[d];
                        if (shape_.embedding_norm) normalise(row, 1, e, embedding_norm_);
                    }
                }
                if (!projection_) continue;
                Epilogue epilogue;
                if (project_words) epilogue.residual = to;
                epilogue.residual_stride = h;
                multiply(space.quantised(x, window, rows, window), rows, *projection_, to, h, epilogue);
                if (project_words && shape_.embedding_norm) normalise(to, rows, h, embedding_norm_);
            }
        }
    }

    // Writes a word's embedding, or zeros if the id is -1.
    void look_up(std::int64_t id, float* to) const {
        if (id < 0) {
            std::fill(to, to + shape_.embedding, 0.0f);
            return;
        }
        const std::int8_t* w = words_.get() + id * shape_.embedding;
        const float scale = word_scale_.get()[id];
        for (int d = 0; d < shape_.embedding; d++) to[d] = static_cast<float>(w[d]) * scale;
    }

    // ---- layers

    static float* gather(float* hidden, int width, const Selection& selection, Workspace& space) {
        if (!selection.index) return hidden;
        float* focused = space.focused.reserve(static_cast<std::size_t>(selection.count) * width);
        for (int i = 0; i < selection.count; i++)
            std::memcpy(focused + static_cast<std::size_t>(i) * width,
                        hidden + static_cast<std::size_t>(selection.index[i]) * width, width * sizeof(float));
        return focused;
    }

    // Applies LayerNorm to rows in place. Writes their ranges, unless `ranges` is null.
    void normalise(float* x, int rows, int width, const Norm& norm, const Ranges* ranges = nullptr) const {
        for (int i = 0; i < rows; i++) {
            Floats low, high;
            layer_norm(x + static_cast<std::size_t>(i) * width, width, norm.weight, norm.bias, shape_.epsilon, low, high);
            if (ranges) Isa::store(ranges->from(i).low, low), Isa::store(ranges->from(i).high, high);
        }
    }

    // y (rows, width) = norm(product of x + residual), and its ranges.
    void add_and_norm(const QuantisedRows& x, int rows, const ResidualProduct& p, const float* residual,
                      int residual_stride, float* y, int width, const Ranges& ranges) const {
        multiply(x, rows, *p.product, y, width, {Activation::none, residual, residual_stride, p.gain, &ranges});
        if (p.norm.weight) normalise(y, rows, width, p.norm, &ranges);
    }

    // Quantises up to `block_rows` rows (rows, width), after the norm that precedes, if there is one.
    QuantisedRows quantise_normed(const float* x, int rows, int width, const Norm& norm, const Ranges* known, Workspace& space) const {
        if (!norm.weight) return space.quantised(x, width, rows, width, known);
        float* y = space.inner.reserve(static_cast<std::size_t>(block_rows) * width);
        std::memcpy(y, x, static_cast<std::size_t>(rows) * width * sizeof(float));
        const Ranges ranges = space.ranges();
        normalise(y, rows, width, norm, &ranges);
        return space.quantised(y, width, rows, width, &ranges);
    }

    // The sequences from `first` on that pass through a layer together: their activations stay in the second-level cache,
    // beside the layer's weights.
    static Span next_span(const Batch& batch, int first) {
        int last = first + 1;
        while (last < batch.sequences && batch.offsets[last + 1] - batch.offsets[first] <= span_tokens) last++;
        return {first, last};
    }

    // Computes keys and values of a span's tokens, `query_residual` of the selected ones, and attention. Returns (count, C).
    const float* run_attention(const Layer& l, const Batch& batch, const Span& span, const float* hidden, const float* selected,
                               const Selection& selection, Workspace& space) const {
        const int h = shape_.hidden, c = shape_.inner, kv_stride = l.key_value->n, q_stride = l.query_residual->n;
        const int token = static_cast<int>(batch.offsets[span.first]), tokens = static_cast<int>(batch.offsets[span.last]) - token;
        const int query = selection.queries[span.first], queries = selection.queries[span.last] - query;
        float *kv = space.key_value.reserve(static_cast<std::size_t>(tokens) * kv_stride);
        float* q = space.query_residual.reserve(static_cast<std::size_t>(queries) * q_stride);
        hidden += static_cast<std::size_t>(token) * h, selected += static_cast<std::size_t>(query) * h;
        for (int first = 0; first < tokens; first += block_rows) {
            const int n = std::min(block_rows, tokens - first);
            const QuantisedRows x = quantise_normed(hidden + static_cast<std::size_t>(first) * h, n, h, l.attention_norm, nullptr, space);
            multiply(x, n, *l.key_value, kv + static_cast<std::size_t>(first) * kv_stride, kv_stride);
            if (!selection.index) multiply(x, n, *l.query_residual, q + static_cast<std::size_t>(first) * q_stride, q_stride);
        }
        for (int first = 0; selection.index && first < queries; first += block_rows) {
            const int n = std::min(block_rows, queries - first);
            const QuantisedRows x = quantise_normed(selected + static_cast<std::size_t>(first) * h, n, h, l.attention_norm, nullptr, space);
            multiply(x, n, *l.query_residual, q + static_cast<std::size_t>(first) * q_stride, q_stride);
        }
        float* attended = space.attended.reserve(static_cast<std::size_t>(queries) * c);
        const int depth = c / shape_.heads;
        for (int b = span.first; b < span.last; b++) {
            const std::size_t first = batch.offsets[b] - token, from = selection.queries[b] - query;
            const int keys = static_cast<int>(batch.offsets[b + 1] - batch.offsets[b]);
            float* scratch = space.attention.reserve(attention_scratch(keys, depth));
            const Placement placement{position_bias_.get(), bias_stride_, shape_.positions, shape_.causal != 0,
                                      selection.index ? batch.focus + selection.queries[b] : nullptr};
            attend(q + from * q_stride, q_stride, selection.queries[b + 1] - selection.queries[b], kv + first * kv_stride,
                   kv + first * kv_stride + c, kv_stride, keys, shape_.heads, depth, placement, attended + from * c, c, scratch);
        }
        return attended;
    }

    // Computes a layer, (T, H) to (T, H) in place, or to the selected tokens in other memory. Returns the output.
    float* run_layer(const Layer& l, const Batch& batch, float* hidden, const Selection& selection, Workspace& space) const {
        float* selected = gather(hidden, shape_.hidden, selection, space);
        for (Span span{0, 0}; span.last < batch.sequences;) {
            span = next_span(batch, span.last);
            const float* attended = run_attention(l, batch, span, hidden, selected, selection, space);
            const int query = selection.queries[span.first];
            run_feed_forward(l, attended, selected + static_cast<std::size_t>(query) * shape_.hidden, selection.queries[span.last] - query, space);
        }
        return selected;
    }

    // Computes the rest of a layer, in place: x is (count, H), `attended` (count, C).
    void run_feed_forward(const Layer& l, const float* attended, float* x, int count, Workspace& space) const {
        const int h = shape_.hidden, c = shape_.inner, i = shape_.intermediate;
        const bool bottleneck = shape_.bottleneck;
        const float* residual = bottleneck ? space.query_residual.get() + c : x;
        const int residual_stride = bottleneck ? 2 * c : h;
        float* inner = bottleneck ? space.inner.reserve(static_cast<std::size_t>(block_rows) * c) : nullptr;
        float* widened = space.widened.reserve(static_cast<std::size_t>(block_rows) * i);
        const Ranges ranges = space.ranges();
        for (int first = 0; first < count; first += block_rows) {
            const int n = std::min(block_rows, count - first);
            float* y = bottleneck ? inner : x;
            add_and_norm(space.quantised(attended, c, n, c), n, l.output, residual, residual_stride, y, c, ranges);
            for (const FeedForward& f : l.feed_forward) {
                const QuantisedRows normed = quantise_normed(y, n, c, f.norm, &ranges, space);
                multiply(normed, n, *f.inner, widened, i, {activation(), nullptr, 0, nullptr, &ranges});
                add_and_norm(space.quantised(widened, i, n, i, &ranges), n, f.outer, y, c, y, c, ranges);
            }
            if (bottleneck) add_and_norm(space.quantised(y, c, n, c, &ranges), n, l.leave, x, h, x, h, ranges);
            const std::size_t rows = block_rows;
            attended += rows * c, residual += rows * residual_stride, x += rows * h;
        }
    }

    Activation activation() const { return static_cast<Activation>(shape_.activation); }

    // ---- head

    // Computes the mean or the maximum of a sequence's tokens for each of its positions in focus, (reads, H). Tokens are
    // added in order, so that the sums do not depend on the other sequences.
    float* pool(const float* hidden, const Batch& batch, Workspace& space) const {
        const int h = shape_.hidden;
        float* pooled = space.focused.reserve(static_cast<std::size_t>(batch.reads) * h);
        for (int b = 0; b < batch.sequences; b++) {
            const std::int64_t first = batch.offsets[b], last = batch.offsets[b + 1];
            const float scale = 1.0f / static_cast<float>(last - first);
            for (std::int64_t i = batch.focus_offsets[b]; i < batch.focus_offsets[b + 1]; i++) {
                float* to = pooled + i * h;
                std::copy(hidden + first * h, hidden + (first + 1) * h, to);
                for (std::int64_t t = first + 1; t < last; t++) {
                    const float* x = hidden + t * h;
                    if (shape_.pooling == Pooling::mean)
                        for (int d = 0; d < h; d++) to[d] += x[d];
                    else
                        for (int d = 0; d < h; d++) to[d] = std::max(to[d], x[d]);
                }
                if (shape_.pooling == Pooling::mean)
                    for (int d = 0; d < h; d++) to[d] *= scale;
            }
        }
        return pooled;
    }

    // Writes the outputs of all positions in focus, or the top k of them.
    void run_head(const float* x, const Batch& batch, float* out, Workspace& space) const {
        const int h = shape_.hidden, stride = round_up(shape_.outputs, lanes);
        float* logits = space.logits.reserve(static_cast<std::size_t>(std::min(block_rows, batch.reads)) * stride);
        for (int first = 0, b = 0; first < batch.reads; first += block_rows, x += static_cast<std::size_t>(block_rows) * h) {
            const int n = std::min(block_rows, batch.reads - first);
            compute_logits(x, n, logits, stride, space);
            for (int i = 0; i < n; i++) {
                while (first + i >= batch.focus_offsets[b + 1]) b++;
                float* row = logits + static_cast<std::size_t>(i) * stride;
                const std::int64_t candidate = batch.candidate_offsets[b], count = batch.candidate_offsets[b + 1] - candidate;
                const int k = static_cast<int>(batch.top_k[b]);
                if (!k && count)
                    *out++ = log_probability(row, shape_.outputs, batch.candidates[candidate + first + i - batch.focus_offsets[b]]);
                else if (k)
                    out = top_k(row, shape_.outputs, k, batch.candidates + candidate, static_cast<int>(count), out);
                else
                    out = std::copy(row, row + shape_.outputs, out);
            }
        }
    }

    // Computes the outputs (rows, stride) of up to `block_rows` rows of hidden states.
    void compute_logits(const float* x, int rows, float* out, int stride, Workspace& space) const {
        const int h = shape_.hidden;
        if (decoder_) {
            if (!transform_) return multiply(space.quantised(x, h, rows, h), rows, *decoder_, out, stride);
            const int p = transform_->n;
            float* y = space.inner.reserve(static_cast<std::size_t>(block_rows) * p);
            multiply(space.quantised(x, h, rows, h), rows, *transform_, y, p, {static_cast<Activation>(shape_.head_activation)});
            normalise(y, rows, p, head_norm_);
            multiply(space.quantised(y, p, rows, p), rows, *decoder_, out, stride);
            return;
        }
        const float* y = x;
        if (pooler_) {
            float* pooled = space.inner.reserve(static_cast<std::size_t>(block_rows) * h);
            multiply(space.quantised(x, h, rows, h), rows, *pooler_, pooled, h, {static_cast<Activation>(shape_.head_activation)});
            y = pooled;
        }
        for (int i = 0; i < rows; i++) {
            const float* from = y + static_cast<std::size_t>(i) * h;
            float* to = out + static_cast<std::size_t>(i) * stride;
            if (!output_) {
                std::copy(from, from + h, to);
                continue;
            }
            for (int o = 0; o < shape_.outputs; o++)
                to[o] = dot_product(from, output_ + static_cast<std::size_t>(o) * h, h) + output_bias_[o];
            if (shape_.dense) {
                std::fill(to + shape_.outputs, to + stride, 0.0f);
                activate(static_cast<Activation>(shape_.dense), to, stride);
            }
        }
    }

    Shape shape_;
    std::vector<int> order_;  // the number of the layer at each depth
    std::map<std::string, PackedMatrix> matrices_;
    std::vector<PackedMatrix*> added_;  // of `matrices_`, in the order of their addition
    Buffer<std::int8_t, huge_page> weights_;
    std::map<std::string, Buffer<float>> vectors_;
    std::vector<float> zeros_;  // used as token types if a batch has none
    std::size_t token_type_stride_ = 0;
    Buffer<std::int8_t> words_;
    Buffer<float> word_scale_;
    bool ready_ = false;
    std::vector<Layer> layers_;
    Norm embedding_norm_{}, head_norm_{}, final_norm_{};
    Buffer<float> position_bias_;  // (heads, bias_stride_)
    int bias_stride_ = 0;
    const Matrix *projection_ = nullptr, *pooler_ = nullptr, *transform_ = nullptr, *decoder_ = nullptr;
    const float *position_ = nullptr, *token_type_ = nullptr, *output_ = nullptr, *output_bias_ = nullptr;
};

}  // namespace
