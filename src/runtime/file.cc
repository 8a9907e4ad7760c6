// SPDX-License-Identifier: Apache-2.0
#include "src/runtime/file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "src/numeric/digest.h"

namespace batchproof {
namespace {

constexpr std::size_t kChunk = std::size_t{1} << 16;

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }
  // Some file systems report a failed write here.
  bool close() {
    const int fd = fd_;
    fd_ = -1;
    return ::close(fd) == 0;
  }

 private:
  int fd_;
};

tl::unexpected<Error> system_error(const char* verb, const std::string& path, int code) {
  const int at_fault[] = {ENOENT, EACCES, EISDIR, ENOTDIR, ENAMETOOLONG, ELOOP, EROFS, EPERM, EINVAL, ENXIO};
  const bool usage = std::find(std::begin(at_fault), std::end(at_fault), code) != std::end(at_fault);
  return fail(usage ? Error::Kind::usage : Error::Kind::environment,
              fmt::format("cannot {} {}: {}", verb, path, std::strerror(code)));
}

// Bytes read, 0 at the end, -1 with errno.
ssize_t read_some(int fd, char* to, std::size_t bytes) {
  ssize_t got = 0;
  do {
    got = ::read(fd, to, bytes);
  } while (got < 0 && errno == EINTR);
  return got;
}

bool write_all(int fd, std::string_view content) {
  while (!content.empty()) {
    const ssize_t put = ::write(fd, content.data(), content.size());
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return false;
    content.remove_prefix(static_cast<std::size_t>(put));
  }
  return true;
}

}  // namespace

Result<std::string> read_file(const std::string& path, std::size_t limit) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY));
  if (file.get() < 0) return system_error("read", path, errno);
  std::string content;
  std::vector<char> chunk(kChunk);
  for (;;) {
    const ssize_t got = read_some(file.get(), chunk.data(), chunk.size());
    if (got < 0) return system_error("read", path, errno);
    if (got == 0) return content;
    if (static_cast<std::size_t>(got) > limit - content.size()) {
      return fail(Error::Kind::usage, fmt::format("cannot read {}: larger than the limit of {} bytes", path, limit));
    }
    content.append(chunk.data(), static_cast<std::size_t>(got));
  }
}

Result<void> write_file(const std::string& path, std::string_view content) {
  std::string target = path;
  mode_t mode = 0;
  struct stat status{};
  if (::stat(path.c_str(), &status) == 0) {
    if (!S_ISREG(status.st_mode)) {
      Descriptor file(::open(path.c_str(), O_WRONLY | O_CLOEXEC | O_NOCTTY));
      if (file.get() < 0 || !write_all(file.get(), content) || !file.close()) {
        return system_error("write", path, errno);
      }
      return {};
    }
    if (::access(path.c_str(), W_OK) != 0) return system_error("write", path, errno);
    mode = status.st_mode & 07777;
    // Renaming over a link would replace the link, not what it points to.
    const std::unique_ptr<char, decltype(&std::free)> resolved(::realpath(path.c_str(), nullptr), &std::free);
    if (resolved == nullptr) return system_error("write", path, errno);
    target = resolved.get();
  }

  static std::atomic<unsigned> counter{0};
  std::string temporary;
  int fd = -1;
  do {
    temporary = fmt::format("{}.{}.{}.tmp", target, ::getpid(), counter++);
    fd = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  } while (fd < 0 && errno == EEXIST);
  if (fd < 0) return system_error("write", path, errno);
  Descriptor file(fd);
  if ((mode != 0 && ::fchmod(fd, mode) != 0) || !write_all(fd, content) || ::fsync(fd) != 0 || !file.close() ||
      ::rename(temporary.c_str(), target.c_str()) != 0) {
    const int code = errno;
    ::unlink(temporary.c_str());
    return system_error("write", path, code);
  }
  return {};
}

Result<std::string> file_digest(const std::string& path) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY));
  if (file.get() < 0) return system_error("read", path, errno);
  Digest digest;
  std::vector<char> chunk(kChunk);
  for (;;) {
    const ssize_t got = read_some(file.get(), chunk.data(), chunk.size());
    if (got < 0) return system_error("read", path, errno);
    if (got == 0) return digest.hex();
    digest.update(chunk.data(), static_cast<std::size_t>(got));
  }
}

}  // namespace batchproof
