// Matrix products in int8.

#pragma once

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
// weights of all outputs, in the order in which the dot products read them.
struct Matrix {
    int n = 0, k = 0;
    std::int8_t* w = nullptr;
    float* scale = nullptr;
    float* bias = nullptr;
    float* sums = nullptr;  // scale * the sum of an output's weights: the error per unit of `offset`
};

// What is done with the accumulators of a product: out = activation(product + bias + gain * residual).
struct Epilogue {
    Activation activation = Activation::none;
    const float* residual = nullptr;  // (rows, n), may be out itself
    int residual_stride = 0;
    const float* gain = nullptr;  // (n,); 1 if null
};

// Quantises rows. First the ranges of several rows, then their values: the CPU computes several ranges at a time.
inline void quantise(const float* x, int stride, int rows, int k, const QuantisedRows& to) {
    constexpr int group_rows = 8;
    for (int first = 0; first < rows; first += group_rows) {
        const int end = first + group_rows < rows ? first + group_rows : rows;
        float inverse[group_rows], zero_point[group_rows];
        for (int row = first; row < end; row++) {
            const float* from = x + static_cast<std::size_t>(row) * stride;
            Floats low = Isa::zero(), high = Isa::zero();
            for (int i = 0; i < k; i += lanes) {
                low = Isa::min(low, Isa::load(from + i));
                high = Isa::max(high, Isa::load(from + i));
            }
            const float below = Isa::max_lane(Isa::sub(Isa::zero(), low)), range = below + Isa::max_lane(high);
            // For subnormal numbers the quotient would be infinite. They are treated as zeros.
            inverse[row - first] = range > 1e-30f ? Isa::levels / range : 0.0f;
            zero_point[row - first] = __builtin_rintf(below * inverse[row - first]) + Isa::lowest;
            to.scale[row] = range / Isa::levels;
            to.offset[row] = to.scale[row] * zero_point[row - first];
        }
        for (int row = first; row < end; row++) {
            const float* from = x + static_cast<std::size_t>(row) * stride;
            const Floats factor = Isa::broadcast(inverse[row - first]), shift = Isa::broadcast(zero_point[row - first]);
            // A value may be rounded to `lowest` - 1, or to the highest value + 1. store_quantised saturates it if the
            // type does not hold it.
            Quantised* q = to.q + static_cast<std::size_t>(row) * k;
            for (int i = 0; i < k; i += lanes) Isa::store_quantised(q + i, Isa::fma(Isa::load(from + i), factor, shift));
        }
    }
}

// One tile: R rows times C vectors of outputs, from `column` on. w is the panel's weights.
template <int R, int C>
__attribute__((noinline)) void multiply_tile(const QuantisedRows& x, int k, const Matrix& m, const std::int8_t* w,
                                             int column, float* out, int stride, const Epilogue& epilogue) {
    Accumulators sum[R][C];
    unroll<R>([&](auto r) { unroll<C>([&](auto c) { sum[r][c] = Isa::zero_accumulators(); }); });
    const Quantised* q = x.q;
    constexpr int group = Isa::group;
    // Bytes to prefetch ahead, into the first-level and the second-level cache: a short batch reads each weight once,
    // from memory.
    constexpr int near = 2048, far = 32768;
    for (int i = 0; i < k; i += group, w += group * C * lanes) {
        decltype(Isa::load_weights(w)) weights[C];
        unroll<C>([&](auto c) {
            weights[c] = Isa::load_weights(w + group * c * lanes);
            __builtin_prefetch(w + near + group * c * lanes);
            __builtin_prefetch(w + far + group * c * lanes, 0, 2);
        });
        unroll<R>([&](auto r) {
            auto activations = Isa::broadcast_group(q + static_cast<std::size_t>(r) * k + i);
            unroll<C>([&](auto c) { sum[r][c] = Isa::dot(sum[r][c], activations, weights[c]); });
        });
    }
    const Floats floor = Isa::broadcast(epilogue.activation == Activation::relu ? 0.0f : -std::numeric_limits<float>::infinity());
    unroll<C>([&](auto c) {
        const int n = column + c * lanes;
        const Floats scale = Isa::load(m.scale + n), bias = Isa::load(m.bias + n), sums = Isa::load(m.sums + n);
        const Floats gain = epilogue.gain ? Isa::load(epilogue.gain + n) : Isa::broadcast(1.0f);
        unroll<R>([&](auto r) {
            Floats v = Isa::fma(Isa::broadcast(-x.offset[r]), sums, bias);
            v = Isa::fma(Isa::to_floats(sum[r][c]), Isa::mul(scale, Isa::broadcast(x.scale[r])), v);
            if (epilogue.residual) v = Isa::fma(Isa::load(epilogue.residual + static_cast<std::size_t>(r) * epilogue.residual_stride + n), gain, v);
            Isa::store(out + static_cast<std::size_t>(r) * stride + n, Isa::max(v, floor));
        });
    });
    if (epilogue.activation > Activation::relu)
        for (int r = 0; r < R; r++) activate(epilogue.activation, out + static_cast<std::size_t>(r) * stride + column, C * lanes);
}

// Multiplies rows of x with m, into out (rows, stride). A panel of weights stays in the first-level cache for all rows.
inline void multiply(const QuantisedRows& x, int rows, const Matrix& m, float* out, int stride, const Epilogue& epilogue = {}) {
    for (int column = 0; column < m.n; column += tile_columns) {
        const std::int8_t* w = m.w + static_cast<std::size_t>(column) * m.k;
        const int vectors = (m.n - column < tile_columns ? m.n - column : tile_columns) / lanes;
        for (int row = 0; row < rows; row += Isa::tile_rows) {
            const std::size_t first = row;
            const QuantisedRows part{x.q + first * m.k, x.scale + first, x.offset + first};
            Epilogue own = epilogue;
            if (epilogue.residual) own.residual += first * epilogue.residual_stride;
            with_constant<Isa::tile_rows>(rows - row, [&](auto r) {
                with_constant<Isa::tile_vectors>(vectors, [&](auto c) {
                    multiply_tile<r, c>(part, m.k, m, w, column, out + first * stride, stride, own);
                });
            });
        }
    }
}

}  // namespace
