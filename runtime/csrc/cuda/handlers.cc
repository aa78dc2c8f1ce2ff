// The handlers that XLA calls for hloom's targets on CUDA.
//
// Instantiate runs where a program is compiled, which may have no GPU: it calls no driver.
// Initialize runs before every execution, outside of captures: memory, peers and code come from
// there, and there the devices agree on which execution is next. Execute only queues work on the
// stream, so that XLA can record it in a CUDA graph.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "cuda/call_site.h"
#include "cuda/cuda_runtime.h"
#include "element_bits.h"
#include "group_call.h"
#include "pad.cuh"
#include "xla/ffi/api/ffi.h"

namespace hloom::cuda {
namespace {

namespace ffi = xla::ffi;

constexpr char kToken[] = "hloom.token";
constexpr char kBarrier[] = "hloom.barrier";
constexpr char kRagged[] = "hloom.ragged_all_to_all";

// Bytes of the operand for each block of the ragged all-to-all, and blocks at most: enough to keep
// the links busy, and few enough to leave room for other kernels. Not measured yet.
constexpr size_t kBytesPerBlock = 64 << 10;
constexpr size_t kMostBlocks = 32;

// Runs a handler's body; what it throws becomes an error, for no exception may reach XLA.
template <typename Body>
ffi::Error Caught(const char* what, const Body& body) {
  try {
    return body();
  } catch (const std::exception& error) {
    return ffi::Error::Internal(std::string(what) + ": " + error.what());
  }
}

// () -> token
ffi::Error Token(Stream stream, ffi::Result<ffi::BufferR0<ffi::U32>> token) {
  return Caught(kToken, [&] {
    std::string why;
    Machine* machine = Machine::OfProcess(&why);
    if (machine == nullptr) return ffi::Error::Internal(std::string(kToken) + ": " + why);
    const Driver& driver = machine->driver;
    auto address = reinterpret_cast<DevicePointer>(token->untyped_data());
    Problem problem =
        driver.Check(driver.cuMemsetD32Async(address, 0, 1, stream), "cuMemsetD32Async");
    return problem ? ffi::Error::Internal(std::string(kToken) + ": " + *problem)
                   : ffi::Error::Success();
  });
}

// The group that a call's attributes give the calling device; refuses one that is too large.
ffi::ErrorOr<Meeting> MeetingHere(const char* what, const ffi::Dictionary& attributes,
                                  ffi::RunId run, int32_t device) {
  auto meeting = MeetingOf(what, attributes, run, device);
  if (meeting.has_value() && meeting->members.size() > kMaxRanks) {
    return ffi::Unexpected(ffi::Error::InvalidArgument(
        std::string(what) + ", " + std::string(meeting->site) + ": " +
        std::to_string(meeting->members.size()) + " devices meet, and the kernel serves at most " +
        std::to_string(kMaxRanks)));
  }
  return meeting;
}

ffi::ErrorOr<std::unique_ptr<CallSite>> Instantiate(const char* what,
                                                    const ffi::Dictionary& attributes) {
  auto image = attributes.get<std::string_view>("image");
  if (image.has_error()) return ffi::Unexpected(image.error());
  auto kernel = attributes.get<std::string_view>("kernel");
  if (kernel.has_error()) return ffi::Unexpected(kernel.error());
  auto group_size = attributes.get<int64_t>("group_size");
  if (group_size.has_error()) return ffi::Unexpected(group_size.error());
  if (*group_size > static_cast<int64_t>(kMaxRanks)) {
    return ffi::Unexpected(ffi::Error::InvalidArgument(
        std::string(what) + ": groups of " + std::to_string(*group_size) +
        " devices, and the kernel serves at most " + std::to_string(kMaxRanks)));
  }
  return std::make_unique<CallSite>(what, *image, *kernel);
}

ffi::ErrorOr<std::unique_ptr<CallSite>> InstantiateBarrier(ffi::RemainingArgs, ffi::RemainingRets,
                                                           ffi::Dictionary attributes) {
  return Instantiate(kBarrier, attributes);
}

ffi::ErrorOr<std::unique_ptr<CallSite>> InstantiateRagged(ffi::RemainingArgs, ffi::RemainingRets,
                                                          ffi::Dictionary attributes) {
  return Instantiate(kRagged, attributes);
}

// Runs a handler's body on a device. Its failure is that of the whole run: XLA says so for all
// devices, and none of them is to wait for this one.
template <typename Body>
ffi::Error InRun(const char* what, ffi::RunId run, const Body& body) {
  ffi::Error error = Caught(what, body);
  std::string why;
  Machine* machine = error.failure() ? Machine::OfProcess(&why) : nullptr;
  if (machine == nullptr) return error;
  return Caught(what, [&] {
    machine->runs.Fail(run.run_id, error.message());
    return error;
  });
}

ffi::Error Initialize(Stream stream, ffi::RunId run, int32_t device, CallSite* site,
                      ffi::RemainingArgs, ffi::RemainingRets, ffi::Dictionary attributes) {
  const char* what = site->what().c_str();
  return InRun(what, run, [&] {
    auto meeting = MeetingHere(what, attributes, run, device);
    if (meeting.has_error()) return meeting.error();
    return site->Initialize(*meeting, stream);
  });
}

// Results that are to take over operands' buffers do; nothing may be written between.
ffi::Error CheckShared(const char* what, const ffi::AnyBuffer& operand,
                       const ffi::AnyBuffer& result) {
  if (operand.untyped_data() == result.untyped_data() || operand.element_count() == 0) {
    return ffi::Error::Success();
  }
  return ffi::Error::Internal(std::string(what) +
                              ": XLA gives a result another buffer than the operand whose buffer "
                              "it is to take over");
}

// (token, x..., k...) -> (token, x...)
ffi::Error Barrier(Stream stream, ffi::RunId run, int32_t device, CallSite* site,
                   ffi::RemainingArgs operands, ffi::RemainingRets results,
                   ffi::Dictionary attributes) {
  return InRun(kBarrier, run, [&] {
    auto meeting = MeetingHere(kBarrier, attributes, run, device);
    if (meeting.has_error()) return meeting.error();
    for (size_t i = 0; i < results.size(); ++i) {
      auto operand = operands.get<ffi::AnyBuffer>(i);
      if (operand.has_error()) return operand.error();
      auto result = results.get<ffi::AnyBuffer>(i);
      if (result.has_error()) return result.error();
      ffi::Error error = CheckShared(kBarrier, *operand, **result);
      if (error.failure()) return error;
    }
    return site->Launch(*meeting, stream, 1, kBarrierThreads, nullptr);
  });
}

bool IsIndex(const ffi::AnyBuffer& buffer, ffi::DataType type, size_t count) {
  return buffer.element_type() == type && buffer.element_count() == count;
}

// What the kernel is told about its buffers; checks that they fit together.
ffi::ErrorOr<RaggedBuffers> BuffersOf(const Meeting& meeting, const ffi::AnyBuffer& operand,
                                      const ffi::AnyBuffer& output,
                                      const ffi::AnyBuffer& input_offsets,
                                      const ffi::AnyBuffer& send_sizes,
                                      const ffi::AnyBuffer& output_offsets) {
  auto wrong = [&meeting](const std::string& why) {
    return ffi::Unexpected(ffi::Error::InvalidArgument(std::string(kRagged) + ", " +
                                                       std::string(meeting.site) + ": " + why));
  };
  int bits = ElementBits(operand.element_type());
  if (bits == 0 || bits % 8 != 0 || operand.element_type() != output.element_type()) {
    return wrong("operand and output must have one type of whole bytes");
  }
  auto shape = operand.dimensions();
  auto output_shape = output.dimensions();
  if (shape.size() == 0 || shape.size() != output_shape.size() ||
      !std::equal(shape.begin() + 1, shape.end(), output_shape.begin() + 1)) {
    return wrong("operand and output must have the same shape but for the first dimension");
  }
  ffi::DataType index = input_offsets.element_type();
  size_t count = input_offsets.element_count();
  if (index != ffi::DataType::S32 && index != ffi::DataType::S64) {
    return wrong("offsets and sizes must be int32 or int64");
  }
  if (count % meeting.members.size() != 0 || !IsIndex(send_sizes, index, count) ||
      !IsIndex(output_offsets, index, count)) {
    return wrong(
        "offsets and sizes must have one type and the same number of elements for each of " +
        std::to_string(meeting.members.size()) + " devices");
  }
  RaggedBuffers buffers{};
  buffers.operand = static_cast<const char*>(operand.untyped_data());
  buffers.output = static_cast<char*>(output.untyped_data());
  buffers.input_offsets = input_offsets.untyped_data();
  buffers.send_sizes = send_sizes.untyped_data();
  buffers.output_offsets = output_offsets.untyped_data();
  buffers.operand_rows = shape[0];
  buffers.output_rows = output_shape[0];
  buffers.row_bytes = bits / 8;
  for (size_t i = 1; i < shape.size(); ++i) buffers.row_bytes *= shape[i];
  buffers.slices = static_cast<int64_t>(count / meeting.members.size());
  buffers.index_bytes = index == ffi::DataType::S32 ? 4 : 8;
  return buffers;
}

// (token, operand, output, input_offsets, send_sizes, output_offsets, recv_sizes) ->
// (output, token)
ffi::Error Ragged(Stream stream, ffi::RunId run, int32_t device, CallSite* site,
                  ffi::AnyBuffer token, ffi::AnyBuffer operand, ffi::AnyBuffer output,
                  ffi::AnyBuffer input_offsets, ffi::AnyBuffer send_sizes,
                  ffi::AnyBuffer output_offsets, ffi::AnyBuffer,
                  ffi::Result<ffi::AnyBuffer> output_result,
                  ffi::Result<ffi::AnyBuffer> token_result, ffi::Dictionary attributes) {
  return InRun(kRagged, run, [&] {
    auto meeting = MeetingHere(kRagged, attributes, run, device);
    if (meeting.has_error()) return meeting.error();
    ffi::Error error = CheckShared(kRagged, output, *output_result);
    if (error.failure()) return error;
    error = CheckShared(kRagged, token, *token_result);
    if (error.failure()) return error;
    auto buffers = BuffersOf(*meeting, operand, output, input_offsets, send_sizes, output_offsets);
    if (buffers.has_error()) return buffers.error();
    size_t blocks = std::clamp<size_t>(operand.size_bytes() / kBytesPerBlock, 1, kMostBlocks);
    return site->Launch(*meeting, stream, static_cast<unsigned>(blocks), kRaggedThreads, &*buffers);
  });
}

template <typename Binding>
auto BindSite(Binding binding) {
  return std::move(binding)
      .template Ctx<ffi::PlatformStream<Stream>>()
      .template Ctx<ffi::RunId>()
      .template Ctx<ffi::DeviceOrdinal>()
      .template Ctx<ffi::State<CallSite>>();
}

}  // namespace
}  // namespace hloom::cuda

using hloom::cuda::BindSite;
using xla::ffi::AnyBuffer;
using xla::ffi::Ffi;
using xla::ffi::Traits;

extern "C" const XLA_FFI_TypeInfo hloom_cuda_site_type_info;
const XLA_FFI_TypeInfo hloom_cuda_site_type_info = xla::ffi::MakeTypeInfo<hloom::cuda::CallSite>();

XLA_FFI_DEFINE_HANDLER_SYMBOL(hloom_cuda_token_v1_execute, hloom::cuda::Token,
                              Ffi::Bind()
                                  .Ctx<xla::ffi::PlatformStream<hloom::cuda::Stream>>()
                                  .Ret<xla::ffi::BufferR0<xla::ffi::U32>>(),
                              {Traits::kCmdBufferCompatible});

XLA_FFI_DEFINE_HANDLER_SYMBOL(hloom_cuda_barrier_v1_instantiate, hloom::cuda::InstantiateBarrier,
                              Ffi::BindInstantiate().RemainingArgs().RemainingRets().Attrs());

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    hloom_cuda_barrier_v1_initialize, hloom::cuda::Initialize,
    BindSite(Ffi::BindInitialize()).RemainingArgs().RemainingRets().Attrs());

XLA_FFI_DEFINE_HANDLER_SYMBOL(hloom_cuda_barrier_v1_execute, hloom::cuda::Barrier,
                              BindSite(Ffi::BindExecute()).RemainingArgs().RemainingRets().Attrs(),
                              {Traits::kCmdBufferCompatible});

XLA_FFI_DEFINE_HANDLER_SYMBOL(hloom_cuda_ragged_all_to_all_v1_instantiate,
                              hloom::cuda::InstantiateRagged,
                              Ffi::BindInstantiate().RemainingArgs().RemainingRets().Attrs());

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    hloom_cuda_ragged_all_to_all_v1_initialize, hloom::cuda::Initialize,
    BindSite(Ffi::BindInitialize()).RemainingArgs().RemainingRets().Attrs());

XLA_FFI_DEFINE_HANDLER_SYMBOL(hloom_cuda_ragged_all_to_all_v1_execute, hloom::cuda::Ragged,
                              BindSite(Ffi::BindExecute())
                                  .Arg<AnyBuffer>()
                                  .Arg<AnyBuffer>()
                                  .Arg<AnyBuffer>()
                                  .Arg<AnyBuffer>()
                                  .Arg<AnyBuffer>()
                                  .Arg<AnyBuffer>()
                                  .Arg<AnyBuffer>()
                                  .Ret<AnyBuffer>()
                                  .Ret<AnyBuffer>()
                                  .Attrs(),
                              {Traits::kCmdBufferCompatible});
