// Matrix products: the parts that all precisions share, and products in int8.

#pragma once

#include <algorithm>
#include <cstring>

#include "vector.h"

namespace {

// What a model's matrices hold: int8 with one scale per output, or bf16.
enum class Precision : int { int8, bf16 };

inline int bytes_of(Precision precision) { return precision == Precision::bf16 ? 2 : 1; }

// A matrix (n, k). n is a multiple of lanes, k of 16.
//
// w holds panels of `tile_columns` outputs; the last one may be narrower. Within a panel, each group of inputs holds the
// weights of all outputs, in the order that the products read.
struct Matrix {
    int n = 0, k = 0;
    Precision precision = Precision::int8;
    const std::int8_t* w = nullptr;
    const float* bias = nullptr;
    const float* scale = nullptr;  // of int8
    const float* sums = nullptr;   // of int8: scale * the sum of an output's weights, the error per unit of `offset`

    int row_bytes() const { return k * bytes_of(precision); }

    // The matrix of some outputs, from a whole panel on.
    Matrix columns(int first, int count) const {
        Matrix part = *this;
        part.n = count, part.w += static_cast<std::size_t>(first) * row_bytes(), part.bias += first;
        if (scale) part.scale += first, part.sums += first;
        return part;
    }
};

// The smallest and the largest numbers of rows, lane by lane: (rows, lanes). 0 always lies between them.
struct Ranges {
    float *low, *high;

    Ranges from(std::size_t row) const { return {low + row * lanes, high + row * lanes}; }
};

// What is done with the accumulators of a product: out = activation(product + bias + gain * residual).
struct Epilogue {
    Activation activation = Activation::none;
    const float* residual = nullptr;  // (rows, n), may be out itself
    int residual_stride = 0;
    const float* gain = nullptr;      // (n,); 1 if null
    const Ranges* ranges = nullptr;   // receives the ranges of the rows of out, unless it is null

    // The epilogue of the rows from `row` on. `part` holds its ranges.
    Epilogue from(std::size_t row, Ranges& part) const {
        Epilogue own = *this;
        if (residual) own.residual += row * residual_stride;
        if (ranges) part = ranges->from(row), own.ranges = &part;
        return own;
    }
};

// Rows of quantised activations: x is about (q - zero_point) * scale. The number 0 is represented exactly.
struct QuantisedRows {
    Quantised* q;   // (rows, k)
    float* scale;   // (rows,)
    float* offset;  // (rows,): scale * zero_point

    QuantisedRows from(std::size_t row, int k) const { return {q + row * k, scale + row, offset + row}; }
    const void* bytes() const { return q; }
};

// The most inputs whose products are certain to fit a 32-bit sum, for weights from -127 to 127. An activation may be rounded
// to one below or above its range, if its type holds that.
constexpr int max_inputs = [] {
    constexpr long least = std::max<long>(Isa::lowest - 1, std::numeric_limits<Quantised>::min());
    constexpr long most = std::min<long>(Isa::lowest + Isa::levels + 1, std::numeric_limits<Quantised>::max());
    return static_cast<int>(std::numeric_limits<std::int32_t>::max() / (127 * std::max(-least, most)));
}();

// Quantises k numbers: x * factor + shift, rounded. A number may be rounded to `lowest` - 1, or to the highest value + 1.
// `store_quantised` saturates it if the type does not hold it. Returns 0, or NaN if a number is not finite.
template <class A = Isa>
ALWAYS_INLINE float quantise_row(const float* x, int k, float factor, float shift, Quantised* q) {
    const Floats by = Isa::broadcast(factor), plus = Isa::broadcast(shift), zero = Isa::zero();
    Floats not_finite = zero;
    const auto scaled = [&](int i) {
        const Floats v = Isa::load(x + i);
        not_finite = Isa::fma(v, zero, not_finite);  // 0 times infinity or NaN is NaN
        return Isa::fma(v, by, plus);
    };
    int i = 0;
    if constexpr (A::stores_four)
        for (; i + 4 * lanes <= k; i += 4 * lanes)
            A::store_quantised(q + i, scaled(i), scaled(i + lanes), scaled(i + 2 * lanes), scaled(i + 3 * lanes));
    for (; i < k; i += lanes) Isa::store_quantised(q + i, scaled(i));
    return Isa::sum_lanes(not_finite);
}

// Quantises rows. If a number is not finite, the row's scale is NaN, and so is every product with the row. First the ranges of
// several rows, unless they are known, then their values: the CPU computes several ranges at a time.
inline void quantise(const float* x, int stride, int rows, int k, const QuantisedRows& to, const Ranges* known = nullptr) {
    constexpr int group_rows = 8;
    for (int first = 0; first < rows; first += group_rows) {
        const int end = first + group_rows < rows ? first + group_rows : rows;
        float inverse[group_rows], zero_point[group_rows];
        for (int row = first; row < end; row++) {
            Floats low = Isa::zero(), high = Isa::zero();
            if (known) {
                const Ranges range = known->from(row);
                low = Isa::load(range.low), high = Isa::load(range.high);
            } else {
                const float* from = x + static_cast<std::size_t>(row) * stride;
                for (int i = 0; i < k; i += lanes) {
                    low = Isa::min(low, Isa::load(from + i));
                    high = Isa::max(high, Isa::load(from + i));
                }
            }
            const float below = Isa::max_lane(Isa::sub(Isa::zero(), low)), range = below + Isa::max_lane(high);
            // For subnormal numbers the quotient would be infinite. They are treated as zeros.
            inverse[row - first] = range > 1e-30f ? Isa::levels / range : 0.0f;
            zero_point[row - first] = __builtin_rintf(below * inverse[row - first]) + Isa::lowest;
            to.scale[row] = range / Isa::levels;
            to.offset[row] = to.scale[row] * zero_point[row - first];
        }
        for (int row = first; row < end; row++)
            to.scale[row] += quantise_row(x + static_cast<std::size_t>(row) * stride, k, inverse[row - first],
                                          zero_point[row - first], to.q + static_cast<std::size_t>(row) * k);
    }
}

// Widens the range of a row by C vectors of numbers, which begin at `column`.
template <int C>
ALWAYS_INLINE void widen(const Ranges& ranges, int row, int column, const float* x) {
    const Ranges range = ranges.from(row);
    Floats low = column ? Isa::load(range.low) : Isa::zero(), high = column ? Isa::load(range.high) : Isa::zero();
    unroll<C>([&](auto c) { low = Isa::min(low, Isa::load(x + c * lanes)), high = Isa::max(high, Isa::load(x + c * lanes)); });
    Isa::store(range.low, low), Isa::store(range.high, high);
}

// The least number that an activation lets through.
inline Floats floor_of(Activation activation) {
    return Isa::broadcast(activation == Activation::relu ? 0.0f : -std::numeric_limits<float>::infinity());
}

// Fetches the weights that follow some bytes, into the first-level and the second-level cache: a short batch reads each
// weight once, from memory.
template <int bytes>
ALWAYS_INLINE void prefetch_weights(const std::int8_t* w) {
    constexpr int near = 2048, far = 32768, line_bytes = 64;
    for (int line = 0; line < bytes; line += line_bytes) {
        __builtin_prefetch(w + near + line);
        __builtin_prefetch(w + far + line, 0, 2);
    }
}

// Products in int8. Sums are exact, so that their order is free.
template <class A = Isa>
struct Int8Product {
    using Rows = QuantisedRows;
    using Sums = Accumulators;  // a vector of sums
    using Sum = std::int32_t;

    // What a vector of outputs needs in every row, and what a row needs in every output.
    struct Columns {
        Floats scale, bias, sums;
    };
    struct Row {
        Floats minus, by;
    };
    static Columns columns(const Matrix& m, int n) { return {Isa::load(m.scale + n), Isa::load(m.bias + n), Isa::load(m.sums + n)}; }
    static Row row(const Rows& x, int r) { return {Isa::broadcast(-x.offset[r]), Isa::broadcast(x.scale[r])}; }
    static Floats finish(Sums sum, const Columns& columns, const Row& row) {
        const Floats v = Isa::fma(row.minus, columns.sums, columns.bias);
        return Isa::fma(Isa::to_floats(sum), Isa::mul(columns.scale, row.by), v);
    }

    template <int R, int C>
    static ALWAYS_INLINE void multiply(const Rows& x, int k, const std::int8_t* w, Sums (&sum)[R][C]) {
        const Quantised* q = x.q;
        constexpr int group = Isa::group;
        if constexpr (A::rows_at_once > 1) {  // the set multiplies several rows by an instruction, and adds up for itself
            typename A::template Sums<R, C> sums;
            for (int i = 0; i < k; i += group, w += group * C * lanes) {
                sums.add(q + i, k, w);
                prefetch_weights<group * C * lanes>(w);
            }
            unroll<R>([&](auto r) { unroll<C>([&](auto c) { sum[r][c] = sums.get(r, c); }); });
        } else {
            unroll<R>([&](auto r) { unroll<C>([&](auto c) { sum[r][c] = A::zero_accumulators(); }); });
            for (int i = 0; i < k; i += group, w += group * C * lanes) {
                decltype(A::load_weights(w)) weights[C];
                unroll<C>([&](auto c) { weights[c] = A::load_weights(w + group * c * lanes); });
                prefetch_weights<group * C * lanes>(w);
                unroll<R>([&](auto r) {
                    auto activations = A::broadcast_group(q + static_cast<std::size_t>(r) * k + i);
                    unroll<C>([&](auto c) { sum[r][c] = A::dot(sum[r][c], activations, weights[c]); });
                });
            }
        }
    }

    template <int sum, int a, int b>
    static ALWAYS_INLINE void tile_dot() {
        A::template tile_dot<sum, a, b>();
    }
    static Sums load_sums(const Sum* sums) { return A::load_sums(sums); }

    // Whether the sums of tiles equal those of vectors: of row r and as many outputs as a vector has, whose weights w has.
    static bool sums_right(const Rows& x, int r, int k, const std::int8_t* w, const Sum* sums) {
        Accumulators expected = A::zero_accumulators();
        const Quantised* q = x.q + static_cast<std::size_t>(r) * k;
        for (int i = 0; i < k; i += A::group) expected = A::dot(expected, A::broadcast_group(q + i), A::load_weights(w + i * lanes));
        return !std::memcmp(&expected, sums, sizeof expected);
    }
};

// One tile: R rows times C vectors of outputs, from `column` on. w is the panel's weights. P is the kind of product.
template <int R, int C, class P>
__attribute__((noinline)) void multiply_tile(const typename P::Rows& x, const Matrix& m, const std::int8_t* w, int column,
                                             float* out, int stride, const Epilogue& epilogue) {
    typename P::Sums sum[R][C];
    P::template multiply<R, C>(x, m.k, w, sum);
    const Floats floor = floor_of(epilogue.activation);
    unroll<C>([&](auto c) {
        const int n = column + c * lanes;
        const typename P::Columns columns = P::columns(m, n);
        const Floats gain = epilogue.gain ? Isa::load(epilogue.gain + n) : Isa::broadcast(1.0f);
        unroll<R>([&](auto r) {
            Floats v = P::finish(sum[r][c], columns, P::row(x, r));
            if (epilogue.residual) v = Isa::fma(Isa::load(epilogue.residual + static_cast<std::size_t>(r) * epilogue.residual_stride + n), gain, v);
            Isa::store(out + static_cast<std::size_t>(r) * stride + n, Isa::max(floor, v));  // of NaN, the second is returned
        });
    });
    for (int r = 0; r < R; r++) {
        float* row = out + static_cast<std::size_t>(r) * stride + column;
        if (epilogue.activation > Activation::relu) activate(epilogue.activation, row, C * lanes);
        if (epilogue.ranges) widen<C>(*epilogue.ranges, r, column, row);
    }
}

// Multiplies rows of x with m, into out (rows, stride). A panel of weights stays in the first-level cache for all rows.
template <class P>
void multiply_on_vectors(const typename P::Rows& x, int rows, const Matrix& m, float* out, int stride, const Epilogue& epilogue) {
    for (int column = 0; column < m.n; column += tile_columns) {
        const std::int8_t* w = m.w + static_cast<std::size_t>(column) * m.row_bytes();
        const int vectors = (m.n - column < tile_columns ? m.n - column : tile_columns) / lanes;
        for (int row = 0; row < rows; row += Isa::tile_rows) {
            const std::size_t first = row;
            const typename P::Rows part = x.from(first, m.k);
            Ranges ranges;
            const Epilogue own = epilogue.from(first, ranges);
            with_constant<Isa::tile_rows>(rows - row, [&](auto r) {
                with_constant<Isa::tile_vectors>(vectors, [&](auto c) {
                    multiply_tile<r, c, P>(part, m, w, column, out + first * stride, stride, own);
                });
            });
        }
    }
}

}  // namespace
