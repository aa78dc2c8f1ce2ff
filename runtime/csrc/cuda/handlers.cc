// The CUDA handlers of hloom's targets.
//
// Instantiate runs at compile time, possibly without a GPU: it parses the attributes and calls no
// driver. Initialize runs before every execution, outside of captures: it allocates memory,
// connects peers, loads code, and lets the devices agree on which execution is next. Execute only
// queues work on the stream, so that XLA can record it in a CUDA graph.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "cuda/call_site.h"
#include "cuda/cuda_runtime.h"
#include "element_bits.h"
#include "pad.cuh"
#include "xla/ffi/api/ffi.h"

namespace hloom::cuda {
namespace {

namespace ffi = xla::ffi;

constexpr char kToken[] = "hloom.token";
constexpr char kBarrier[] = "hloom.barrier";
constexpr char kRagged[] = "hloom.ragged_all_to_all";

// Operand bytes per block of the ragged all-to-all, and the largest number of blocks: enough to
// keep the links busy, few enough to leave room for other kernels. On an H200 a block moves 19 GB/s,
// so that 24 fill its links, 450 GB/s each way.
constexpr size_t kBytesPerBlock = 64 << 10;
constexpr size_t kMostBlocks = 32;

// Runs a handler's body. An exception in it becomes an error, for none may reach XLA.
template <typename Body>
ffi::Error CatchAll(const char* kind, const Body& body) {
  try {
    return body();
  } catch (const std::exception& error) {
    return ffi::Error::Internal(std::string(kind) + ": " + error.what());
  }
}

// () -> token
ffi::Error Token(Stream stream, ffi::Result<ffi::BufferR0<ffi::U32>> token) {
  return CatchAll(kToken, [&] {
    std::string missing;
    CudaRuntime* runtime = CudaRuntime::OfProcess(&missing);
    if (runtime == nullptr) return ffi::Error::Internal(std::string(kToken) + ": " + missing);
    const Driver& driver = runtime->driver;
    auto address = reinterpret_cast<DevicePointer>(token->untyped_data());
    MaybeError error =
        driver.Check(driver.cuMemsetD32Async(address, 0, 1, stream), "cuMemsetD32Async");
    return error ? ffi::Error::Internal(std::string(kToken) + ": " + *error)
                 : ffi::Error::Success();
  });
}

ffi::ErrorOr<std::unique_ptr<CallSite>> Instantiate(const char* kind,
                                                    const ffi::Dictionary& attributes) {
  auto image = attributes.get<std::string_view>("image");
  if (image.has_error()) return ffi::Unexpected(image.error());
  auto kernel = attributes.get<std::string_view>("kernel");
  if (kernel.has_error()) return ffi::Unexpected(kernel.error());
  auto group_size = attributes.get<int64_t>("group_size");
  if (group_size.has_error()) return ffi::Unexpected(group_size.error());
  if (*group_size > static_cast<int64_t>(kMaxRanks)) {
    return ffi::Unexpected(ffi::Error::InvalidArgument(
        std::string(kind) + ": groups of " + std::to_string(*group_size) +
        " devices, and the kernel serves at most " + std::to_string(kMaxRanks)));
  }
  try {
    auto parsed = CallAttributes::Parse(kind, attributes);
    if (parsed.has_error()) return ffi::Unexpected(parsed.error());
    return std::make_unique<CallSite>(std::move(*parsed), *image, *kernel);
  } catch (const std::exception& error) {
    return ffi::Unexpected(ffi::Error::Internal(std::string(kind) + ": " + error.what()));
  }
}

ffi::ErrorOr<std::unique_ptr<CallSite>> InstantiateBarrier(ffi::RemainingArgs, ffi::RemainingRets,
                                                           ffi::Dictionary attributes) {
  return Instantiate(kBarrier, attributes);
}

ffi::ErrorOr<std::unique_ptr<CallSite>> InstantiateRagged(ffi::RemainingArgs, ffi::RemainingRets,
                                                          ffi::Dictionary attributes) {
  return Instantiate(kRagged, attributes);
}

// Runs a handler's body with the rank's arrival. Its failure fails the whole run: XLA reports it
// for all devices, and none of them may wait for this one.
template <typename Body>
ffi::Error InRun(CallSite* site, ffi::RunId run, int32_t device, const Body& body) {
  const char* kind = site->attributes().kind().c_str();
  ffi::Error error = CatchAll(kind, [&] {
    auto arrival = site->attributes().ArrivalOf(run, device);
    return arrival.has_error() ? arrival.error() : body(*arrival);
  });
  std::string missing;
  CudaRuntime* runtime = error.failure() ? CudaRuntime::OfProcess(&missing) : nullptr;
  if (runtime == nullptr) return error;
  return CatchAll(kind, [&] {
    runtime->runs.Fail(run.run_id, error.message());
    return error;
  });
}

ffi::Error Initialize(Stream stream, ffi::RunId run, int32_t device, CallSite* site,
                      ffi::RemainingArgs, ffi::RemainingRets, ffi::Dictionary) {
  return InRun(site, run, device,
               [&](const Arrival& arrival) { return site->Initialize(arrival, stream); });
}

// An error where XLA did not give a result the buffer of the operand that it aliases: the barrier
// writes nothing.
ffi::Error CheckShared(const char* kind, const ffi::AnyBuffer& operand,
                       const ffi::AnyBuffer& result) {
  if (operand.untyped_data() == result.untyped_data() || operand.element_count() == 0) {
    return ffi::Error::Success();
  }
  return ffi::Error::Internal(std::string(kind) +
                              ": XLA gives a result another buffer than the operand whose buffer "
                              "it is to take over");
}

// (token, x..., k...) -> (token, x...)
ffi::Error Barrier(Stream stream, ffi::RunId run, int32_t device, CallSite* site,
                   ffi::RemainingArgs operands, ffi::RemainingRets results, ffi::Dictionary) {
  return InRun(site, run, device, [&](const Arrival& arrival) {
    for (size_t i = 0; i < results.size(); ++i) {
      auto operand = operands.get<ffi::AnyBuffer>(i);
      if (operand.has_error()) return operand.error();
      auto result = results.get<ffi::AnyBuffer>(i);
      if (result.has_error()) return result.error();
      ffi::Error error = CheckShared(kBarrier, *operand, **result);
      if (error.failure()) return error;
    }
    return site->Launch(arrival, stream, 1, kBarrierThreads, nullptr);
  });
}

bool IsIndex(const ffi::AnyBuffer& buffer, ffi::DataType type, size_t count) {
  return buffer.element_type() == type && buffer.element_count() == count;
}

// The kernel's description of its buffers. An error where they do not fit together.
ffi::ErrorOr<RaggedBuffers> BuffersOf(const GroupCall& call, const ffi::AnyBuffer& operand,
                                      const ffi::AnyBuffer& output,
                                      const ffi::AnyBuffer& input_offsets,
                                      const ffi::AnyBuffer& send_sizes,
                                      const ffi::AnyBuffer& output_offsets) {
  auto invalid = [&call](const std::string& error) {
    return ffi::Unexpected(
        ffi::Error::InvalidArgument(call.kind + ", " + call.site + ": " + error));
  };
  int bits = ElementBits(operand.element_type());
  if (bits == 0 || bits % 8 != 0 || operand.element_type() != output.element_type()) {
    return invalid("operand and output must have one type of whole bytes");
  }
  auto shape = operand.dimensions();
  auto output_shape = output.dimensions();
  if (shape.size() == 0 || shape.size() != output_shape.size() ||
      !std::equal(shape.begin() + 1, shape.end(), output_shape.begin() + 1)) {
    return invalid("operand and output must have the same shape but for the first dimension");
  }
  ffi::DataType index = input_offsets.element_type();
  size_t count = input_offsets.element_count();
  if (index != ffi::DataType::S32 && index != ffi::DataType::S64) {
    return invalid("offsets and sizes must be int32 or int64");
  }
  if (count % call.members.size() != 0 || !IsIndex(send_sizes, index, count) ||
      !IsIndex(output_offsets, index, count)) {
    return invalid(
        "offsets and sizes must have one type and the same number of elements for each of " +
        std::to_string(call.members.size()) + " devices");
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
  buffers.slices = static_cast<int64_t>(count / call.members.size());
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
                  ffi::Result<ffi::AnyBuffer> token_result, ffi::Dictionary) {
  return InRun(site, run, device, [&](const Arrival& arrival) {
    ffi::Error error = CheckShared(kRagged, output, *output_result);
    if (error.failure()) return error;
    error = CheckShared(kRagged, token, *token_result);
    if (error.failure()) return error;
    auto buffers =
        BuffersOf(*arrival.call, operand, output, input_offsets, send_sizes, output_offsets);
    if (buffers.has_error()) return buffers.error();
    size_t blocks = std::clamp<size_t>(operand.size_bytes() / kBytesPerBlock, 1, kMostBlocks);
    return site->Launch(arrival, stream, static_cast<unsigned>(blocks), kRaggedThreads, &*buffers);
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
