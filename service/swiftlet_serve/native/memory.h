// Memory: aligned buffers, the workspace of a thread, and packed matrices.

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
constexpr int most_rows = 192;  // the same of a long sequence, whose keys are read once for all of them


// The memory of a thread besides the weights, for all models. A call has its own memory in the workspace of the thread that
// made it.
struct Workspace {
    // Of a call: values whose rows later steps read, packed keys and values, and the places of rows.
    Buffer<float> values, packed, maxima;
    Buffer<int> index, owner, read_owner;
    Buffer<std::size_t> out_start;
    Buffer<int> key_start;
    // Of the tasks that the thread runs.
    Buffer<float> own_values, own_packed, attention, scale, offset, low, high, float_rows, outputs;
    Buffer<Quantised> quantised_rows;

    template <class Function>
    void each(Function&& f) {
        f(values), f(packed), f(maxima), f(index), f(owner), f(read_owner), f(out_start), f(key_start);
        f(own_values), f(own_packed), f(attention), f(scale), f(offset), f(low), f(high), f(float_rows), f(outputs), f(quantised_rows);
    }
    std::size_t bytes() {
        std::size_t total = 0;
        each([&](const auto& buffer) { total += buffer.bytes(); });
        return total;
    }
    // Gives back what few calls need.
    void trim() {
        constexpr std::size_t kept = 16 << 20;
        if (bytes() > kept) each([](auto& buffer) { buffer = {}; });
    }

    // Returns memory for the ranges of up to `most_rows` rows.
    Ranges ranges() { return {low.reserve(most_rows * lanes), high.reserve(most_rows * lanes)}; }

    QuantisedRows quantised(int k) {
        return {quantised_rows.reserve(static_cast<std::size_t>(most_rows) * k), scale.reserve(most_rows), offset.reserve(most_rows)};
    }
    FloatRows floats(int k) { return {float_rows.reserve(static_cast<std::size_t>(block_rows) * activation_lanes(k) + lanes)}; }
};
thread_local Workspace workspace;

// Writes n weights that follow each other as floats. The scale is that of int8.
inline void read_weights(Precision precision, const std::int8_t* w, int n, float scale, float* to) {
    for (int i = 0; i < n; i++) {
        if (precision == Precision::int8) {
            to[i] = static_cast<float>(w[i]) * scale;
            continue;
        }
        std::uint32_t bits = 0;
        std::memcpy(&bits, w + 2 * i, 2);
        bits <<= 16;  // to fp32
        std::memcpy(to + i, &bits, 4);
    }
}

// A matrix in the memory layout of the kernels.
class PackedMatrix {
   public:
    // w is (n, k), int8 with a scale per output, or bf16 numbers without scales.
    PackedMatrix(Precision precision, int n, int k, const std::int8_t* w, const float* scale, const float* bias) : n_(n) {
        m_.n = round_up(n, lanes), m_.k = k, m_.precision = precision;
        m_.w = w_.reserve(weight_bytes());
        std::int8_t* to = m_.w;
        const std::size_t bytes = m_.row_bytes(), group = group_bytes();
        for (int column = 0; column < m_.n; column += tile_columns) {
            const int width = std::min(tile_columns, m_.n - column);
            for (std::size_t i = 0; i < bytes; i += group)
                for (int c = column; c < column + width; c++, to += group) {
                    if (c < n)
                        std::memcpy(to, w + c * bytes + i, group);
                    else
                        std::memset(to, 0, group);
                }
        }
        m_.bias = bias_.reserve(m_.n);
        for (int c = 0; c < m_.n; c++) m_.bias[c] = c < n ? bias[c] : 0;
        if (precision == Precision::bf16) return;
        m_.scale = scale_.reserve(m_.n);
        m_.sums = sums_.reserve(m_.n);
        for (int c = 0; c < m_.n; c++) {
            long sum = 0;
            for (int i = 0; c < n && i < k; i++) sum += w[static_cast<std::size_t>(c) * k + i];
            m_.scale[c] = c < n ? scale[c] : 0;
            m_.sums[c] = m_.scale[c] * static_cast<float>(sum);
        }
    }
    operator const Matrix&() const { return m_; }
    // Whether it was made of a matrix (n, k).
    bool is(int n, int k) const { return n_ == n && m_.k == k; }
    int rows() const { return n_; }
    // Writes the first `width` numbers of a row of the matrix.
    void look_up(int row, int width, float* to) const {
        const int column = row / tile_columns * tile_columns, panel = std::min(tile_columns, m_.n - column), group = group_bytes();
        const std::int8_t* w = m_.w + static_cast<std::size_t>(column) * m_.row_bytes() + static_cast<std::size_t>(row - column) * group;
        const int inputs = group / bytes_of(m_.precision);
        for (int i = 0; i < width; i += inputs, w += static_cast<std::size_t>(panel) * group)
            read_weights(m_.precision, w, inputs, m_.scale ? m_.scale[row] : 1, to + i);
    }
    std::size_t weight_bytes() const { return static_cast<std::size_t>(m_.n) * m_.row_bytes(); }
    // Moves the weights to other memory, which must have `weight_bytes` bytes.
    void move_weights(std::int8_t* to) {
        std::memcpy(to, m_.w, weight_bytes());
        w_ = {};
        m_.w = to;
    }
    std::size_t bytes() const { return w_.bytes() + scale_.bytes() + bias_.bytes() + sums_.bytes(); }

   private:
    // Of the inputs of an output that lie next to each other.
    int group_bytes() const { return m_.precision == Precision::bf16 ? 4 : Isa::group; }

    int n_;
    Matrix m_;
    Buffer<std::int8_t> w_;
    Buffer<float> scale_, bias_, sums_;
};

}  // namespace
