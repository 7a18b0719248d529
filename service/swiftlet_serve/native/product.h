// Matrix products in int8.

#pragma once

#include <algorithm>

#include "vector.h"

namespace {

// Rows of quantised activations: x is about (q - zero_point) * scale. The number 0 is represented exactly.
struct QuantisedRows {
    Quantised* q;   // (rows, k)
    float* scale;   // (rows,)
    float* offset;  // (rows,): scale * zero_point
};

// A matrix (n, k) in int8 with one quantisation scale per output. n is a multiple of lanes, k of 16.
//
// w holds panels of `tile_columns` outputs; the last one may be narrower. Within a panel, each group of inputs holds the
// weights of all outputs, in the order that the dot products read.
struct Matrix {
    int n = 0, k = 0;
    std::int8_t* w = nullptr;
    float* scale = nullptr;
    float* bias = nullptr;
    float* sums = nullptr;  // scale * the sum of an output's weights: the error per unit of `offset`
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

// Quantises rows. If a number is not finite, the row's scale is NaN, and so is every product with the row. First the ranges of several rows, unless they are known, then their values: the CPU computes several
// ranges at a time.
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

// One tile: R rows times C vectors of outputs, from `column` on. w is the panel's weights.
template <int R, int C, class A = Isa>
__attribute__((noinline)) void multiply_tile(const QuantisedRows& x, int k, const Matrix& m, const std::int8_t* w,
                                             int column, float* out, int stride, const Epilogue& epilogue) {
    Accumulators sum[R][C];
    const Quantised* q = x.q;
    constexpr int group = Isa::group;
    // Bytes to prefetch ahead, into the first-level and the second-level cache: a short batch reads each weight once,
    // from memory.
    constexpr int near = 2048, far = 32768, line_bytes = 64;
    if constexpr (A::rows_at_once > 1) {  // the set multiplies several rows by an instruction, and adds up for itself
        typename A::template Sums<R, C> sums;
        for (int i = 0; i < k; i += group, w += group * C * lanes) {
            sums.add(q + i, k, w);
            for (int line = 0; line < group * C * lanes; line += line_bytes) {
                __builtin_prefetch(w + near + line);
                __builtin_prefetch(w + far + line, 0, 2);
            }
        }
        unroll<R>([&](auto r) { unroll<C>([&](auto c) { sum[r][c] = sums.get(r, c); }); });
    } else {
        unroll<R>([&](auto r) { unroll<C>([&](auto c) { sum[r][c] = A::zero_accumulators(); }); });
        for (int i = 0; i < k; i += group, w += group * C * lanes) {
            decltype(A::load_weights(w)) weights[C];
            unroll<C>([&](auto c) {
                weights[c] = A::load_weights(w + group * c * lanes);
                __builtin_prefetch(w + near + group * c * lanes);
                __builtin_prefetch(w + far + group * c * lanes, 0, 2);
            });
            unroll<R>([&](auto r) {
                auto activations = A::broadcast_group(q + static_cast<std::size_t>(r) * k + i);
                unroll<C>([&](auto c) { sum[r][c] = A::dot(sum[r][c], activations, weights[c]); });
            });
        }
    }
    const Floats floor = floor_of(epilogue.activation);
    unroll<C>([&](auto c) {
        const int n = column + c * lanes;
        const Floats scale = Isa::load(m.scale + n), bias = Isa::load(m.bias + n), sums = Isa::load(m.sums + n);
        const Floats gain = epilogue.gain ? Isa::load(epilogue.gain + n) : Isa::broadcast(1.0f);
        unroll<R>([&](auto r) {
            Floats v = Isa::fma(Isa::broadcast(-x.offset[r]), sums, bias);
            v = Isa::fma(Isa::to_floats(sum[r][c]), Isa::mul(scale, Isa::broadcast(x.scale[r])), v);
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
inline void multiply_on_vectors(const QuantisedRows& x, int rows, const Matrix& m, float* out, int stride, const Epilogue& epilogue) {
    for (int column = 0; column < m.n; column += tile_columns) {
        const std::int8_t* w = m.w + static_cast<std::size_t>(column) * m.k;
        const int vectors = (m.n - column < tile_columns ? m.n - column : tile_columns) / lanes;
        for (int row = 0; row < rows; row += Isa::tile_rows) {
            const std::size_t first = row;
            const QuantisedRows part{x.q + first * m.k, x.scale + first, x.offset + first};
            Ranges ranges;
            const Epilogue own = epilogue.from(first, ranges);
            with_constant<Isa::tile_rows>(rows - row, [&](auto r) {
                with_constant<Isa::tile_vectors>(vectors, [&](auto c) {
                    multiply_tile<r, c>(part, m.k, m, w, column, out + first * stride, stride, own);
                });
            });
        }
    }
}

}  // namespace
