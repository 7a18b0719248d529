// Matrix products in bf16, which has the range of fp32 and 8 significant bits. Sums are fp32.
//
// Where the CPU multiplies pairs of bf16 numbers, activations are rounded to bf16. Elsewhere the weights are widened to fp32
// in registers, and activations stay in fp32. A lane of weights holds two inputs of an output, on every CPU.

#pragma once

#include <limits>

#include "product.h"

namespace {

// The most inputs of a product, so that an int holds the bytes of a panel.
constexpr int max_inputs_bf16 = 1 << 20;

// The floats that k activations take: two bf16 numbers take the place of one.
inline int activation_lanes(int k) { return k / Isa::floats_per_lane; }

// Rows of activations. They are next to each other.
struct FloatRows {
    float* x;  // (rows, activation_lanes(k))

    FloatRows from(std::size_t row, int k) const { return {x + row * activation_lanes(k)}; }
    const void* bytes() const { return x; }
};

// Rounds rows to bf16 if the products multiply that, and copies them if not. A row with a number that is not finite becomes
// NaN: of a lone infinity, the activation of a product could make a finite number. `to` has memory for a vector more.
template <class A = Isa>
void take_rows(const float* x, int stride, int rows, int k, const FloatRows& to) {
    constexpr int step = A::floats_per_lane * lanes;
    float* out = to.x;
    for (int row = 0; row < rows; row++, x += stride, out += activation_lanes(k)) {
        const Floats zero = Isa::zero();
        Floats not_finite = zero;
        for (int i = 0; i < k; i += step) {
            const Floats first = Isa::load(x + i);
            not_finite = Isa::fma(first, zero, not_finite);  // 0 times infinity or NaN is NaN
            if constexpr (A::floats_per_lane == 2) {
                const Floats second = i + lanes < k ? Isa::load(x + i + lanes) : zero;
                not_finite = Isa::fma(second, zero, not_finite);
                Isa::store(out + i / 2, A::pair_neighbours(first, second));  // the row that follows overwrites what exceeds this one
            } else {
                Isa::store(out + i, first);
            }
        }
        const float sum = Isa::sum_lanes(not_finite);
        if (sum != sum) std::fill(out, out + activation_lanes(k), std::numeric_limits<float>::quiet_NaN());
    }
}

// Products in bf16.
template <class A = Isa>
struct Bf16Product {
    using Rows = FloatRows;
    using Sums = Floats;
    using Sum = float;

    struct Columns {
        Floats bias;
    };
    struct Row {};
    static Columns columns(const Matrix& m, int n) { return {Isa::load(m.bias + n)}; }
    static Row row(const Rows&, int) { return {}; }
    static Floats finish(Sums sum, const Columns& columns, const Row&) { return Isa::add(sum, columns.bias); }

    template <int R, int C>
    static ALWAYS_INLINE void multiply(const Rows& x, int k, const std::int8_t* w, Sums (&sum)[R][C]) {
        const int row = activation_lanes(k);
        const float* left = x.x;
        unroll<R>([&](auto r) { unroll<C>([&](auto c) { sum[r][c] = Isa::zero(); }); });
        for (int i = 0; i < k; i += 2, w += 4 * C * lanes) {
            const float* pairs = reinterpret_cast<const float*>(w);
            prefetch_weights<4 * C * lanes>(w);
            if constexpr (A::floats_per_lane == 2) {
                Floats right[C];
                unroll<C>([&](auto c) { right[c] = Isa::load(pairs + c * lanes); });
                unroll<R>([&](auto r) {
                    const Floats two = Isa::broadcast(left[static_cast<std::size_t>(r) * row + i / 2]);
                    unroll<C>([&](auto c) { sum[r][c] = Isa::in_order(A::fma_pairs(two, right[c], sum[r][c])); });
                });
            } else {
                unroll<2>([&](auto half) {
                    Floats right[C];
                    unroll<C>([&](auto c) { right[c] = A::template half<half>(Isa::load(pairs + c * lanes)); });
                    unroll<R>([&](auto r) {
                        const Floats number = Isa::broadcast(left[static_cast<std::size_t>(r) * row + i + half]);
                        unroll<C>([&](auto c) { sum[r][c] = Isa::in_order(Isa::fma(number, right[c], sum[r][c])); });
                    });
                });
            }
        }
    }

    template <int sum, int a, int b>
    static ALWAYS_INLINE void tile_dot() {
        A::template tile_dot_bf16<sum, a, b>();
    }
    static Sums load_sums(const Sum* sums) { return Isa::load(sums); }

    // Whether the sums of tiles are those of vectors but for rounding: of row r and as many outputs as a vector has, whose
    // weights w has. Tiles add in another order.
    static bool sums_right(const Rows& x, int r, int k, const std::int8_t* w, const Sum* sums) {
        const float* left = x.from(r, k).x;
        Floats expected = Isa::zero(), size = Isa::zero();
        for (int i = 0; i < k; i += 2, w += 4 * lanes) {
            const Floats two = Isa::broadcast(left[i / 2]), right = Isa::load(reinterpret_cast<const float*>(w));
            unroll<2>([&](auto which) {
                const Floats product = Isa::mul(A::template half<which>(two), A::template half<which>(right));
                expected = Isa::add(expected, product);
                size = Isa::add(size, Isa::max(product, Isa::sub(Isa::zero(), product)));
            });
        }
        // Either sum rounds by at most 2^-24 of the size at each step. Tiles replace subnormal numbers by 0.
        float wrong[lanes], allowed[lanes];
        Isa::store(wrong, Isa::sub(Isa::load(sums), expected)), Isa::store(allowed, size);
        for (int n = 0; n < lanes; n++)
            if (std::fabs(wrong[n]) > static_cast<float>(k) * 0x1p-22f * allowed[n] + 1e-30f) return false;
        return true;
    }
};

}  // namespace
