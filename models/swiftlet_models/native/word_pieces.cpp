// The word pieces of a text, in time linear in its length.
//
// A word is cut into the longest pieces of the vocabulary, from left to right. `word_pieces.py` tells what becomes of each
// character, and checks all that is passed to these functions. They may run on several threads at the same time.

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <new>
#include <utility>
#include <vector>

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

// A character after normalisation: a code point with its kind, or 0 for none.
constexpr std::uint32_t CODE_POINT = (1 << 21) - 1;
[[maybe_unused]] constexpr std::uint32_t LETTER = 1 << 21;  // anything else
constexpr std::uint32_t SPACE = 2 << 21;  // it separates words
constexpr std::uint32_t MARK = 3 << 21;   // it is a word of its own
constexpr std::uint32_t UNSURE = 4 << 21;  // what becomes of it depends on other characters

constexpr int NORMALISED = 3;  // characters that one becomes, at most
constexpr int BLOCK = 256;
constexpr int BLOCKS = 0x400;  // no character above them is known
using Block = std::uint32_t[BLOCK][NORMALISED];

constexpr int LONGEST_WORD = 1000;
constexpr std::int32_t NONE = -1;

// What the functions return instead of a number of tokens.
constexpr std::int64_t UNKNOWN_CHARACTER = -1;
constexpr std::int64_t UNSURE_CHARACTER = -2;

struct Token {
    std::int32_t id, start, end, word;  // its place in the text, in characters, and the number of its word
};

// The pieces as a trie. The children of a node are numbered consecutively, in the order of their characters.
class Trie {
   public:
    static constexpr std::int32_t ROOT = 0;

    // Takes pieces in the order of their characters, which lie end to end, with the end and the id of each.
    Trie(const std::uint32_t* characters, std::int32_t pieces, const std::int64_t* ends, const std::int32_t* ids) {
        struct Range {
            std::int32_t first, end;  // the pieces that begin as the node does
            std::int64_t depth;
        };
        const auto begin = [&](std::int32_t piece) { return characters + (piece ? ends[piece - 1] : 0); };
        std::vector<Range> ranges{{0, pieces, 0}};
        characters_.push_back(0);
        for (std::size_t node = 0; node < ranges.size(); node++) {
            auto [piece, end, depth] = ranges[node];
            Node made{{0, 0}, static_cast<std::int32_t>(ranges.size()), NONE};
            if (piece < end && begin(piece) + depth == characters + ends[piece]) made.id = ids[piece++];
            while (piece < end) {
                const std::uint32_t character = begin(piece)[depth];
                const std::int32_t first = piece;
                while (piece < end && begin(piece)[depth] == character) piece++;
                ranges.push_back({first, piece, depth + 1});
                characters_.push_back(character);
                if (character < 128) made.ascii[character / 64] |= 1ull << character % 64;
            }
            nodes_.push_back(made);
        }
        nodes_.push_back({{0, 0}, static_cast<std::int32_t>(ranges.size()), NONE});
    }

    // Returns the child of a node, or NONE. A node may be NONE, too.
    std::int32_t child(std::int32_t number, std::uint32_t character) const {
        if (number == NONE) return NONE;
        const Node& node = nodes_[number];
        const std::int32_t low = count(node.ascii[0]);
        if (character < 128) {
            const std::uint64_t bits = node.ascii[character / 64], bit = 1ull << character % 64;
            return bits & bit ? node.children + (character < 64 ? 0 : low) + count(bits & (bit - 1)) : NONE;
        }
        const auto begin = characters_.begin() + node.children + low + count(node.ascii[1]);
        const auto end = characters_.begin() + nodes_[number + 1].children;
        const auto found = std::lower_bound(begin, end, character);
        return found != end && *found == character ? static_cast<std::int32_t>(found - characters_.begin()) : NONE;
    }

    // Returns the id of the piece that ends at a node, or NONE.
    std::int32_t id(std::int32_t node) const { return node == NONE ? NONE : nodes_[node].id; }

   private:
    struct Node {
        std::uint64_t ascii[2];  // a bit for each ASCII character that has a child
        std::int32_t children;   // the first one
        std::int32_t id;
    };

    static std::int32_t count(std::uint64_t bits) { return __builtin_popcountll(bits); }

    std::vector<Node> nodes_;
    std::vector<std::uint32_t> characters_;  // by which each node differs from its parent
};

class Pieces {
   public:
    Pieces(Trie trie, const std::uint32_t* prefix, std::int32_t prefix_length, std::int32_t unknown, int longest_word)
        : trie_(std::move(trie)), unknown_(unknown), longest_word_(longest_word) {
        for (std::int32_t i = 0; i < prefix_length; i++) continued_ = trie_.child(continued_, prefix[i]);
    }
    ~Pieces() {
        for (auto& block : blocks_) delete[] block.load();
    }

    // Takes what becomes of 256 characters. Another thread may have done so.
    void learn(int number, const Block& block) {
        auto* copy = new std::uint32_t[BLOCK][NORMALISED];
        std::copy_n(&block[0][0], BLOCK * NORMALISED, &copy[0][0]);
        Row* none = nullptr;
        if (!blocks_[number].compare_exchange_strong(none, copy)) delete[] copy;
    }

    // Writes the tokens of a text, and returns their number or why there are none.
    std::int64_t encode(const std::uint32_t* text, std::int64_t length, Token* tokens) {
        Word word;
        Token* end = tokens;
        for (std::int32_t i = 0; i < length; i++) {
            if (text[i] >= BLOCK * BLOCKS) return UNSURE_CHARACTER;
            const Row* block = blocks_[text[i] / BLOCK].load(std::memory_order_acquire);
            if (!block) return UNKNOWN_CHARACTER;
            for (const std::uint32_t character : block[text[i] % BLOCK]) {
                if (!character) break;
                if (character >= UNSURE) return UNSURE_CHARACTER;
                if (character >= SPACE) end = finish(word, end);
                if (character < SPACE || character >= MARK) add(word, character & CODE_POINT, i);
                if (character >= MARK) end = finish(word, end);
            }
        }
        return finish(word, end) - tokens;
    }

   private:
    using Row = std::uint32_t[NORMALISED];

    struct Word {
        std::uint32_t characters[LONGEST_WORD];
        std::int32_t places[LONGEST_WORD];
        std::int32_t node = Trie::ROOT;
        std::int64_t length = 0;
        std::int32_t first = 0, last = 0, number = 0;
    };

    void add(Word& word, std::uint32_t character, std::int32_t place) const {
        if (!word.length) word.first = place;
        word.last = place;
        if (word.length < LONGEST_WORD) {
            word.characters[word.length] = character;
            word.places[word.length] = place;
        }
        word.node = trie_.child(word.node, character);
        word.length++;
    }

    // Writes the tokens of a word, and begins another one.
    Token* finish(Word& word, Token* tokens) const {
        if (!word.length) return tokens;
        Token* end = nullptr;
        *tokens = {trie_.id(word.node), word.first, word.last + 1, word.number};
        if (word.length <= longest_word_) end = tokens->id == NONE ? cut(word, tokens) : tokens + 1;
        if (!end) {
            *tokens = {unknown_, word.first, word.last + 1, word.number};
            end = tokens + 1;
        }
        word.node = Trie::ROOT;
        word.length = 0;
        word.number++;
        return end;
    }

    // Writes the pieces of a word. Returns null if there are none.
    Token* cut(const Word& word, Token* tokens) const {
        std::int32_t from = Trie::ROOT;
        for (std::int64_t start = 0; start < word.length; from = continued_, tokens++) {
            std::int64_t end = start;
            std::int32_t node = from;
            for (std::int64_t i = start; i < word.length && (node = trie_.child(node, word.characters[i])) != NONE; i++) {
                if (trie_.id(node) == NONE) continue;
                end = i + 1;
                *tokens = {trie_.id(node), word.places[start], word.places[i] + 1, word.number};
            }
            if (end == start) return nullptr;
            start = end;
        }
        return tokens;
    }

    std::atomic<Row*> blocks_[BLOCKS] = {};
    Trie trie_;
    std::int32_t unknown_;
    std::int64_t longest_word_;
    std::int32_t continued_ = Trie::ROOT;  // the node of the prefix of pieces that continue a word
};

}  // namespace

EXPORT int swiftlet_word_pieces_interface() { return 1; }

// Takes pieces as the trie does, and the prefix of those that continue a word. Returns null if memory is short.
EXPORT Pieces* swiftlet_word_pieces_create(const std::uint32_t* characters, std::int32_t pieces, const std::int64_t* ends,
                                           const std::int32_t* ids, const std::uint32_t* prefix,
                                           std::int32_t prefix_length, std::int32_t unknown,
                                           std::int32_t longest_word) try {
    return new Pieces(Trie(characters, pieces, ends, ids), prefix, prefix_length, unknown, longest_word);
} catch (const std::bad_alloc&) {
    return nullptr;
}

EXPORT void swiftlet_word_pieces_destroy(Pieces* pieces) { delete pieces; }

EXPORT int swiftlet_word_pieces_learn(Pieces* pieces, std::int32_t block, const Block* characters) try {
    pieces->learn(block, *characters);
    return 0;
} catch (const std::bad_alloc&) {
    return 1;
}

// Writes the tokens of a text of some characters. There may be three tokens for each.
EXPORT std::int64_t swiftlet_word_pieces_encode(Pieces* pieces, const std::uint32_t* text, std::int64_t length,
                                                Token* tokens) {
    return pieces->encode(text, length, tokens);
}
