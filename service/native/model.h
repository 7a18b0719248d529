// The networks: BERT's and ALBERT's layers, MobileBERT's layers, and the heads.
//
// A batch is ragged: T tokens of all rows end to end, without padding; only attention knows where rows begin. Weights
// are int8 with one scale for each output, activations small whole numbers with one scale for each token, made just before the
// product that reads them. What is added up from layer to layer, softmax and normalisation are fp32.
//
// `models/folding.py` makes the parameters, and says under which names and what was folded into them.

#pragma once

#ifdef __linux__
#include <sys/mman.h>
#endif

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "kernels.h"

namespace {

constexpr std::size_t large_page = 1 << 21;
constexpr int block = 48;  // rows that go through a feed-forward network together, and stay in the cache meanwhile

// Memory on a boundary of so many bytes that only ever grows, and is not kept when it does.
template <class T, std::size_t boundary = 64>
class Buffer {
   public:
    Buffer() = default;
    Buffer(Buffer&& other) noexcept : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;
    Buffer& operator=(Buffer&& other) noexcept {
        std::swap(data_, other.data_);
        std::swap(size_, other.size_);
        return *this;
    }
    ~Buffer() { std::free(data_); }

    T* room(std::size_t size) {
        if (size > size_) {
            std::free(data_);
            size_ = 0;
            void* data = nullptr;
            if (posix_memalign(&data, boundary, size * sizeof(T))) throw std::bad_alloc();
            data_ = static_cast<T*>(data);
            size_ = size;
        }
        return data_;
    }
    T* get() const { return data_; }
    std::size_t bytes() const { return size_ * sizeof(T); }

   private:
    T* data_ = nullptr;
    std::size_t size_ = 0;
};

// What a call needs besides the weights. Each thread has one, which all models share.
struct Workspace {
    Buffer<float> stream, kv, qr, attended, inner, wide, read, scratch, scale, offset, logits;
    Buffer<Q> quantised_rows;
    Buffer<int> index, queries;

    std::size_t size() const {
        std::size_t floats = 0;
        for (const auto* b : {&stream, &kv, &qr, &attended, &inner, &wide, &read, &scratch, &scale, &offset, &logits})
            floats += b->bytes();
        return floats + quantised_rows.bytes() + index.bytes() + queries.bytes();
    }
    // Quantises up to `block` rows.
    Quantised quantised(const float* x, int stride, int rows, int k) {
        Quantised to{quantised_rows.room(static_cast<std::size_t>(block) * k), scale.room(block), offset.room(block)};
        quantise(x, stride, rows, k, to);
        return to;
    }
};
thread_local Workspace workspace;

// A matrix with its memory, packed as the kernels read it.
class Packed {
   public:
    Packed(int n, int k, const std::int8_t* w, const float* scale, const float* bias) {
        m_.n = rounded_up(n, lanes);
        m_.k = k;
        m_.w = w_.room(static_cast<std::size_t>(m_.n) * k);
        m_.scale = scale_.room(m_.n);
        m_.bias = bias_.room(m_.n);
        m_.sums = sums_.room(m_.n);
        std::int8_t* to = m_.w;
        for (int column = 0; column < m_.n; column += panel) {
            const int width = std::min(panel, m_.n - column);
            for (int i = 0; i < k; i += Isa::group)
                for (int c = column; c < column + width; c++, to += Isa::group) {
                    if (c < n)
                        std::memcpy(to, w + static_cast<std::size_t>(c) * k + i, Isa::group);
                    else
                        std::memset(to, 0, Isa::group);
                }
        }
        for (int c = 0; c < m_.n; c++) {
            long sum = 0;
            for (int i = 0; c < n && i < k; i++) sum += w[static_cast<std::size_t>(c) * k + i];
            m_.scale[c] = c < n ? scale[c] : 0;
            m_.bias[c] = c < n ? bias[c] : 0;
            m_.sums[c] = m_.scale[c] * static_cast<float>(sum);
        }
    }
    operator const Matrix&() const { return m_; }
    std::size_t weights() const { return static_cast<std::size_t>(m_.n) * m_.k; }
    // Its weights from now on lie there, where there is room for them.
    void move(std::int8_t* to) {
        std::memcpy(to, m_.w, weights());
        w_ = {};
        m_.w = to;
    }
    std::size_t bytes() const { return w_.bytes() + scale_.bytes() + bias_.bytes() + sums_.bytes(); }

   private:
    Matrix m_;
    Buffer<std::int8_t> w_;
    Buffer<float> scale_, bias_, sums_;
};

enum class Projection : int { none, words, sum };

// The sizes and traits of a network. Python fills it in (`service/engines/native.py`).
struct Shape {
    int layers, hidden, inner, intermediate, heads, feed_forward, activation;
    int embedding, vocabulary, positions, token_types, outputs;
    int window;             // words that are looked up for a token: 1, or 3 for a trigram
    Projection projection;  // of words, or of the sum of words, positions and token types
    int embedding_norm;     // whether the embeddings have a LayerNorm
    int layer_norm;         // whether the layers have LayerNorm; if not, NoNorm is folded into the products
    int bottleneck;         // whether the layers are narrower than the hidden states
    float epsilon;
};

struct Batch {
    const std::int64_t *ids, *types, *offsets, *focus, *focus_offsets;
    const std::int64_t *most, *among, *among_offsets;  // what of a row's numbers is wanted: `rank`, or all where most is 0
    int rows, tokens, reads;
};

// Some rows of a batch's T: all, or those that the head reads.
struct Selection {
    int count;
    const int* index;    // (count,) of T; none: all
    const int* queries;  // (rows + 1,): row b of the batch has queries[b] to queries[b + 1] of them
};

struct Missing {};

class Model {
   public:
    Model(const Shape& shape, const int* order) : shape_(shape), order_(order, order + shape.layers) {}

    void add(const std::string& name, int n, int k, const std::int8_t* w, const float* scale, const float* bias) {
        const auto [at, fresh] = matrices_.emplace(name, Packed(n, k, w, scale, bias));
        if (fresh) added_.push_back(&at->second);
    }
    void add(const std::string& name, std::size_t n, const float* x) {
        Buffer<float> copy;
        std::memcpy(copy.room(n), x, n * sizeof(float));
        vectors_.emplace(name, std::move(copy));
    }
    void add_words(const std::int8_t* w, const float* scale) {
        const std::size_t size = static_cast<std::size_t>(shape_.vocabulary) * shape_.embedding;
        std::memcpy(words_.room(size), w, size);
        std::memcpy(word_scale_.room(shape_.vocabulary), scale, shape_.vocabulary * sizeof(float));
    }

    // Looks up what was added. Raises Missing.
    void finish() {
        words_.get() || throw_missing();
        position_ = vector("embeddings.position");
        type_ = vector("embeddings.token_type");
        if (shape_.embedding_norm) norm_ = norm("embeddings.norm");
        if (shape_.projection != Projection::none) projection_ = &matrix("embeddings.projection");
        layers_.clear();
        for (int i = 0; i <= *std::max_element(order_.begin(), order_.end()); i++) layers_.push_back(find_layer(i));
        if (matrices_.count("head.decoder")) {
            transform_ = &matrix("head.transform");
            head_norm_ = norm("head.norm");
            decoder_ = &matrix("head.decoder");
        } else {
            if (matrices_.count("head.pooler")) pooler_ = &matrix("head.pooler");
            output_ = vector("head.output");
            output_bias_ = vector("head.output_bias");
        }
        gather_weights();
        ready_ = true;
    }

    bool ready() const { return ready_; }
    const Shape& shape() const { return shape_; }

    std::size_t bytes() const {
        std::size_t total = words_.bytes() + word_scale_.bytes() + weights_.bytes();
        for (const auto& [_, m] : matrices_) total += m.bytes();
        for (const auto& [_, v] : vectors_) total += v.bytes();
        return total;
    }

    // out: of each row of the batch, for each place that is read, what is wanted, without gaps. The batch is a valid one.
    void run(const Batch& batch, float* out) const {
        Workspace& space = workspace;
        int* index = space.index.room(batch.reads);
        int* queries = space.queries.room(2 * (batch.rows + 1));
        int* every = queries + batch.rows + 1;
        for (int b = 0; b <= batch.rows; b++) {
            queries[b] = static_cast<int>(batch.focus_offsets[b]);
            every[b] = static_cast<int>(batch.offsets[b]);
        }
        for (int b = 0; b < batch.rows; b++)
            for (int i = queries[b]; i < queries[b + 1]; i++) index[i] = every[b] + static_cast<int>(batch.focus[i]);
        float* stream = space.stream.room(static_cast<std::size_t>(batch.tokens) * shape_.hidden);
        embed(batch, stream, space);
        const Selection all{batch.tokens, nullptr, every}, read{batch.reads, index, queries};
        const bool fewer = batch.reads < batch.tokens;
        for (int depth = 0; depth < shape_.layers; depth++) {
            const Layer& l = layers_[order_[depth]];
            const Selection& rows = fewer && depth == shape_.layers - 1 ? read : all;
            stream = layer(l, batch, stream, rows, space);
        }
        if (!fewer || !shape_.layers) stream = gather(stream, shape_.hidden, read, space);
        answer(stream, batch, out, space);
    }

   private:
    struct Norm {
        const float *weight, *bias;
    };
    // A product, the addition of a residual, and a norm: LayerNorm, or NoNorm, of which only the gain is not folded.
    struct ResidualProduct {
        const Matrix* product;
        const float* gain;
        Norm norm;
    };
    struct FeedForward {
        const Matrix* inner;
        ResidualProduct outer;
    };
    struct Layer {
        const Matrix *key_value, *query_residual;  // the residual only with a bottleneck
        ResidualProduct output, leave;
        std::vector<FeedForward> feed_forward;
    };

    // Puts all weights side by side, as they were added, in the largest pages there are: a call of few tokens reads each
    // once, and to look up the addresses of five thousand small pages took a twentieth of its time.
    void gather_weights() {
        if (weights_.get()) return;
        std::size_t total = 0;
        for (const Packed* m : added_) total += m->weights();
        std::int8_t* to = weights_.room(total);
#ifdef MADV_HUGEPAGE
        madvise(to, total, MADV_HUGEPAGE);  // where that cannot be had, small ones do
#endif
        for (Packed* m : added_) {
            m->move(to);
            to += m->weights();
        }
    }

    [[noreturn]] static bool throw_missing() { throw Missing(); }
    const Matrix& matrix(const std::string& name) const {
        auto found = matrices_.find(name);
        if (found == matrices_.end()) throw Missing();
        return found->second;
    }
    const float* vector(const std::string& name) const {
        auto found = vectors_.find(name);
        if (found == vectors_.end()) throw Missing();
        return found->second.get();
    }
    Norm norm(const std::string& name) const { return {vector(name + ".weight"), vector(name + ".bias")}; }

    ResidualProduct residual_product(const std::string& name) const {
        ResidualProduct r{&matrix(name), nullptr, {}};
        if (shape_.layer_norm)
            r.norm = norm(name + ".norm");
        else
            r.gain = vector(name + ".gain");
        return r;
    }

    Layer find_layer(int i) const {
        const std::string name = "layers." + std::to_string(i) + ".";
        Layer l{};
        l.key_value = &matrix(name + "key_value");
        l.query_residual = &matrix(name + "query_residual");
        l.output = residual_product(name + "output");
        for (int f = 0; f < shape_.feed_forward; f++) {
            const std::string network = name + "feed_forward." + std::to_string(f) + ".";
            l.feed_forward.push_back({&matrix(network + "inner"), residual_product(network + "outer")});
        }
        if (shape_.bottleneck) l.leave = residual_product(name + "leave");
        return l;
    }

    // ---- tokens to the first hidden states

    void embed(const Batch& batch, float* stream, Workspace& space) const {
        const int h = shape_.hidden, e = shape_.embedding, window = shape_.window * e;
        const bool project_words = shape_.projection == Projection::words;
        const int width = project_words ? h : e;  // of the sum of words, positions and token types
        for (int b = 0; b < batch.rows; b++) {
            const int begin = static_cast<int>(batch.offsets[b]), end = static_cast<int>(batch.offsets[b + 1]);
            for (int at = begin; at < end; at += block) {
                const int rows = std::min(block, end - at);
                float* to = stream + static_cast<std::size_t>(at) * h;
                float* x = projection_ ? space.inner.room(static_cast<std::size_t>(block) * window) : to;
                for (int i = 0; i < rows; i++) {
                    const int t = at + i;
                    float* row = x + static_cast<std::size_t>(i) * window;
                    const float* position = position_ + static_cast<std::size_t>(t - begin) * width;
                    const float* type = type_ + batch.types[t] * width;
                    if (shape_.window > 1) {
                        look_up(t + 1 < end ? batch.ids[t + 1] : -1, row);
                        look_up(batch.ids[t], row + e);
                        look_up(t > begin ? batch.ids[t - 1] : -1, row + 2 * e);
                    } else {
                        look_up(batch.ids[t], row);
                    }
                    if (project_words) {
                        for (int d = 0; d < h; d++) to[static_cast<std::size_t>(i) * h + d] = position[d] + type[d];
                    } else {
                        for (int d = 0; d < e; d++) row[d] += type[d] + position[d];
                        if (norm_.weight) normalise(row, e, norm_.weight, norm_.bias, shape_.epsilon);
                    }
                }
                if (!projection_) continue;
                Finish finish;
                if (project_words) finish.residual = to;
                finish.residual_stride = h;
                multiply(space.quantised(x, window, rows, window), rows, *projection_, to, h, finish);
                if (project_words && norm_.weight) normalise_rows(to, rows, h, norm_);
            }
        }
    }

    void normalise_rows(float* x, int rows, int width, const Norm& norm) const {
        for (int i = 0; i < rows; i++)
            normalise(x + static_cast<std::size_t>(i) * width, width, norm.weight, norm.bias, shape_.epsilon);
    }

    // A word's embedding; zeros for -1, which is no word.
    void look_up(std::int64_t id, float* to) const {
        if (id < 0) {
            std::fill(to, to + shape_.embedding, 0.0f);
            return;
        }
        const std::int8_t* w = words_.get() + id * shape_.embedding;
        const float scale = word_scale_.get()[id];
        for (int d = 0; d < shape_.embedding; d++) to[d] = static_cast<float>(w[d]) * scale;
    }

    // ---- layers: (T, H) to (T, H) in place, or to the rows that are read, elsewhere

    static float* gather(float* stream, int width, const Selection& rows, Workspace& space) {
        if (!rows.index) return stream;
        float* read = space.read.room(static_cast<std::size_t>(rows.count) * width);
        for (int i = 0; i < rows.count; i++)
            std::memcpy(read + static_cast<std::size_t>(i) * width,
                        stream + static_cast<std::size_t>(rows.index[i]) * width, width * sizeof(float));
        return read;
    }

    // Keys and values of all tokens, whatever `qr` makes of the rows selected, and attention. Returns (count, width).
    const float* attention(const Layer& l, const Batch& batch, const float* stream, const float* selected,
                           const Selection& rows, Workspace& space) const {
        const int h = shape_.hidden, width = shape_.inner, kv_stride = l.key_value->n, q_stride = l.query_residual->n;
        const std::size_t tokens = batch.tokens, count = rows.count;
        float *kv = space.kv.room(tokens * kv_stride), *qr = space.qr.room(count * q_stride);
        for (int at = 0; at < batch.tokens; at += block) {
            const int n = std::min(block, batch.tokens - at);
            const Quantised x = space.quantised(stream + static_cast<std::size_t>(at) * h, h, n, h);
            multiply(x, n, *l.key_value, kv + static_cast<std::size_t>(at) * kv_stride, kv_stride);
            if (!rows.index) multiply(x, n, *l.query_residual, qr + static_cast<std::size_t>(at) * q_stride, q_stride);
        }
        for (int at = 0; rows.index && at < rows.count; at += block) {
            const int n = std::min(block, rows.count - at);
            const Quantised x = space.quantised(selected + static_cast<std::size_t>(at) * h, h, n, h);
            multiply(x, n, *l.query_residual, qr + static_cast<std::size_t>(at) * q_stride, q_stride);
        }
        float* attended = space.attended.room(count * width);
        const int depth = width / shape_.heads;
        for (int b = 0; b < batch.rows; b++) {
            const std::size_t first = batch.offsets[b], query = rows.queries[b];
            const int keys = static_cast<int>(batch.offsets[b + 1] - batch.offsets[b]);
            float* scratch = space.scratch.room(Room(keys, depth).size);
            attend(qr + query * q_stride, q_stride, rows.queries[b + 1] - rows.queries[b], kv + first * kv_stride,
                   kv + first * kv_stride + width, kv_stride, keys, shape_.heads, depth, attended + query * width, width,
                   scratch);
        }
        return attended;
    }

    // y (rows, width) = norm(product of x + residual)
    void add_and_norm(const Quantised& x, int rows, const ResidualProduct& p, const float* residual, int residual_stride,
                      float* y, int width) const {
        multiply(x, rows, *p.product, y, width, {Activation::none, residual, residual_stride, p.gain});
        if (p.norm.weight) normalise_rows(y, rows, width, p.norm);
    }

    float* layer(const Layer& l, const Batch& batch, float* stream, const Selection& rows, Workspace& space) const {
        const int h = shape_.hidden, c = shape_.inner, wide = shape_.intermediate;
        float* selected = gather(stream, h, rows, space);
        const float* attended = attention(l, batch, stream, selected, rows, space);
        const float* residual = shape_.bottleneck ? space.qr.get() + c : selected;
        const int residual_stride = shape_.bottleneck ? 2 * c : h;
        float* inner = shape_.bottleneck ? space.inner.room(static_cast<std::size_t>(block) * c) : nullptr;
        float* w = space.wide.room(static_cast<std::size_t>(block) * wide);
        for (int at = 0; at < rows.count; at += block) {
            const int n = std::min(block, rows.count - at);
            const std::size_t first = at;
            float* x = selected + first * h;
            float* y = shape_.bottleneck ? inner : x;
            add_and_norm(space.quantised(attended + first * c, c, n, c), n, l.output, residual + first * residual_stride, residual_stride, y, c);
            for (const FeedForward& f : l.feed_forward) {
                multiply(space.quantised(y, c, n, c), n, *f.inner, w, wide, {activation()});
                add_and_norm(space.quantised(w, wide, n, wide), n, f.outer, y, c, y, c);
            }
            if (shape_.bottleneck) add_and_norm(space.quantised(y, c, n, c), n, l.leave, x, h, x, h);
        }
        return selected;
    }

    Activation activation() const { return static_cast<Activation>(shape_.activation); }

    // ---- the head

    void answer(const float* x, const Batch& batch, float* out, Workspace& space) const {
        const int h = shape_.hidden, stride = rounded_up(shape_.outputs, lanes);
        float* logits = space.logits.room(static_cast<std::size_t>(std::min(block, batch.reads)) * stride);
        for (int at = 0, b = 0; at < batch.reads; at += block, x += static_cast<std::size_t>(block) * h) {
            const int n = std::min(block, batch.reads - at);
            head(x, n, logits, stride, space);
            for (int i = 0; i < n; i++) {
                while (at + i >= batch.focus_offsets[b + 1]) b++;
                float* row = logits + static_cast<std::size_t>(i) * stride;
                const std::int64_t first = batch.among_offsets[b], count = batch.among_offsets[b + 1] - first;
                const int most = static_cast<int>(batch.most[b]);
                if (most)
                    out = rank(row, shape_.outputs, most, batch.among + first, static_cast<int>(count), out);
                else
                    out = std::copy(row, row + shape_.outputs, out);
            }
        }
    }

    // Up to `block` rows of hidden states to those of outputs, `stride` apart.
    void head(const float* x, int rows, float* out, int stride, Workspace& space) const {
        const int h = shape_.hidden;
        if (decoder_) {
            const int p = transform_->n;
            float* y = space.inner.room(static_cast<std::size_t>(block) * p);
            multiply(space.quantised(x, h, rows, h), rows, *transform_, y, p, {activation()});
            for (int i = 0; i < rows; i++) normalise(y + static_cast<std::size_t>(i) * p, p, head_norm_.weight, head_norm_.bias, shape_.epsilon);
            multiply(space.quantised(y, p, rows, p), rows, *decoder_, out, stride);
            return;
        }
        const float* y = x;
        if (pooler_) {
            float* pooled = space.inner.room(static_cast<std::size_t>(block) * h);
            multiply(space.quantised(x, h, rows, h), rows, *pooler_, pooled, h, {Activation::tanh});
            y = pooled;
        }
        for (int i = 0; i < rows; i++)
            for (int o = 0; o < shape_.outputs; o++)
                out[static_cast<std::size_t>(i) * stride + o] =
                    inner(y + static_cast<std::size_t>(i) * h, output_ + static_cast<std::size_t>(o) * h, h) + output_bias_[o];
    }

    Shape shape_;
    std::vector<int> order_;  // which layer comes at each depth
    std::map<std::string, Packed> matrices_;
    std::vector<Packed*> added_;  // of `matrices_`, in that order
    Buffer<std::int8_t, large_page> weights_;
    std::map<std::string, Buffer<float>> vectors_;
    Buffer<std::int8_t> words_;
    Buffer<float> word_scale_;
    bool ready_ = false;
    std::vector<Layer> layers_;
    Norm norm_{}, head_norm_{};
    const Matrix *projection_ = nullptr, *pooler_ = nullptr, *transform_ = nullptr, *decoder_ = nullptr;
    const float *position_ = nullptr, *type_ = nullptr, *output_ = nullptr, *output_bias_ = nullptr;
};

}  // namespace
