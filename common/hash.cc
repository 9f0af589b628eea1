#include "common/hash.h"

#include <xxhash.h>

#include "absl/strings/escaping.h"

namespace trainyard {
namespace {

std::string ToHex(XXH128_hash_t hash) {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, hash);
  return absl::BytesToHexString(
      absl::string_view(reinterpret_cast<const char*>(canonical.digest), sizeof canonical.digest));
}

}  // namespace

struct Hasher::State {
  XXH3_state_t* xxh = XXH3_createState();
  ~State() { XXH3_freeState(xxh); }
};

std::string HashHex(absl::string_view bytes) { return ToHex(XXH3_128bits(bytes.data(), bytes.size())); }

Hasher::Hasher() : state_(std::make_unique<State>()) { XXH3_128bits_reset(state_->xxh); }
Hasher::~Hasher() = default;

void Hasher::Add(absl::string_view bytes) { XXH3_128bits_update(state_->xxh, bytes.data(), bytes.size()); }

std::string Hasher::Hex() const { return ToHex(XXH3_128bits_digest(state_->xxh)); }

}  // namespace trainyard
