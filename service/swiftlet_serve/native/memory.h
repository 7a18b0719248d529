// Memory: aligned buffers, the workspace of a call, and packed matrices.

#pragma once

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

#include "multiply.h"

namespace {

// Aligned memory that only grows. Growing discards its content.
template <class T, std::size_t alignment = 64>
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

    // Returns memory for at least `size` elements.
    T* reserve(std::size_t size) {
        if (size > size_) {
            std::free(data_);
            size_ = 0;
            void* data = nullptr;
            if (posix_memalign(&data, alignment, size * sizeof(T))) throw std::bad_alloc();
            data_ = static_cast<T*>(data);
            size_ = size;
        }
        return data_;
    }
    T* get() const { return data_; }
    std::size_t size() const { return size_; }
    std::size_t bytes() const { return size_ * sizeof(T); }

   private:
    T* data_ = nullptr;
    std::size_t size_ = 0;
};

constexpr int block_rows = Isa::tiles ? 128 : 48;  // rows that pass through the products of a layer together, and stay in the cache

// The memory of a call besides the weights. Each thread has one workspace for all models.
struct Workspace {
    Buffer<float> hidden, key_value, query_residual, attended, inner, widened, focused, attention, scale, offset, logits, low, high;
    Buffer<Quantised> quantised_rows;
    Buffer<int> index, queries;

    std::size_t bytes() const {
        std::size_t floats = 0;
        for (const auto* b : {&hidden, &key_value, &query_residual, &attended, &inner, &widened, &focused, &attention, &scale, &offset, &logits, &low, &high})
            floats += b->bytes();
        return floats + quantised_rows.bytes() + index.bytes() + queries.bytes();
    }
    // Returns memory for the ranges of up to `block_rows` rows.
    Ranges ranges() { return {low.reserve(block_rows * lanes), high.reserve(block_rows * lanes)}; }

    // Quantises up to `block_rows` rows. Their ranges need not be known.
    QuantisedRows quantised(const float* x, int stride, int rows, int k, const Ranges* known = nullptr) {
        QuantisedRows to{quantised_rows.reserve(static_cast<std::size_t>(block_rows) * k), scale.reserve(block_rows), offset.reserve(block_rows)};
        quantise(x, stride, rows, k, to, known);
        return to;
    }
};
thread_local Workspace workspace;

// A matrix in the memory layout of the kernels.
class PackedMatrix {
   public:
    PackedMatrix(int n, int k, const std::int8_t* w, const float* scale, const float* bias) : n_(n) {
        m_.n = round_up(n, lanes);
        m_.k = k;
        m_.w = w_.reserve(static_cast<std::size_t>(m_.n) * k);
        m_.scale = scale_.reserve(m_.n);
        m_.bias = bias_.reserve(m_.n);
        m_.sums = sums_.reserve(m_.n);
        std::int8_t* to = m_.w;
        for (int column = 0; column < m_.n; column += tile_columns) {
            const int width = std::min(tile_columns, m_.n - column);
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
    // Whether it was made of a matrix (n, k).
    bool is(int n, int k) const { return n_ == n && m_.k == k; }
    std::size_t weight_bytes() const { return static_cast<std::size_t>(m_.n) * m_.k; }
    // Moves the weights to other memory, which must have `weight_bytes` bytes.
    void move_weights(std::int8_t* to) {
        std::memcpy(to, m_.w, weight_bytes());
        w_ = {};
        m_.w = to;
    }
    std::size_t bytes() const { return w_.bytes() + scale_.bytes() + bias_.bytes() + sums_.bytes(); }

   private:
    int n_;
    Matrix m_;
    Buffer<std::int8_t> w_;
    Buffer<float> scale_, bias_, sums_;
};

}  // namespace
