// Memory: aligned buffers, the workspace of a thread, the region of a model's parameters, and packed matrices.

#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

#include "multiply.h"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(...)
#define ASAN_UNPOISON_MEMORY_REGION(...)
#endif

namespace {

constexpr std::size_t alignment = 64;

inline std::size_t aligned(std::size_t bytes) { return (bytes + alignment - 1) / alignment * alignment; }

// Aligned memory that only grows. Growing discards its content.
template <class T>
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
    Buffer<float> adapted_rows, narrow, added;  // of adapters: inputs of products, the outputs of the first ones, and of the second ones
    Buffer<Quantised> quantised_rows;

    template <class Function>
    void each(Function&& f) {
        f(values), f(packed), f(maxima), f(index), f(owner), f(read_owner), f(out_start), f(key_start);
        f(own_values), f(own_packed), f(attention), f(scale), f(offset), f(low), f(high), f(float_rows), f(outputs), f(quantised_rows);
        f(adapted_rows), f(narrow), f(added);
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

    // Returns memory for the ranges of up to `most_rows` rows, in each part of a product's columns.
    Ranges ranges(int parts = 1) { return {low.reserve(parts * most_rows * lanes), high.reserve(parts * most_rows * lanes)}; }

    QuantisedRows quantised(int k) {
        return {quantised_rows.reserve(static_cast<std::size_t>(most_rows) * k), scale.reserve(most_rows), offset.reserve(most_rows)};
    }
    FloatRows floats(int k) { return floats(float_rows, k); }
    // The rows of activations that a product of an adapter reads, beside those of the product that it is added to.
    FloatRows adapted(int k) { return floats(adapted_rows, k); }
    static FloatRows floats(Buffer<float>& buffer, int k) { return {buffer.reserve(static_cast<std::size_t>(most_rows) * activation_lanes(k) + lanes)}; }
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

// The memory of a model's parameters: of this process alone, or of a file that several processes map. Weights are taken from its
// beginning and lie one after another, because products fetch them ahead. Numbers of outputs are taken from its end. It lies
// on huge pages: a call of few tokens reads each weight once, and the address translation of five thousand small pages took a
// twentieth of its time.
class Region {
   public:
    // Only measures: what it gives is null.
    Region() = default;
    // Maps memory of this process, or of a file that is packed already or to be filled. `size` is what was measured. Throws
    // std::bad_alloc, also if the system has no huge pages for a file.
    Region(std::size_t size, int file, bool packed) : end_(size), space_bytes_(size + huge_page), packed_(packed) {
        space_ = mmap(nullptr, space_bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (space_ == MAP_FAILED) throw std::bad_alloc();
        const std::size_t start = reinterpret_cast<std::size_t>(space_);
        data_ = static_cast<std::int8_t*>(space_) + ((start + huge_page - 1) / huge_page * huge_page - start);
        const int access = packed ? PROT_READ : PROT_READ | PROT_WRITE;
        const int kind = file < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
        const bool mapped = mmap(data_, size, access, kind | MAP_FIXED, file, 0) != MAP_FAILED;
        if (!mapped || !advise_huge_pages(file >= 0 && !packed)) {
            munmap(space_, space_bytes_);
            throw std::bad_alloc();
        }
        ASAN_POISON_MEMORY_REGION(data_, size);  // what is not taken must not be used
    }
    Region(const Region&) = delete;
    Region& operator=(const Region&) = delete;
    ~Region() {
        if (!data_) return;
        ASAN_UNPOISON_MEMORY_REGION(space_, space_bytes_);
        munmap(space_, space_bytes_);
    }

    // Takes memory for `count` elements. Throws std::bad_alloc if so much is not left.
    template <class T>
    T* take(std::size_t count, bool from_end = false) {
        const std::size_t bytes = aligned(count * sizeof(T)) + gap, first = from_end ? end_ - bytes : start_;
        used_ += bytes;
        if (!data_) return nullptr;
        if (start_ + bytes > end_) throw std::bad_alloc();
        (from_end ? end_ : start_) = from_end ? first : first + bytes;
        ASAN_UNPOISON_MEMORY_REGION(data_ + first, count * sizeof(T));
        return reinterpret_cast<T*>(data_ + first);
    }
    // The same, filled with elements unless it is packed.
    template <class T>
    const T* take(std::size_t count, const T* from) {
        T* to = take<T>(count);
        if (fills()) std::memcpy(to, from, count * sizeof(T));
        return to;
    }
    // Whether its memory is to be filled.
    bool fills() const { return data_ && !packed_; }
    std::size_t bytes() const { return used_; }

   private:
    static constexpr std::size_t huge_page = 1 << 21;
#ifdef __SANITIZE_ADDRESS__
    static constexpr std::size_t gap = alignment;  // between parameters
#else
    static constexpr std::size_t gap = 0;
#endif

    // Returns false for a new file if the system cannot put it on huge pages. Memory of this process and a packed file remain
    // on small pages if huge ones are not available.
    bool advise_huge_pages(bool new_file) {
#ifdef __linux__
        constexpr int collapse = 25;  // MADV_COLLAPSE: since Linux 6.1, whatever the system's settings
        if (new_file && end_ >= huge_page) return !madvise(data_, end_, collapse) || errno != EINVAL;
        madvise(data_, end_, MADV_HUGEPAGE);
#endif
        static_cast<void>(new_file);
        return true;
    }

    std::size_t start_ = alignment, end_ = 0;  // of what is left: a file begins with a key
    std::size_t used_ = alignment, space_bytes_ = 0;
    bool packed_ = false;
    void* space_ = nullptr;
    std::int8_t* data_ = nullptr;
};

// A matrix in the memory layout of the kernels.
class PackedMatrix {
   public:
    // w is (n, k), int8 with a scale per output, or bf16 numbers without scales. A region that is not filled takes none of them.
    // The bias is zeros if it is null.
    PackedMatrix(Precision precision, int n, int k, const std::int8_t* w, const float* scale, const float* bias, Region& region) : n_(n) {
        m_.n = round_up(n, lanes), m_.k = k, m_.precision = precision;
        const bool fills = region.fills();
        std::int8_t* to = region.take<std::int8_t>(static_cast<std::size_t>(m_.n) * m_.row_bytes());
        m_.w = to;
        const std::size_t bytes = m_.row_bytes(), group = group_bytes();
        for (int column = 0; fills && column < m_.n; column += tile_columns) {
            const int width = std::min(tile_columns, m_.n - column);
            for (std::size_t i = 0; i < bytes; i += group)
                for (int c = column; c < column + width; c++, to += group) {
                    if (c < n)
                        std::memcpy(to, w + c * bytes + i, group);
                    else
                        std::memset(to, 0, group);
                }
        }
        const auto outputs = [&](auto&& of) {
            float* numbers = region.take<float>(m_.n, true);
            for (int c = 0; fills && c < m_.n; c++) numbers[c] = c < n ? of(c) : 0;
            return numbers;
        };
        m_.bias = outputs([&](int c) { return bias ? bias[c] : 0; });
        if (precision == Precision::bf16) return;
        m_.scale = outputs([&](int c) { return scale[c]; });
        m_.sums = outputs([&](int c) {
            long sum = 0;
            for (int i = 0; i < k; i++) sum += w[static_cast<std::size_t>(c) * k + i];
            return scale[c] * static_cast<float>(sum);
        });
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

   private:
    // Of the inputs of an output that lie next to each other.
    int group_bytes() const { return m_.precision == Precision::bf16 ? 4 : Isa::group; }

    int n_;
    Matrix m_;
};

}  // namespace
