// SPDX-License-Identifier: Apache-2.0
//
// The .npy reader. Every length comes from the file, so each is checked against the bytes that are there before use.
#include "src/numeric/npy.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>

#include "src/numeric/fp16.h"

namespace batchproof {
namespace {

constexpr std::size_t kMaxHeader = std::size_t{1} << 20;  // a real header has about a hundred bytes
constexpr std::size_t kMaxAxes = 32;

struct Header {
  std::optional<std::string> descr;
  std::optional<bool> fortran_order;
  std::optional<std::vector<std::int64_t>> shape;
};

// Reads the header: a Python dictionary with three fixed keys. error() says what was wrong and where.
class HeaderParser {
 public:
  explicit HeaderParser(std::string_view text) : text_(text) {}

  bool parse(Header* header) {
    if (!expect('{')) return false;
    while (!next_is('}')) {
      std::string key;
      if (!string(&key) || !expect(':')) return false;
      if (key == "descr") {
        if (header->descr) return wrong("'descr' appears twice");
        header->descr.emplace();
        if (next_is('[')) return wrong("a record dtype; one number per element is needed");
        if (!string(&*header->descr)) return false;
      } else if (key == "fortran_order") {
        if (header->fortran_order) return wrong("'fortran_order' appears twice");
        header->fortran_order = false;
        if (!boolean(&*header->fortran_order)) return false;
      } else if (key == "shape") {
        if (header->shape) return wrong("'shape' appears twice");
        header->shape.emplace();
        if (!tuple(&*header->shape)) return false;
      } else {
        return wrong(fmt::format("unknown key '{}'; descr, fortran_order and shape are known", key.substr(0, 40)));
      }
      if (!next_is('}') && !expect(',')) return false;
    }
    ++at_;
    if (!blank_to_end()) return wrong("text after the dictionary");
    if (!header->descr) return wrong("no 'descr'");
    if (!header->fortran_order) return wrong("no 'fortran_order'");
    if (!header->shape) return wrong("no 'shape'");
    return true;
  }

  const std::string& error() const { return error_; }

 private:
  bool wrong(std::string message) {
    if (error_.empty()) error_ = fmt::format("{} (byte {} of the header)", message, at_);
    return false;
  }
  void skip_blanks() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\t')) ++at_;
  }
  bool blank_to_end() {
    skip_blanks();
    return at_ == text_.size();
  }
  bool next_is(char c) {
    skip_blanks();
    return at_ < text_.size() && text_[at_] == c;
  }
  bool expect(char c) {
    if (!next_is(c)) return wrong(fmt::format("'{}' expected", c));
    ++at_;
    return true;
  }
  bool string(std::string* value) {
    skip_blanks();
    if (at_ >= text_.size() || (text_[at_] != '\'' && text_[at_] != '"')) return wrong("a quoted string expected");
    const std::size_t end = text_.find(text_[at_], at_ + 1);
    if (end == std::string_view::npos) return wrong("a string without its closing quote");
    *value = text_.substr(at_ + 1, end - at_ - 1);
    at_ = end + 1;
    return true;
  }
  bool word(std::string_view expected) {
    if (text_.substr(at_, expected.size()) != expected) return false;
    at_ += expected.size();
    return true;
  }
  bool boolean(bool* value) {
    skip_blanks();
    if (word("True")) {
      *value = true;
      return true;
    }
    if (word("False")) {
      *value = false;
      return true;
    }
    return wrong("True or False expected");
  }
  bool tuple(std::vector<std::int64_t>* values) {
    if (!expect('(')) return false;
    while (!next_is(')')) {
      std::int64_t value = 0;
      if (!extent(&value)) return false;
      if (values->size() == kMaxAxes) return wrong(fmt::format("more than {} axes", kMaxAxes));
      values->push_back(value);
      if (!next_is(')') && !expect(',')) return false;
    }
    ++at_;
    return true;
  }
  bool extent(std::int64_t* value) {
    skip_blanks();
    const std::size_t begin = at_;
    while (at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9') {
      const int digit = text_[at_] - '0';
      if (*value > (std::numeric_limits<std::int64_t>::max() - digit) / 10) return wrong("an extent beyond 64 bits");
      *value = *value * 10 + digit;
      ++at_;
    }
    return at_ > begin || wrong("an extent (0, 1, 2, ...) expected");
  }

  std::string_view text_;
  std::size_t at_ = 0;
  std::string error_;
};

std::size_t little_endian(std::string_view bytes, std::size_t at, std::size_t count) {
  std::size_t value = 0;
  for (std::size_t i = count; i-- > 0;) value = value << 8 | static_cast<unsigned char>(bytes[at + i]);
  return value;
}

template <class T>
T item(const std::byte* data, std::int64_t index) {
  T value;
  std::memcpy(&value, data + index * static_cast<std::int64_t>(sizeof(T)), sizeof(T));
  return value;
}

struct FileCloser {
  void operator()(std::FILE* file) const { std::fclose(file); }
};

}  // namespace

Result<NpyArray> NpyArray::read(const std::string& path) {
  const auto bad = [&](const char* what) {
    return fail(Error::Kind::usage, fmt::format("{}: {}: {}", path, what, std::strerror(errno)));
  };
  errno = 0;
  const std::unique_ptr<std::FILE, FileCloser> file(std::fopen(path.c_str(), "rb"));
  if (!file) return bad("cannot be opened");
  std::string bytes;
  char buffer[1 << 16];
  while (true) {
    const std::size_t got = std::fread(buffer, 1, sizeof(buffer), file.get());
    bytes.append(buffer, got);
    if (got < sizeof(buffer)) break;
  }
  if (std::ferror(file.get()) != 0) return bad("cannot be read");
  return parse(bytes, path);
}

Result<NpyArray> NpyArray::parse(std::string_view bytes, const std::string& name) {
  const auto bad = [&](const std::string& what) { return fail(Error::Kind::usage, fmt::format("{}: {}", name, what)); };
  if (bytes.size() < 10) return bad(fmt::format("{} bytes are too few for a .npy file", bytes.size()));
  if (bytes.substr(0, 6) != std::string_view("\x93NUMPY", 6))
    return bad("not a .npy file: it does not begin with \\x93NUMPY");
  const int major = static_cast<unsigned char>(bytes[6]);
  const int minor = static_cast<unsigned char>(bytes[7]);
  if (major < 1 || major > 3 || minor != 0) {
    return bad(fmt::format(".npy version {}.{}; 1.0, 2.0 and 3.0 are read", major, minor));
  }
  const std::size_t length_bytes = major == 1 ? 2 : 4;
  const std::size_t header_begin = 8 + length_bytes;
  if (bytes.size() < header_begin) return bad("truncated before the header");
  const std::size_t header_size = little_endian(bytes, 8, length_bytes);
  if (header_size > kMaxHeader) {
    return bad(fmt::format("a header of {} bytes; at most {} are read", header_size, kMaxHeader));
  }
  if (header_size > bytes.size() - header_begin) {
    return bad(fmt::format("truncated: the header has {} bytes, the file only {} more", header_size,
                           bytes.size() - header_begin));
  }

  Header header;
  HeaderParser parser(bytes.substr(header_begin, header_size));
  if (!parser.parse(&header)) return bad("bad header: " + parser.error());
  if (*header.fortran_order) return bad("Fortran order; save the array in C order (numpy.ascontiguousarray)");

  NpyArray array;
  const std::string& descr = *header.descr;
  const bool sized = descr.size() == 3 && (descr[0] == '<' || (descr[0] == '|' && descr[2] == '1'));
  static constexpr std::string_view kTypes[] = {"f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2"};
  bool known = false;
  for (std::string_view type : kTypes) known = known || (sized && descr.substr(1) == type);
  if (!known) {
    return bad(
        fmt::format("dtype '{}'; little-endian f2, f4, f8, i1, i2, i4, i8, u1, u2 are read", descr.substr(0, 40)));
  }
  array.kind_ = descr[1];
  array.item_ = descr[2] - '0';
  array.shape_ = *header.shape;

  // The product is checked against the bytes that are there, so it cannot overflow unseen.
  const std::size_t data_begin = header_begin + header_size;
  const std::size_t data_bytes = bytes.size() - data_begin;
  const std::size_t available = data_bytes / static_cast<std::size_t>(array.item_);
  std::size_t elements = 1;
  for (std::int64_t extent : array.shape_) {
    if (extent == 0) return bad("holds no element: an extent is 0");
    if (static_cast<std::uint64_t>(extent) > available / elements) {
      return bad(fmt::format("truncated: shape ({}) of '{}' needs more than the {} bytes of data",
                             fmt::join(array.shape_, ", "), descr, data_bytes));
    }
    elements *= static_cast<std::size_t>(extent);
  }
  const std::size_t needed = elements * static_cast<std::size_t>(array.item_);
  if (needed > data_bytes) return bad("truncated: no element");
  if (needed < data_bytes) {
    return bad(fmt::format("{} bytes follow the {} bytes of data that shape ({}) of '{}' has", data_bytes - needed,
                           needed, fmt::join(array.shape_, ", "), descr));
  }
  array.rows_ = array.shape_.size() < 2 ? 1 : array.shape_[0];
  array.columns_ = static_cast<std::int64_t>(elements) / array.rows_;
  const auto* data = reinterpret_cast<const std::byte*>(bytes.data() + data_begin);
  array.data_.assign(data, data + needed);
  return array;
}

double NpyArray::value(std::int64_t index) const {
  const std::byte* data = data_.data();
  if (kind_ == 'f') {
    if (item_ == 2) return fp16_to_float(item<std::uint16_t>(data, index));
    if (item_ == 4) return item<float>(data, index);
    return item<double>(data, index);
  }
  if (kind_ == 'u') {
    return item_ == 1 ? item<std::uint8_t>(data, index) : item<std::uint16_t>(data, index);
  }
  switch (item_) {
    case 1:
      return item<std::int8_t>(data, index);
    case 2:
      return item<std::int16_t>(data, index);
    case 4:
      return item<std::int32_t>(data, index);
    default:
      return static_cast<double>(item<std::int64_t>(data, index));
  }
}

bool NpyArray::stores(bp_dtype dtype) const {
  switch (dtype) {
    case BP_FP64:
      return kind_ == 'f' && item_ == 8;
    case BP_FP32:
      return kind_ == 'f' && item_ == 4;
    case BP_FP16:
      return kind_ == 'f' && item_ == 2;
    case BP_BF16:
      return kind_ == 'u' && item_ == 2;
    case BP_E4M3:
    case BP_E5M2:
    case BP_E8M0:
    case BP_E2M1:
    case BP_UINT8:
      return kind_ == 'u' && item_ == 1;
    case BP_INT8:
      return kind_ == 'i' && item_ == 1;
    case BP_INT32:
      return kind_ == 'i' && item_ == 4;
    case BP_INT64:
      return kind_ == 'i' && item_ == 8;
    default:
      return false;
  }
}

std::uint64_t NpyArray::bits(std::int64_t index) const {
  std::uint64_t bits = 0;
  std::memcpy(&bits, data_.data() + index * item_, static_cast<std::size_t>(item_));
  return bits;
}

}  // namespace batchproof
