// A network's program: its steps, and how they are divided into segments.
//
// Python writes a program as numbers (`engines/_program_numbers.py`; `swiftlet_models/program.py` has the meaning of the steps).
// `Program` refuses whatever contradicts itself, so that no later code checks a number.
//
// A step computes each row by itself, except for two: attention reads the keys and values of a whole sequence, and a read
// takes rows of a sequence from their places. A segment is a run of steps that all compute the same rows. The rows of a
// segment can be computed in any order, and by several threads. If the first step of a segment reads rows that the segment
// before wrote, all rows of that one come first: the segment "waits".

#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "product.h"

namespace {

// Thrown when a program or a parameter has a size that contradicts another one.
struct Misshapen {};

inline void require(bool condition) {
    if (!condition) throw Misshapen();
}

constexpr int max_size = 1 << 24;      // of a dimension: sums of a few of them fit an int
constexpr std::size_t max_numbers = std::size_t{1} << 40;  // of a vector
constexpr int max_steps = 1 << 16;
constexpr int max_adapters = 1 << 12;
constexpr int multiple = 16;           // the widths are multiples of the widest vector, and of a group of inputs
constexpr int numbers_per_step = 17;
constexpr int none = -1;

enum class Kind : int { look_up, multiply, norm, attend, read, gate, rotate, norm_heads };
enum class Index : int { word, next_word, previous_word, position, token_type, given };
enum class How : int { focus, mean, max };

// Columns of a value, from `first` on.
struct Place {
    int value = none, first = 0;
};

struct Step {
    Kind kind;
    bool starts_block = false;  // only one value passes from the steps before to this one and those after it
    int out = none;
    Place x;             // what a product, a norm, a gate or a read takes; the query of attention; the output of a look-up, a rotation or a norm of heads
    Place key, value;    // of attention
    Place residual;      // of a product or a norm
    int width = 0;       // of a look-up, a rotation, a norm of heads or the query
    int parameter = none, bias = none;  // a matrix, a vector or a table; the second vector of a LayerNorm or an exact product; or the position bias
    int gain = none;     // a vector
    Activation activation = Activation::none;
    bool exact = false;  // a product in floats: `parameter` and `bias` are vectors
    Index index = Index::word;
    bool in_vector = false;  // whether a look-up's table is a vector, and not the words or the rows that the caller gives
    bool adds = false;
    int heads = 1;
    int key_heads = 1;   // of attention: each serves heads / key_heads heads of the query
    bool causal = false;
    int relative_rows = none, relative_keys = none, relative_queries = none;  // vectors: what distances add to the scores of attention
    int window = none;   // of attention: a token attends to tokens at a distance of at most window / 2; none: to all
    float epsilon = 0;
    How how = How::focus;

    // Filled in by `Program`.
    bool quantises = false;  // a product whose input is not quantised yet
    bool ranged = false;     // the step finds the ranges of its output, which the next one quantises
    bool knows_ranges = false;
    int parity = 0;          // attention, and the segment that packs its keys: which of two memories they are in
};

// How long the rows of a value are needed, each longer than the one before: by the steps of a segment; until the segment
// packs keys and values; until a later segment of the same block of steps; or until a later block of steps.
enum class Storage : int { block, segment, steps, call };

struct Segment {
    int first, last;        // steps; the last one is not included
    bool reads = false;     // whether its rows are those that the head reads, or all tokens
    bool waits = false;
    bool starts_block = false;
    int packs = none;       // the step of attention whose keys and values this segment computed
    int folds = none;       // the value that this segment computed and the next one reads the maximum of, which is found row by row
};

class Program {
   public:
    int positions = 0;  // the most tokens of a sequence
    int given = 0;      // the width of the rows that the caller gives; 0: it gives none
    std::vector<int> results;  // the values that hold the outputs, side by side
    std::vector<int> widths;
    std::vector<Step> steps;
    std::vector<Segment> segments;
    std::vector<Storage> storage;  // of the values

    // Throws Misshapen. `size` is the count of the numbers.
    Program(const std::int32_t* numbers, std::int64_t size) {
        require(size >= 4);
        const int values = numbers[0], outputs = numbers[1], count = numbers[2];
        require(values >= 1 && values <= max_steps && outputs >= 1 && outputs <= values && count >= 1 && count <= max_steps);
        require(size == 4 + values + outputs + static_cast<std::int64_t>(count) * numbers_per_step);
        positions = numbers[3];
        require(positions >= 1 && positions <= max_size);
        numbers += 4;
        widths.assign(numbers, numbers + values);
        for (int width : widths) require(width >= 1 && width <= max_size);
        numbers += values;
        results.assign(numbers, numbers + outputs);
        std::int64_t total = 0;
        for (int result : results) total += widths[checked_value(result)];
        require(total <= max_size);
        outputs_ = static_cast<int>(total);
        numbers += outputs;
        for (int i = 0; i < count; i++, numbers += numbers_per_step) steps.push_back(read_step(numbers));
        divide();
        check_values();
        plan_quantising();
    }

    int width(int value) const { return widths[value]; }
    // The distance between the rows of a value in memory: whole vectors.
    int stride(int value) const { return round_up(widths[value], lanes); }
    bool is_block(int value) const { return storage[value] == Storage::block; }
    int outputs() const { return outputs_; }

   private:
    int outputs_ = 0;

    template <class Enum>
    static Enum choice(int number, Enum most) {
        require(number >= 0 && number <= static_cast<int>(most));
        return static_cast<Enum>(number);
    }

    int checked_value(int number) const {
        require(number >= 0 && number < static_cast<int>(widths.size()));
        return number;
    }
    // A value whose columns are read: its width is a multiple of a vector.
    int input(int number) const {
        require(widths[checked_value(number)] % multiple == 0);
        return number;
    }
    Place place(int value, int first, int width) const {
        input(value);
        require(first >= 0 && first % multiple == 0 && width >= 1 && width % multiple == 0 && width <= widths[value] && first <= widths[value] - width);
        return {value, first};
    }
    static int parameter(int number) {
        require(number >= 0);
        return number;
    }
    static int optional(int number) {
        require(number >= none);
        return number;
    }

    static float epsilon(std::int32_t bits) {
        float number;
        std::memcpy(&number, &bits, sizeof number);
        require(number >= 0 && number <= 1);
        return number;
    }

    // The numbers of a step: its kind, whether it starts a block, its output, and those of its kind.
    Step read_step(const std::int32_t* n) {
        Step s{};
        s.kind = choice(n[0], Kind::norm_heads);
        s.starts_block = n[1] != 0;
        s.out = checked_value(n[2]);
        n += 3;
        switch (s.kind) {
            case Kind::look_up:
                s.width = n[1], s.x = place(s.out, n[0], s.width);
                s.in_vector = n[2] != 0, s.parameter = parameter(n[3]);
                s.index = choice(n[4], Index::given), s.adds = n[5] != 0;
                if (s.index == Index::given) require(!s.in_vector && !s.adds && s.width == widths[s.out] && (given == 0 || given == s.width)), given = s.width;
                break;
            case Kind::multiply:
                s.x = {input(n[0]), 0}, s.parameter = parameter(n[1]), s.bias = optional(n[2]), s.exact = n[2] != none;
                require(s.x.value != s.out);
                if (n[3] != none) s.residual = place(n[3], n[4], widths[s.out]);
                s.gain = optional(n[5]);
                if (s.gain != none || s.exact) require(s.exact ? n[3] == none && s.gain == none : n[3] != none);
                s.activation = choice(n[6], Activation::silu);
                if (n[3] != none) require(s.activation == Activation::none);
                break;
            case Kind::norm:
                s.x = {input(n[0]), 0}, s.parameter = parameter(n[1]), s.bias = optional(n[2]), s.epsilon = epsilon(n[3]);
                if (n[4] != none) s.residual = place(n[4], n[5], widths[s.out]);
                require(widths[s.out] == widths[s.x.value]);
                break;
            case Kind::attend: {
                s.width = widths[input(s.out)], s.heads = n[6], s.key_heads = n[13];
                require(s.heads >= 1 && s.width % s.heads == 0 && s.width / s.heads % multiple == 0);
                require(s.key_heads >= 1 && s.heads % s.key_heads == 0);
                const int key_width = s.width / s.heads * s.key_heads;
                s.x = place(n[0], n[1], s.width), s.key = place(n[2], n[3], key_width), s.value = place(n[4], n[5], key_width);
                s.causal = n[7] != 0, s.bias = optional(n[8]), s.window = optional(n[9]);
                s.relative_rows = optional(n[10]), s.relative_keys = optional(n[11]), s.relative_queries = optional(n[12]);
                require((s.relative_rows != none) == (s.relative_keys != none || s.relative_queries != none));
                require(s.relative_rows == none || (s.bias == none && s.window == none && !s.causal && s.key_heads == s.heads));
                for (int value : {s.x.value, s.key.value, s.value.value}) require(value != s.out);
                break;
            }
            case Kind::read:
                s.x = {checked_value(n[0]), 0}, s.how = choice(n[1], How::max);
                require(widths[s.out] == widths[s.x.value]);
                break;
            case Kind::gate:
                s.x = {input(n[0]), 0}, s.activation = choice(n[1], Activation::silu);
                require(s.x.value != s.out && widths[s.x.value] == 2 * widths[input(s.out)]);
                break;
            case Kind::rotate:
                s.width = n[1], s.x = place(s.out, n[0], s.width), s.parameter = parameter(n[2]), s.heads = n[3];
                require(s.heads >= 1 && s.width % s.heads == 0 && s.width / s.heads % (2 * multiple) == 0);
                break;
            case Kind::norm_heads:
                s.width = n[1], s.x = place(s.out, n[0], s.width), s.parameter = parameter(n[2]), s.heads = n[3], s.epsilon = epsilon(n[4]);
                require(s.heads >= 1 && s.width % s.heads == 0 && s.width / s.heads % multiple == 0);
        }
        return s;
    }

    // Divides the steps into segments.
    void divide() {
        bool reads = false;
        std::vector<int> written(widths.size(), none);  // the segment that wrote a value last
        int attentions = 0;
        const auto wrote = [&](int value) { return written[value] == static_cast<int>(segments.size()) - 1; };
        for (int i = 0; i < static_cast<int>(steps.size()); i++) {
            Step& s = steps[i];
            const bool attends = s.kind == Kind::attend, starts_reading = s.kind == Kind::read;
            if (starts_reading) require(!std::exchange(reads, true));
            if (attends) require(written[s.key.value] != none && written[s.value.value] != none);
            const bool waits = attends && (wrote(s.key.value) || wrote(s.value.value));
            if (segments.empty() || s.starts_block || starts_reading || waits) {
                if (!segments.empty()) segments.back().last = i;
                segments.push_back({i, static_cast<int>(steps.size()), reads, starts_reading || attends, s.starts_block});
            }
            if (attends) {
                // The segment that wrote keys and values packs them. Attention comes behind a wait.
                const int writer = written[s.key.value];
                require(writer == written[s.value.value] && !segments[writer].reads && segments[writer].packs == none);
                bool waited = false;
                for (int later = writer + 1; later < static_cast<int>(segments.size()); later++) {
                    require(!segments[later].starts_block);
                    waited = waited || segments[later].waits;
                }
                require(waited);
                segments[writer].packs = i;
                s.parity = attentions++ % 2;
            }
            written[s.out] = static_cast<int>(segments.size()) - 1;
        }
        require(reads);
    }

    // Checks that every value is written before it is read, and finds out how long its rows are needed.
    void check_values() {
        storage.assign(widths.size(), Storage::block);
        struct State {
            int filled = 0;  // columns, from the first one on
            int segment = none, block = none;
            bool reads = false;
        };
        std::vector<State> states(widths.size());
        int block = 0;
        bool folds = false;
        for (int number = 0; number < static_cast<int>(segments.size()); number++) {
            const Segment& segment = segments[number];
            block += segment.starts_block;
            // Rows that an earlier segment wrote, all columns or some, stay until this segment.
            const auto keep = [&](int value) {
                const State& state = states[value];
                if (state.segment != number) storage[value] = std::max(storage[value], state.block == block ? Storage::steps : Storage::call);
            };
            const auto read = [&](int value, bool tokens_too = false) {
                require(states[value].filled == widths[value] && (tokens_too || states[value].reads == segment.reads));
                keep(value);
            };
            for (int i = segment.first; i < segment.last; i++) {
                const Step& s = steps[i];
                State& out = states[s.out];
                switch (s.kind) {
                    case Kind::look_up:
                        require(!segment.reads);
                        if (s.adds)
                            read(s.out);
                        else if (s.x.first)
                            keep(s.out);
                        require(s.x.first <= out.filled || out.filled == widths[s.out]);
                        break;
                    case Kind::multiply:
                    case Kind::norm:
                        read(s.x.value);
                        if (s.residual.value != none) read(s.residual.value);
                        break;
                    case Kind::attend:
                    case Kind::gate:
                    case Kind::rotate:
                    case Kind::norm_heads: read(s.x.value); break;
                    case Kind::read:
                        require(i == segment.first);
                        folds = s.how == How::max && number && !segment.starts_block && states[s.x.value].segment == number - 1;
                        if (folds) segments[number - 1].folds = s.x.value;
                        require(folds || widths[s.x.value] % multiple == 0);
                        if (folds) {
                            require(states[s.x.value].filled == widths[s.x.value]);
                        } else {
                            read(s.x.value, true);
                            storage[s.x.value] = Storage::call;
                        }
                        break;
                }
                if (s.kind != Kind::look_up)
                    out.filled = widths[s.out];
                else if (!s.adds)
                    out.filled = s.x.first ? std::max(out.filled, s.x.first + s.width) : s.width;
                out.segment = number, out.block = block, out.reads = segment.reads;
            }
            if (segment.packs != none)
                for (int value : {steps[segment.packs].key.value, steps[segment.packs].value.value}) {
                    require(states[value].filled == widths[value]);
                    storage[value] = std::max(storage[value], Storage::segment);
                }
        }
        for (int result : results) {
            const State& state = states[result];
            require(state.filled == widths[result] && state.reads);
            if (state.segment != static_cast<int>(segments.size()) - 1) storage[result] = Storage::call;
        }
    }

    // A product quantises its input unless the product before has the same one. Where a product follows directly on the step
    // that computes its input, that step finds the ranges.
    void plan_quantising() {
        for (const Segment& segment : segments) {
            int quantised = none;
            for (int i = segment.first; i < segment.last; i++) {
                Step& s = steps[i];
                if (s.kind == Kind::multiply && !s.exact) {
                    s.quantises = s.x.value != quantised;
                    quantised = s.x.value;
                    if (s.quantises && i > segment.first) {
                        Step& before = steps[i - 1];
                        const bool finds = before.kind == Kind::norm || before.kind == Kind::gate || (before.kind == Kind::multiply && !before.exact);
                        s.knows_ranges = before.ranged = finds && before.out == s.x.value;
                    }
                }
                if (s.out == quantised) quantised = none;
            }
        }
    }
};

}  // namespace
