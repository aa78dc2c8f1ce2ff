// The attributes of a custom call that replica groups make together, parsed when XLA instantiates
// the call: for each device its group.

#ifndef HLOOM_RUNTIME_CSRC_CALL_ATTRIBUTES_H_
#define HLOOM_RUNTIME_CSRC_CALL_ATTRIBUTES_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>

#include "rendezvous.h"
#include "xla/ffi/api/ffi.h"

namespace hloom {

// Immutable once parsed: all devices of the process share it.
class CallAttributes {
 public:
  // Reads `channel`, `replica_groups`, `group_size`, `devices`, `timeout_ms` and `site` and ignores
  // other attributes. An error names the kind of call and the attribute.
  //
  // The dictionary is read by name and not with XLA_FFI_REGISTER_STRUCT_ATTR_DECODING: that refuses
  // further attributes, and its errors name neither the call nor the attribute.
  static xla::ffi::ErrorOr<CallAttributes> Parse(std::string_view kind,
                                                 const xla::ffi::Dictionary& attributes);

  // An error where the device belongs to no replica group.
  xla::ffi::ErrorOr<Arrival> ArrivalOf(xla::ffi::RunId run, int32_t device) const;

  const std::string& kind() const { return kind_; }
  const std::string& site() const { return site_; }
  int64_t channel() const { return channel_; }

 private:
  // The place of one device; `call` is null where its partition is in no replica group.
  struct Slot {
    int64_t partition = 0;
    size_t position = 0;
    std::shared_ptr<const GroupCall> call;
  };

  std::string kind_;
  std::string site_;
  int64_t channel_ = 0;
  std::unordered_map<int64_t, Slot> by_device_;
};

}  // namespace hloom

#endif  // HLOOM_RUNTIME_CSRC_CALL_ATTRIBUTES_H_
