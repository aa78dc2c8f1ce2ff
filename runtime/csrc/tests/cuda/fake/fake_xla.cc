#include "tests/cuda/fake/fake_xla.h"

#include <memory>

namespace fake_xla {
namespace {

XLA_FFI_Api MakeApi() {
  XLA_FFI_Api api{};
  api.struct_size = XLA_FFI_Api_STRUCT_SIZE;
  api.api_version.struct_size = XLA_FFI_Api_Version_STRUCT_SIZE;
  api.api_version.major_version = XLA_FFI_API_MAJOR;
  api.api_version.minor_version = XLA_FFI_API_MINOR;
  api.XLA_FFI_Error_Create = [](XLA_FFI_Error_Create_Args* args) {
    return new XLA_FFI_Error{args->message};
  };
  api.XLA_FFI_Error_GetMessage = [](XLA_FFI_Error_GetMessage_Args* args) {
    args->message = args->error->message.c_str();
  };
  api.XLA_FFI_Error_Destroy = [](XLA_FFI_Error_Destroy_Args* args) { delete args->error; };
  api.XLA_FFI_Stream_Get = [](XLA_FFI_Stream_Get_Args* args) -> XLA_FFI_Error* {
    args->stream = args->ctx->stream;
    return nullptr;
  };
  api.XLA_FFI_State_Set = [](XLA_FFI_State_Set_Args* args) -> XLA_FFI_Error* {
    *args->ctx->state = args->state;
    return nullptr;
  };
  api.XLA_FFI_State_Get = [](XLA_FFI_State_Get_Args* args) -> XLA_FFI_Error* {
    args->state = *args->ctx->state;
    return nullptr;
  };
  api.XLA_FFI_RunId_Get = [](XLA_FFI_RunId_Get_Args* args) -> XLA_FFI_Error* {
    args->run_id = args->ctx->run;
    return nullptr;
  };
  api.XLA_FFI_DeviceOrdinal_Get = [](XLA_FFI_DeviceOrdinal_Get_Args* args) -> XLA_FFI_Error* {
    args->device_ordinal = args->ctx->device;
    return nullptr;
  };
  return api;
}

const XLA_FFI_Api kApi = MakeApi();

std::vector<XLA_FFI_Buffer> Views(const std::vector<Buffer>& buffers) {
  std::vector<XLA_FFI_Buffer> views;
  for (const Buffer& buffer : buffers) {
    views.push_back({XLA_FFI_Buffer_STRUCT_SIZE, nullptr, buffer.type, buffer.data,
                     static_cast<int64_t>(buffer.shape.size()),
                     const_cast<int64_t*>(buffer.shape.data())});
  }
  return views;
}

template <typename T>
std::vector<void*> Pointers(std::vector<T>& values) {
  std::vector<void*> pointers;
  for (T& value : values) pointers.push_back(&value);
  return pointers;
}

// The attributes in the form of the C interface.
class AttributeViews {
 public:
  explicit AttributeViews(const Attributes& attributes) {
    for (const auto& [name, value] : attributes) {
      names_.push_back({name.data(), name.size()});
      if (const auto* number = std::get_if<int64_t>(&value)) {
        types_.push_back(XLA_FFI_AttrType_SCALAR);
        Keep(XLA_FFI_Scalar{XLA_FFI_DataType_S64, const_cast<int64_t*>(number)});
      } else if (const auto* numbers = std::get_if<std::vector<int64_t>>(&value)) {
        types_.push_back(XLA_FFI_AttrType_ARRAY);
        Keep(XLA_FFI_Array{XLA_FFI_DataType_S64, numbers->size(),
                           const_cast<int64_t*>(numbers->data())});
      } else {
        const auto& text = std::get<std::string>(value);
        types_.push_back(XLA_FFI_AttrType_STRING);
        Keep(XLA_FFI_ByteSpan{text.data(), text.size()});
      }
    }
    for (XLA_FFI_ByteSpan& name : names_) name_pointers_.push_back(&name);
  }

  XLA_FFI_Attrs View() {
    return {XLA_FFI_Attrs_STRUCT_SIZE,
            nullptr,
            static_cast<int64_t>(values_.size()),
            types_.data(),
            name_pointers_.data(),
            values_.data()};
  }

 private:
  template <typename T>
  void Keep(T value) {
    auto kept = std::make_shared<T>(value);
    values_.push_back(kept.get());
    kept_.push_back(std::move(kept));
  }

  std::vector<XLA_FFI_ByteSpan> names_;
  std::vector<XLA_FFI_ByteSpan*> name_pointers_;
  std::vector<XLA_FFI_AttrType> types_;
  std::vector<void*> values_;
  std::vector<std::shared_ptr<void>> kept_;
};

}  // namespace

std::string Call(XLA_FFI_Handler* handler, XLA_FFI_ExecutionStage stage,
                 XLA_FFI_ExecutionContext context, const std::vector<Buffer>& operands,
                 const std::vector<Buffer>& results, const Attributes& attributes) {
  std::vector<XLA_FFI_Buffer> arguments = Views(operands);
  std::vector<XLA_FFI_Buffer> returns = Views(results);
  std::vector<void*> argument_pointers = Pointers(arguments);
  std::vector<void*> return_pointers = Pointers(returns);
  std::vector<XLA_FFI_ArgType> argument_types(arguments.size(), XLA_FFI_ArgType_BUFFER);
  std::vector<XLA_FFI_RetType> return_types(returns.size(), XLA_FFI_RetType_BUFFER);
  AttributeViews attribute_views(attributes);

  XLA_FFI_CallFrame frame{};
  frame.struct_size = XLA_FFI_CallFrame_STRUCT_SIZE;
  frame.api = &kApi;
  frame.ctx = &context;
  frame.stage = stage;
  frame.args = {XLA_FFI_Args_STRUCT_SIZE, nullptr, static_cast<int64_t>(arguments.size()),
                argument_types.data(), argument_pointers.data()};
  frame.rets = {XLA_FFI_Rets_STRUCT_SIZE, nullptr, static_cast<int64_t>(returns.size()),
                return_types.data(), return_pointers.data()};
  frame.attrs = attribute_views.View();
  std::unique_ptr<XLA_FFI_Error> error(handler(&frame));
  return error == nullptr ? "" : error->message;
}

bool IsCommandBufferCompatible(XLA_FFI_Handler* handler) {
  XLA_FFI_Metadata metadata{};
  metadata.struct_size = XLA_FFI_Metadata_STRUCT_SIZE;
  metadata.api_version.struct_size = XLA_FFI_Api_Version_STRUCT_SIZE;
  XLA_FFI_Metadata_Extension extension{};
  extension.extension_base.struct_size = XLA_FFI_Metadata_Extension_STRUCT_SIZE;
  extension.extension_base.type = XLA_FFI_Extension_Metadata;
  extension.metadata = &metadata;
  XLA_FFI_CallFrame frame{};
  frame.struct_size = XLA_FFI_CallFrame_STRUCT_SIZE;
  frame.extension_start = &extension.extension_base;
  frame.api = &kApi;
  handler(&frame);
  return (metadata.traits & XLA_FFI_HANDLER_TRAITS_COMMAND_BUFFER_COMPATIBLE) != 0;
}

}  // namespace fake_xla
