// Element-wise functions and reductions, written once over the operations of an instruction set (`Isa`).
//
// Every row is computed by itself: the same operations in the same order, at any place in a batch. Only the order of
// integer sums is free, because they are exact.

#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "unroll.h"

namespace {

using Floats = Isa::Floats;              // a vector of fp32 numbers
using Accumulators = Isa::Accumulators;  // a vector of 32-bit sums
using Quantised = Isa::Quantised;        // one quantised activation
constexpr int lanes = Isa::lanes;
constexpr int tile_columns = lanes * Isa::tile_vectors;

inline int round_up(int n, int multiple) { return (n + multiple - 1) / multiple * multiple; }

// ---- element-wise functions

ALWAYS_INLINE Floats exponential(Floats x) {
    x = Isa::min(Isa::broadcast(88.0f), Isa::max(Isa::broadcast(-87.0f), x));  // in this order NaN stays NaN
    const Floats log2e = Isa::broadcast(1.44269504f);
    Floats n = Isa::round(Isa::mul(x, log2e));
    Floats f = Isa::fma(x, log2e, Isa::sub(Isa::zero(), n));  // from -0.5 to 0.5
    Floats p = Isa::broadcast(1.54035304e-4f);                // ln(2)^i / i!, highest first: 2^f to 2e-7
    for (float c : {1.33335581e-3f, 9.61812911e-3f, 5.55041087e-2f, 2.40226507e-1f, 6.93147181e-1f, 1.0f})
        p = Isa::fma(p, f, Isa::broadcast(c));
    return Isa::multiply_by_power(p, n);
}

ALWAYS_INLINE Floats logistic(Floats x) {
    const Floats one = Isa::broadcast(1.0f);
    return Isa::div(one, Isa::add(one, exponential(Isa::sub(Isa::zero(), x))));
}

// The distribution function of the normal distribution, for GELU: 1/2 + x times a polynomial in x^2, which was fitted so
// that the largest error of GELU is least (1.2e-6). It has no division and no exponential, which took most of the time.
ALWAYS_INLINE Floats normal_distribution(Floats x) {
    constexpr float end = 5.2f;  // beyond, the function is 0 or 1 to 1e-7
    x = Isa::min(Isa::max(x, Isa::broadcast(-end)), Isa::broadcast(end));
    const Floats t = Isa::fma(Isa::mul(x, x), Isa::broadcast(2 / (end * end)), Isa::broadcast(-1.0f));  // from -1 to 1
    Floats p = Isa::broadcast(8.58749321e-4f);
    for (float c : {-2.50371383e-3f, 2.85365619e-3f, -3.50572355e-3f, 7.55778747e-3f, -1.31033352e-2f, 1.83871835e-2f,
                    -2.45934092e-2f, 3.19072604e-2f, -3.99412997e-2f, 5.00301681e-2f, -6.77434057e-2f, 1.35949939e-1f})
        p = Isa::fma(p, t, Isa::broadcast(c));
    return Isa::fma(x, p, Isa::broadcast(0.5f));
}

enum class Activation : int { none, relu, gelu, gelu_tanh, tanh, silu };

// Applies an activation to n numbers in place, except for ReLU, which the product's epilogue applies.
ALWAYS_INLINE void activate(Activation activation, float* x, int n) {
    switch (activation) {
        case Activation::none:
        case Activation::relu: return;
        case Activation::gelu:
            for (int i = 0; i < n; i += lanes) {
                Floats v = Isa::load(x + i);
                Isa::store(x + i, Isa::mul(v, normal_distribution(v)));
            }
            return;
        case Activation::gelu_tanh:  // x (1 + tanh u) / 2 = x logistic(2 u)
            for (int i = 0; i < n; i += lanes) {
                Floats v = Isa::load(x + i);
                Floats cubic = Isa::fma(Isa::mul(v, v), Isa::broadcast(0.044715f * 1.59576912f), Isa::broadcast(1.59576912f));
                Isa::store(x + i, Isa::mul(v, logistic(Isa::mul(v, cubic))));
            }
            return;
        case Activation::tanh:
            for (int i = 0; i < n; i += lanes) {
                Floats twice = logistic(Isa::mul(Isa::load(x + i), Isa::broadcast(2.0f)));
                Isa::store(x + i, Isa::fma(twice, Isa::broadcast(2.0f), Isa::broadcast(-1.0f)));
            }
            return;
        case Activation::silu:
            for (int i = 0; i < n; i += lanes) {
                Floats v = Isa::load(x + i);
                Isa::store(x + i, Isa::mul(v, logistic(v)));
            }
    }
}

// ---- reductions

// Applies LayerNorm to n numbers in place. Returns their range, lane by lane, in `low` and `high`. 0 lies within it.
inline void layer_norm(float* x, int n, const float* weight, const float* bias, float epsilon, Floats& low, Floats& high) {
    Floats total = Isa::zero();
    for (int i = 0; i < n; i += lanes) total = Isa::add(total, Isa::load(x + i));
    const Floats mean = Isa::broadcast(Isa::sum_lanes(total) / static_cast<float>(n));
    Floats squares = Isa::zero();
    for (int i = 0; i < n; i += lanes) {
        Floats d = Isa::sub(Isa::load(x + i), mean);
        squares = Isa::fma(d, d, squares);
    }
    low = high = Isa::zero();
    float variance = Isa::sum_lanes(squares) / static_cast<float>(n);
    variance += variance - variance;  // the variance of huge numbers is infinite: NaN, and not a row of zeros
    const Floats inverse = Isa::broadcast(1.0f / __builtin_sqrtf(variance + epsilon));
    for (int i = 0; i < n; i += lanes) {
        Floats d = Isa::mul(Isa::sub(Isa::load(x + i), mean), inverse);
        d = Isa::fma(d, Isa::load(weight + i), Isa::load(bias + i));
        low = Isa::min(low, d), high = Isa::max(high, d);
        Isa::store(x + i, d);
    }
}

// Applies RMSNorm to n numbers in place. The range is as that of `layer_norm`.
inline void rms_norm(float* x, int n, const float* weight, float epsilon, Floats& low, Floats& high) {
    Floats squares = Isa::zero();
    for (int i = 0; i < n; i += lanes) squares = Isa::fma(Isa::load(x + i), Isa::load(x + i), squares);
    low = high = Isa::zero();
    float mean = Isa::sum_lanes(squares) / static_cast<float>(n);
    mean += mean - mean;  // as in `layer_norm`
    const Floats inverse = Isa::broadcast(1.0f / __builtin_sqrtf(mean + epsilon));
    for (int i = 0; i < n; i += lanes) {
        const Floats y = Isa::mul(Isa::mul(Isa::load(x + i), inverse), Isa::load(weight + i));
        low = Isa::min(low, y), high = Isa::max(high, y);
        Isa::store(x + i, y);
    }
}

inline float dot_product(const float* a, const float* b, int n) {
    Floats sum = Isa::zero();
    for (int i = 0; i < n; i += lanes) sum = Isa::fma(Isa::load(a + i), Isa::load(b + i), sum);
    return Isa::sum_lanes(sum);
}

// The logarithm of the sum of the exponentials of n numbers. The memory holds n rounded up to whole vectors. The result
// is not finite if one of the numbers is not finite.
inline float log_sum_exp(float* x, int n) {
    for (int i = n; i % lanes; i++) x[i] = std::numeric_limits<float>::lowest();
    Floats high = Isa::load(x), not_finite = Isa::zero();
    for (int i = 0; i < n; i += lanes) {
        high = Isa::max(high, Isa::load(x + i));
        not_finite = Isa::fma(Isa::load(x + i), Isa::zero(), not_finite);  // 0 times infinity or NaN is NaN
    }
    const float largest = Isa::max_lane(high);
    Floats sum = Isa::zero();
    for (int i = 0; i < n; i += lanes)
        sum = Isa::add(sum, Isa::keep_first(exponential(Isa::sub(Isa::load(x + i), Isa::broadcast(largest))), n - i));
    return static_cast<float>(largest + std::log(static_cast<double>(Isa::sum_lanes(sum)))) + Isa::sum_lanes(not_finite);
}

// Returns the logarithm of the softmax of n numbers at one of them.
inline float log_probability(float* x, int n, std::int64_t which) {
    const float logit = x[which];
    return logit - log_sum_exp(x, n);
}

// Writes the log-sum-exp of n numbers, the k largest of them in descending order, and their indices. If `count` is not
// 0, only the numbers at the indices `candidates` are compared. Of equal numbers the first comes first. Returns the end
// of the output.
inline float* top_k(float* x, int n, int k, const std::int64_t* candidates, int count, float* out) {
    constexpr int block = 8 * lanes;
    const int available = count ? count : n;
    k = k < available ? k : available;
    float *best = out + 1, *indices = best + k;
    *out = log_sum_exp(x, n);
    int kept = 0;
    const auto offer = [&](float number, std::int64_t index) {
        if (kept < k)
            kept++;
        else if (!(number > best[kept - 1]))
            return;
        int i = kept - 1;
        for (; i > 0 && number > best[i - 1]; i--) {
            best[i] = best[i - 1];
            indices[i] = indices[i - 1];
        }
        best[i] = number;
        indices[i] = static_cast<float>(index);
    };
    for (int i = 0; i < count; i++) offer(x[candidates[i]], candidates[i]);
    for (int i = 0; i < n && !count; i += block) {
        const int end = n - i < block ? n : i + block;
        Floats high = Isa::load(x + i);
        for (int j = i + lanes; j < end; j += lanes) high = Isa::max(high, Isa::load(x + j));
        if (kept == k && !(Isa::max_lane(high) > best[k - 1])) continue;  // most blocks have no such number
        for (int j = i; j < end; j++) offer(x[j], j);
    }
    return indices + k;
}

}  // namespace
