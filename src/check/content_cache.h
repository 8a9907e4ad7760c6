// SPDX-License-Identifier: Apache-2.0
//
// Rows and weights that were made already. What they hold follows from their identity alone (C3), so all cells of a run
// share one cache: the inputs of a cell are mostly those of the cell before.
#ifndef BATCHPROOF_SRC_CHECK_CONTENT_CACHE_H_
#define BATCHPROOF_SRC_CHECK_CONTENT_CACHE_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

namespace batchproof {

class ContentCache {
 public:
  using Bytes = std::vector<std::byte>;
  // Holders keep what they hold, also when the cache lets go of it.
  using Content = std::shared_ptr<const Bytes>;

  // `tensor`: number() of everything that the rows of a tensor have in common.
  struct Key {
    std::uint64_t tensor = 0;
    std::uint64_t row = 0;
    std::uint64_t seed = 0;
    std::uint64_t magnitude = 0;  // bits
    std::int64_t poison = -1;
    bool operator==(const Key&) const = default;
  };

  // Equal for equal texts.
  std::uint64_t number(const std::string& text) {
    return numbers_.try_emplace(text, static_cast<std::uint64_t>(numbers_.size())).first->second;
  }

  // make() gives the bytes where they are not there yet.
  template <class Make>
  Content get(const Key& key, const Make& make) {
    const auto found = contents_.find(key);
    if (found != contents_.end()) return found->second;
    auto content = std::make_shared<const Bytes>(make());
    if (bytes_ + content->size() > kLimit) {
      contents_.clear();
      bytes_ = 0;
    }
    bytes_ += content->size();
    contents_.emplace(key, content);
    return content;
  }

 private:
  static constexpr std::size_t kLimit = std::size_t{256} << 20;

  struct Hash {
    std::size_t operator()(const Key& key) const {
      std::uint64_t hash = 0;
      for (const std::uint64_t word :
           {key.tensor, key.row, key.seed, key.magnitude, static_cast<std::uint64_t>(key.poison)})
        hash = (hash ^ word) * 0x9E3779B97F4A7C15u ^ hash >> 29;
      return static_cast<std::size_t>(hash ^ hash >> 32);
    }
  };

  std::unordered_map<std::string, std::uint64_t> numbers_;
  std::unordered_map<Key, Content, Hash> contents_;
  std::size_t bytes_ = 0;
};

}  // namespace batchproof

#endif  // BATCHPROOF_SRC_CHECK_CONTENT_CACHE_H_
